"""PRX: it reads prompts with a library that diffusers does without."""

from collections.abc import Container

from pipelines.families.generic import Call, Family


class PRX(Family):
    """Its call corrects the text with ftfy, and does not look whether that is there."""

    classes = ("PRX*",)
    libraries = ("ftfy",)


class PRXPixel(PRX):
    """It draws pixels."""

    classes = ("PRXPixel*",)

    def starts_late(self, call: Call, methods: Container[str]) -> bool:
        """Return False: there is no codec."""
        return False
