"""State in memory, lost when the process ends. The database has all that must survive.

- `detached_task`: a task that outlives the request that started it
- `active_job`: the common part of running image calls and responses
- `active_calls`, `active_chats`, `active_responses`: the running jobs, for clients that follow, retry or cancel them
- `expected_retries`: answers after which an SDK retries
- `image_backlog`: the queue of image jobs in seconds of device time
- `concurrency`: each key's running calls
- `background_tasks`: work that must finish although its request was cancelled
- `drain`: whether the server still accepts calls
- `served_catalog`: the catalog in use
- `image_result`: the result of an image call
"""
