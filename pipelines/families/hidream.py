"""HiDream: runs of it take turns and share no forward pass."""

from pipelines.families.generic import Family


class HiDream(Family):
    """Hooks of HiDream, whose rows differ in a shared pass from what they are alone: seen on every checkpoint that was
    tried."""

    classes = ("HiDreamImage*",)
    separate_passes = "its rows differ from what they are alone"
