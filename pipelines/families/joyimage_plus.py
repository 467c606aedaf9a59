"""JoyImage-Edit-Plus: several references have an argument of another name."""

from pipelines.families.generic import Family


class JoyImageEditPlus(Family):
    """Hooks of JoyImage-Edit-Plus, whose call takes a list of references."""

    classes = ("JoyImageEditPlus*",)
    references_argument = "images"
