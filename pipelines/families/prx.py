"""PRX: it reads prompts with a library that diffusers does without."""

from pipelines.families.generic import Family


class PRX(Family):
    """Hooks of PRX, whose call corrects the prompt with ftfy, and fails where that is not installed."""

    classes = ("PRX*",)
    libraries = ("ftfy",)


class PRXPixel(PRX):
    """Hooks of PRX in pixel space. A tensor that its call returns is from -1 to 1."""

    classes = ("PRXPixel*",)
    output_type = "np"
    may_start_late = False  # there is no codec
