"""HiDream: runs of it take turns and share no forward pass."""

from pipelines.families.generic import Family


class HiDream(Family):
    """HiDream. In a shared pass its rows come out as others: seen on every checkpoint that was tried."""

    classes = ("HiDreamImage*",)
    separate_passes = "its rows differ from what they are alone"
