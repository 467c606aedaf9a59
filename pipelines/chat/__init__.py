"""Chat on a local language model: jobs come in, rows decode together, deltas go out. `engine` is the place to start.

`engine` takes jobs, `prompts` turns messages into tokens, `device_loop` owns the thread that computes, `batch` says
which rows decode together, `slots` keeps their keys and values, `sampling` draws tokens, `answer` makes text of them.
"""
