"""Images out of chats: a conversation as an image call, or as a response with the image tool.

- `conversation`: which text is drawn, and from which images. Pure
- `tool_response`: a chat completion's body as a response's. Pure
- `tiers`: which model of a family draws at a resolution
- `run`: the call or the response, as the events of a chat
"""
