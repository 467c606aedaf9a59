"""Chat on a local language model: jobs come in, rows decode together, deltas go out. `engine` is the place to start.

`engine` takes jobs; `prepare` makes sequences of them: `prompts` turns messages into tokens, `grammars` says what an
answer may look like, `tool_syntax` how this checkpoint writes calls and reasoning. `device_loop` owns the thread that
computes, `batch` says which rows decode together, `slots` keeps their keys and values, `forward` runs the model; `solo`
is the plain path. `speak` goes from logits to deltas: `sampling` draws, `constraints` keeps to the grammar, `answer`
makes text of tokens with `tokens`, `reading` and `stops`.
"""
