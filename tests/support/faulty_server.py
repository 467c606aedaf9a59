"""The `darkroom` command with image workers that fail on purpose: `python -m tests.support.faulty_server serve`."""

from server.backends import child_process
from server.cli.app import main

if __name__ == "__main__":
    child_process.WORKER = "tests.support.faulty_image_worker"
    main()
