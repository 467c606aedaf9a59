"""Measurements. Each prints its figures and how to read them.

- __main__: `make bench`: ratios of the server to the bare libraries (calls, swap, bare, ratios)
- memory: peak memory by picture size
- chat: chat throughput and latency
- soak: `make soak`: mixed traffic with faults, then the ledger and memory growth
"""
