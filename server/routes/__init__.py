"""The URLs. A route validates its body, calls a flow and answers; decisions are made in `server.flows`.

- `images`, `chat`, `responses`, `models`: OpenAI's endpoints
- `unsupported`: a clear 404 for those of the served protocols' endpoints that do not exist here
- `files`: stored images
- `admin`: catalog changes, with the admin key
- `health`: liveness, readiness and metrics
- `console`: the web page
"""
