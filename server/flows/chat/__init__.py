"""Chat completions, on the local chat worker or on an upstream server.

- `parse`: from the body to a `ChatRequest`
- `request`: `ChatRequest`, its model's capabilities, and the engine job or the other server's body that it becomes
- `tools`: checks of functions and JSON schemas, shared with responses
- `custom_tools`: tools that take a text, shared with responses
- `moderation`: which texts of a chat are moderated
- `source`: where the events of a model's chats come from; `local_source`: the chat worker; `upstream_source`: another
  server, with `upstream_events` for its answers
- `chats`: the source of a model, and its events within the limits of their key
- `keyed`: chats with an Idempotency-Key: running, recorded or new
- `run`: jobs on the chat worker, and the count of their tokens
- `events`: the events of an answer beside the engine's; `completion`: from events to OpenAI's objects
"""
