"""The inputs that a pipeline draws from: the four tasks of a job's images."""

from enum import Enum, auto


class Task(Enum):
    """How the first pass starts, and how the references are used."""

    TEXT = auto()  # from noise, with the prompt alone
    NATIVE = auto()  # from noise; the pipeline reads all references at every step
    REDRAW = auto()  # image-to-image: from the noised reference
    INPAINT = auto()  # from the noised first reference, where the mask says so; further ones are read

    @property
    def starts_from_noise(self) -> bool:
        """Return whether all steps run. Otherwise `strength` says how many of them."""
        return self in {Task.TEXT, Task.NATIVE}

    @property
    def reads_references(self) -> bool:
        """Return whether the denoiser attends to the references, as it does to the pixels that it draws."""
        return self is Task.NATIVE
