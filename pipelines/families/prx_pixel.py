"""PRX without a codec."""

from collections.abc import Container

from pipelines.families.generic import Call
from pipelines.families.prx import PRX


class PRXPixel(PRX):
    """It draws pixels. A tensor of its call is from -1 to 1."""

    classes = ("PRXPixel*",)
    output_type = "np"

    def starts_late(self, call: Call, methods: Container[str]) -> bool:
        """Return False: there is no codec."""
        return False
