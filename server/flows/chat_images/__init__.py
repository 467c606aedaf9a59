"""Images out of chats: a conversation as an image call, or as a response with the image tool.

- `conversation`: which text is drawn, and from which images. Pure
- `image_call`: the call that is made of it, or a response with the image tool. Pure
- `run`: the call or the response, as the events of a chat
"""
