"""The `darkroom` command with chat models that write what a test says."""

from server.backends import child_process
from server.cli.app import main

if __name__ == "__main__":
    child_process.WORKER = "tests.support.scripted_chat_worker"
    main()
