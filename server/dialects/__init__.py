"""Other protocols than OpenAI's, one folder each. A dialect is a pair of pure translations over the flows, their
request to ours and our events to theirs, with the routes that call them. `server.extras` lists those that are
installed, and nothing else imports them.

- `anthropic`: /v1/messages
- `gemini`: /v1beta/models/{model}:generateContent
"""
