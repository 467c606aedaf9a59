"""Kandinsky 3: it rounds sizes up."""

from pipelines.families.generic import Family


class Kandinsky3(Family):
    """Its codec has another name than those of others, so that no image starts late."""

    classes = ("Kandinsky3*",)
    output_type = "np"
    multiple_px = 64  # to which the call rounds both sides up
    may_start_late = False
