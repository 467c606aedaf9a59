"""Image calls, in the order in which one runs.

- `idempotency`: which call a request is for: running, recorded or new
- `request`: the fields of a request, a model's refusals of them, and the job that they become
- `create`: check, hold, draw, store, capture
- `results`: the answer and the stream events of a call
- `jobs`: calls by their ids: their states, their list, their cancellation
- `thumbnails`: small copies of stored images
- `webhooks`: tells a caller's server of the end of a call
"""
