"""What is raised for a checkpoint that can't be served."""


class CheckpointError(Exception):
    """A checkpoint can't be served. The message names the file or key, and the right value."""


class RefusedOption(CheckpointError):
    """A value of `[runtime]` that this checkpoint or this device does not take; `runtime = "auto"` goes on without."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(message)
        self.option = option


class BrokenFile(CheckpointError):
    """The file is no weight file, or not a whole one. The message names it."""
