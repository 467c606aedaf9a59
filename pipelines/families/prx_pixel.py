"""PRX without a codec."""

from pipelines.families.prx import PRX


class PRXPixel(PRX):
    """It draws pixels. A tensor of its call is from -1 to 1."""

    classes = ("PRXPixel*",)
    output_type = "np"
    may_start_late = False  # there is no codec
