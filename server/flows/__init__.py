"""The work of the server for a request, without HTTP: each flow gets the collaborators it uses and plain values.

- `admission`: the model that a request names, and whether its key may use it
- `moderation`: the policy's checks of texts, images and streams
- `references`: reference images, from a URL or a file to pixels
- `rate_limits`: how many calls a key may have at once and start in a minute
- `call_recording`: what is logged of each call
- `gateways`: the other servers of a cluster
- `retries`: a request's headers about earlier attempts, and the errors that a retry gets again
- `storage/`: whose the storage of images is, and what is swept from it
- `operators/`: changes and reports of operators, checkpoints that they look at and add
- `catalog/`: another checkpoint or catalog in a running server, or in all of several
- `images/`, `chat/`, `responses/`: the flows of each resource; responses are built on the other two
"""
