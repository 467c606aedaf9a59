"""Pydantic models and typed dicts of every request and answer, in OpenAI's shapes.

- `validation`: from a body to a typed value, or to OpenAI's error; limits on text
- `chat`, `chat_messages`, `chat_completion`: chat completions
- `upstream_chunks`: the stream of a chat completion from another server
- `images`: image generations and edits
- `responses`, `response_items`, `response_tools`: the request of a response
- `response_object`, `response_answers`, `response_events`: its answers and its stream
- `hosted_fields`: fields of OpenAI's hosted service, accepted without effect or refused by name
- `models`, `admin`, `health`: the smaller routes
- `answer`, `errors`: the parts that all answers share
"""
