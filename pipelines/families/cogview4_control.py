"""CogView4 Control: its maps are read with noise that no seed decides."""

from pipelines.families.generic import Family


class CogView4Control(Family):
    """Refuses CogView4 Control: its call encodes the control image without its generator, so the same request gives
    other images, and runs share the noise."""

    classes = ("CogView4Control*",)
    refused = "its call reads the control image with noise of torch's global generator, which no seed decides"
