"""Gemini's generateContent: images of image models, and chats.

- `schema`: the body; `answers`: the answers
- `request`: the body as a chat completion's, or as an image call's
- `events`: a chat's events, or an image call's result, as candidates
- `errors`: an error as that protocol has it
- `routes`: the URLs; `examples`: of their bodies, for the API's description
- `dialect`: the registration
"""
