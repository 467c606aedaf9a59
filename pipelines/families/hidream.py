"""HiDream: runs of it take turns and share no forward pass."""

from pipelines.families.generic import Family


class HiDream(Family):
    """Its experts' results depend on what else is in the pass."""

    classes = ("HiDreamImage*",)
    separate_passes = "its rows differ from what they are alone"
