"""The parts outside the server process. An object store or another kind of upstream belongs here.

- `engine_host`: starts, watches and restarts a worker, whose states are in `worker_life`, and exchanges jobs and events
  with it; over a `transport`, to a `child_process`
- `engines`: the hosts of all workers, on the devices of an `engine_layout`, with the GPUs that `gpus` finds
- `worker_pool`: the image workers as one engine, for the `demands` of a catalog, with checkpoints where `placement`
  puts them
- `storage`, `object_storage`: the files of finished images
- `upstream`: other OpenAI-compatible servers
- `fetch`: requests to URLs that callers name: reference images, webhooks
- `decoding`: untrusted image files to pixels, in processes that may die
"""
