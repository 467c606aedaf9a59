"""What is raised for a checkpoint that can't be served."""


class CheckpointError(Exception):
    """A checkpoint can't be served. The message names the file or key, and the right value."""


class BrokenFile(CheckpointError):
    """The file is no weight file, or not a whole one. The message names it."""
