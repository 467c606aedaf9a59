"""Cosmos 2: its classes load NVIDIA's guardrail, whatever else is loaded."""

from pipelines.families.generic import Family


class Cosmos2(Family):
    """Refuses Cosmos 2: its constructor raises without the guardrail, whose models are on a hub."""

    classes = ("Cosmos2TextToImage*",)
    refused = "it needs the guardrail of NVIDIA, which its code loads from a hub, and no hub is asked here"
