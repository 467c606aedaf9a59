"""The `darkroom` command.

- `app`: the commands and their options
- `serve`: `darkroom serve`, from the first key to the running server
- `http_protocol`: how many connections there may be, and how slow
- `graceful_shutdown`: how the server stops on SIGTERM
- `admin_client`: `darkroom swap` and `darkroom reload`, which call the running server
- `cluster/`: `darkroom cluster`, which makes several machines into one
- `tables`: the output of the commands that list something
"""
