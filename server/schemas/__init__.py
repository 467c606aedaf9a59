"""Pydantic models and typed dicts of every request and answer, in OpenAI's shapes.

- `validation`: from a body to a typed value, or to OpenAI's error; limits on text
- `chat`, `chat_messages`, `chat_completion`: chat completions, ours and those of other servers
- `images`: image generations and edits
- `responses`, `response_items`, `response_tools`: the request of a response
- `response_object`, `response_answers`, `response_events`: its answers and its stream
- `extra_fields`: fields of OpenAI's hosted service, accepted without effect or refused by name, and those of servers of
  local models
- `keys`, `reports`, `status`, `checkpoints`, `moderation`, `models`, `admin`: the smaller routes
- `base`: the parts that all answers share
"""
