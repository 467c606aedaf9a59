"""HTTP, accounts and money. Nothing in here imports torch.

One request, in one direction: `routes` (wire types in, wire types out) -> `flows` (one request from top to bottom)
-> `accounts`, `storage`, `fetch`, `engine_host` -> a worker process that runs `pipelines`.
"""
