"""PRX without a codec."""

from pipelines.families.prx import PRX


class PRXPixel(PRX):
    """Hooks of PRX in pixel space. A tensor that its call returns is from -1 to 1."""

    classes = ("PRXPixel*",)
    output_type = "np"
    may_start_late = False  # there is no codec
