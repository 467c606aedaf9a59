"""Measurements. Each prints its figures and how to read them.

- __main__: `make bench`: ratios of the server to the bare libraries (calls, swap, bare, ratios)
- gpu: `make gpu`: one GPU by random weights in real sizes, without a network
- two_engines: two image workers on the CPU against one
- memory: peak memory by image size
- chat: chat throughput and latency
- soak: `make soak`: mixed traffic with faults, then the ledger and memory growth
- chaos: `make chaos`: kills of every process under traffic, then the charges counted again (recount)
- fuzz: `make fuzz`: mutated requests to every route
- load: `make load`: many chats and image calls at once, and how others are answered meanwhile
"""
