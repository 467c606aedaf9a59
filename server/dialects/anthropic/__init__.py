"""Anthropic's Messages: chats of any chat model.

- `schema`: the body; `answers`: the answers
- `request`: the body as a chat completion's
- `events`: a chat's events as a message, or as the events of a stream
- `errors`: an error as that protocol has it
- `routes`: the URLs; `examples`: of their bodies, for the API's description
- `dialect`: the registration
"""
