"""Kandinsky 3: it rounds sizes up."""

from pipelines.families.generic import Family


class Kandinsky3(Family):
    """Hooks of Kandinsky 3. Its codec is not called `vae`, so no image can start late."""

    classes = ("Kandinsky3*",)
    output_type = "np"
    multiple_px = 64  # to which the call rounds both sides up
    may_start_late = False
