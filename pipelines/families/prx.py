"""PRX: it reads prompts with a library that diffusers does without."""

from pipelines.families.generic import Family


class PRX(Family):
    """Hooks of PRX, whose call corrects the prompt with ftfy, and fails where that is not installed."""

    classes = ("PRX*",)
    libraries = ("ftfy",)
