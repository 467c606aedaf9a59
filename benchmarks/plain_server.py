"""`python -m benchmarks.plain_server`: the `darkroom` command with plain workers, for what is about all the rest."""

from server.backends import child_process
from server.cli.app import main

if __name__ == "__main__":
    child_process.WORKER = "benchmarks.plain_worker"
    main()
