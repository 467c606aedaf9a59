"""State in memory, lost when the process ends. The database has all that must survive.

- `tasks`: tasks that outlive the request that started them, and whether the server still accepts calls
- `active_job`: the common part of running image calls and responses
- `active_calls`, `active_chats`, `active_responses`: the running jobs, for clients that follow, retry or cancel them
- `expected_retries`: answers after which an SDK retries
- `image_backlog`: the queue of image jobs in seconds of device time
- `body_budget`: the memory of bodies
- `call_limits`: each key's running calls, and those of the last minute
- `served`: the catalog and the policy in use
"""
