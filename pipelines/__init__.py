"""Tensors and checkpoints. The server imports only `checkpoints` and `protocol`, which need no torch.

Each kind of job has a process of its own: `worker`, with one engine. The server's `EngineHost` sends it jobs over a
socket pair and receives their events; both sides satisfy `protocol.engine.Engine`.

A module imports only from folders below its own; the three engines don't import each other.

- worker: the process: socket in, socket out
- images: image jobs with diffusers: scheduling, loading, drawing
- chat: chat jobs with transformers: continuous batching, KV cache, tools, constraints
- classify: moderation classifiers with transformers
- device: memory budgets, CPU threads, library settings
- checkpoints: their files with their facts and needs, read without torch; plans and estimates of work
- families: the differences between the families of diffusers' image pipelines, one file each
- protocol: jobs, specs, events and messages, which pass between the processes
"""
