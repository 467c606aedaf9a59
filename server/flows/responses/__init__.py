"""Responses, in the order in which one runs.

- `create`: which response a request is for; a new one is recorded and started
- `request`: the JSON of a request to its body, with a text for what can't be read
- `planner`: everything that the response needs, looked up and checked
- `history`, `context`, `items`: earlier rounds from the database, the prompt made of them, items and their images
- `tool_loop`: turns of the chat model, and the images between them
- `stream_events`: deltas of the model -> output items and events
- `image_tool`: one image, as the image routes draw it
- `retrieve`: responses by their id; `count_tokens`: the length of an input
"""
