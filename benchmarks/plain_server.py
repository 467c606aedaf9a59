"""`python -m benchmarks.plain_server`: the `darkroom` command with plain workers, for what is about all the rest."""

from server.backends import engine_host
from server.cli.app import main

if __name__ == "__main__":
    engine_host.WORKER = "benchmarks.plain_worker"
    main()
