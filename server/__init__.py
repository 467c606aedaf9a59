"""HTTP, accounts and money. Nothing here imports torch.

The path of a request (image generation; a chat skips the money):
1. `routes.images` validates the body with `schemas.images`; `http.deps` finds the API key.
2. `flows.images.idempotency` joins a running call, replays a finished one, or starts a new one.
3. `flows.images.create` runs the call from here on: it loads references and moderates the input.
4. `state.image_backlog` admits the job; `accounts.ledger` holds its price.
5. `backends.engine_host` sends the job to a worker process, which runs `pipelines`.
6. `flows.images.create` moderates the images, and `backends.storage` writes the files.
7. `accounts.ledger` charges the call and records its results in one transaction.
8. `http.delivery` answers, as JSON or as a stream.

- `cli`: the `darkroom` command
- `app`, `build`, `services`, `parts`: the ASGI app, its flows and the parts that these use, built once
- `housekeeping`: the lock of the home, recovery after a crash, periodic work
- `routes`: the URLs
- `http`: the parts that all routes share
- `flows`: one request from start to end, without HTTP
- `state`: the state that is in memory only and is lost with the process
- `backends`: worker processes, files, and other servers
- `accounts`: API keys, money and stored calls, in the database
- `moderation`: the policy file and its matching
- `telemetry`: logs, metrics and crash points
- `schemas`: the models of request and answer bodies
- `console`: the pages in the browser
- `settings`, `errors`: the environment variables, and every error that a client can get

docs/ARCHITECTURE.md says who may import whom.
"""
