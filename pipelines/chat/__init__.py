"""Chat on a local language model, with continuous batching and chunked prefill.

How a request moves through it: `engine` loads the checkpoint, and `request_builder` makes a sequence for each choice.
`device_loop` adds them to the checkpoint's generator. There, in every step, the scheduler gives them rows of the KV
cache, the model runner computes logits, and `sample_step` appends a token to each and emits deltas, which `engine`
yields.

- engine: submit, cancel and load, on the worker's event loop
- request_builder: from a job to its sequences; encoding: its messages to prompt tokens
- steps: the thread that computes, its generators (batched, or one text after another), which sequences are prefilled
  or decoded, the next tokens and their text
- loading: a checkpoint's files, and its model in memory
- model: the forward pass of a batch over the pages of its keys and values
- prompts: what a chat template wants, and a conversation in that form
- grammars: JSON schemas and tool calls enforced with llguidance
- syntax: how families write calls and thoughts, and what an answer's text means
- failures: errors as events
"""
