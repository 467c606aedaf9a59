"""Other protocols than OpenAI's, one package each. A dialect is a pair of pure translations over the flows: their
request to ours, and our events to theirs.

- `anthropic`: /v1/messages
- `gemini`: /v1beta/models/{model}:generateContent
"""
