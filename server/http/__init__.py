"""HTTP parts that all routes share.

- `deps`: the services, the API key and the headers of a request
- `delivery`: responses as JSON, as JSON with keep-alive, and cancelling on disconnect
- `keyed_chat`: chats with an Idempotency-Key
- `sse`: server-sent events
- `paging`: pages of lists
- `openapi`, `openapi_document`, `examples`: what `/openapi.json` says beyond the routes' types
- `bodies`: reading a body, once its key has a place and memory for it
- `observability`, `body_limit`: ASGI middleware; `decoded_body`: bodies that come compressed
"""
