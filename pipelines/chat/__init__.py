"""Chat on a local language model, with continuous batching and chunked prefill.

How a request moves through it: `engine` loads the checkpoint, and `request_builder` makes a sequence for each choice.
`device_loop` adds them to the checkpoint's generator. There, in every step, the scheduler gives them rows of the KV
cache, the model runner computes logits, and `sample_step` appends a token to each and emits deltas, which `engine`
yields.

- engine: submit, cancel and load, on the worker's event loop
- device_loop: the thread that computes; one generator for each checkpoint
- batched: the generator that most models get: scheduler, model runner and sampling, step by step
- sequential: the fallback for vision models and others that can't share a batch, by transformers' `generate`
- scheduler: who is prefilled, who decodes, who is preempted
- kv_cache: keys and values of the rows; model_runner: the forward pass over them
- sequence: a request, and a sequence for each of its choices
- request_builder: from a job to its sequences; prompts: chat template, truncation
- decode_step: from logits to deltas; sampling: temperature, top_p, penalties, logprobs, seeds
- grammars, constraints: JSON schemas and tool calls enforced with llguidance
- detokenize: tokens to deltas; output_parser: text, reasoning, tool calls; stops: stop strings
- syntax, tokens: how a checkpoint writes calls and reasoning, and its vocabulary
- checkpoint: loading; packed_linear, cpu_threads: layers and threads on a CPU; failures: errors as events
"""
