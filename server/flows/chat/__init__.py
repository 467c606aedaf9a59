"""Chat completions, on the local chat worker or on an upstream server.

- `parse`: from the body to a `ChatRequest`
- `request`: `ChatRequest`, what its model supports, and the engine job that it becomes
- `tools`, `strict_schema`: checks of functions and JSON schemas, shared with responses
- `custom_tools`, `custom_input`: tools that take a text, shared with responses
- `moderation`: which texts of a chat are moderated
- `complete`: one completion on a local model, from its checks to its events
- `idempotency`: chats with an Idempotency-Key: running, recorded or new
- `run`: jobs on the chat worker, and the count of their tokens
- `completion`: from events to OpenAI's objects
- `upstream`: completions that another server answers; `upstream_events`: its stream as the events of a local model
- `any_model`: chats of either kind, for protocols other than OpenAI's
"""
