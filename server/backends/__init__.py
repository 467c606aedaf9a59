"""What is outside the server process. A second GPU, an object store or another kind of upstream belongs here.

- `engine_host`: starts, watches and restarts a worker process, and exchanges jobs and events with it
- `storage`: the files of finished pictures
- `upstream`: other OpenAI-compatible servers
- `fetch`: reference images by URL
- `decoding`: untrusted image files to pixels, in processes that may die
"""
