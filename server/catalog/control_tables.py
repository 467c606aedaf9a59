"""The tables of networks that requests name in `controls`, with an image for each."""

from typing import Annotated

from pydantic import Field

from server.catalog.toml import Strict

ControlName = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=100,
        description="a name of letters, digits, '.', '_' and '-'",
    ),
]


class T2IAdapterTable(Strict):
    """[[t2i_adapters]]: `pipelines.protocol.images.Control`."""

    name: ControlName
    """What requests send."""
    checkpoint: Annotated[str, Field(min_length=1)]
    """A diffusers folder."""
    map: Annotated[str, Field(min_length=1, max_length=100)]
    """The kind of map that it follows, for people: `canny`, `sketch`."""
    strength: Annotated[float, Field(gt=0, le=2)] = 1.0
    """Strength of a request that does not say its own."""


class ControlNetTable(T2IAdapterTable):
    """[[controlnets]]: the same, and which of its kinds."""

    mode: Annotated[int, Field(ge=0)] | None = None
    """For a ControlNet of several kinds: the number of this one."""


class IPAdapterTable(Strict):
    """[[ip_adapters]]: `pipelines.protocol.images.Control`."""

    name: ControlName
    """What requests send."""
    checkpoint: Annotated[str, Field(pattern=r"\.safetensors$", description="a .safetensors file")]
    """A file."""
    image_encoder: Annotated[str, Field(min_length=1)]
    """The transformers folder of the encoder that it was trained with."""
    strength: Annotated[float, Field(gt=0, le=2)] = 1.0
    """Strength of a request that does not say its own."""
