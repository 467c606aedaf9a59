"""HTTP parts that all routes share.

- `deps`: the services, the API key and the headers of a request
- `delivery`: responses as JSON, as JSON with keep-alive, and cancelling on disconnect
- `sse`: server-sent events
- `queries`: pages, periods and filters in a query; `listings`: routes of lists, in pages or as CSV
- `openapi`, `openapi_document`, `examples`: the parts of `/openapi.json` beyond the routes' types
- `bodies`: a body as JSON or as a model, read once its key has a place and memory for it
- `observability`, `body_limit`, `middleware`: ASGI middleware
- `errors`: errors as answers, in the shape of each protocol
- `public_address`: the addresses of a request behind proxies
"""
