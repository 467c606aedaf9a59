"""PRX: it reads prompts with a library that diffusers does without."""

from pipelines.families.generic import Family


class PRX(Family):
    """Its call corrects the text with ftfy, and does not look whether that is there."""

    classes = ("PRX*",)
    libraries = ("ftfy",)
