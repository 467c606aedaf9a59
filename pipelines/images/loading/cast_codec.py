"""Codecs that pipelines cast: some overflow in float16, so the classes that draw with them compute some of their passes
in float32. They cast the module there and back, though the runs of all tasks share it.

So cast, pass and cast back must be one turn.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from pipelines.families.registry import family_of


def is_cast(part: Any, pipeline_class: type[Any]) -> bool:
    """Return whether the class's calls cast this component."""
    config = getattr(part, "config", None)
    if not isinstance(part, torch.nn.Module) or not isinstance(config, dict) or part.dtype == torch.float32:
        return False
    return family_of(pipeline_class.__name__).casts_codec(config, pipeline_class)


@contextlib.contextmanager
def restored_dtype(codec: Any) -> Iterator[None]:
    """Give the codec back the dtype that it had once a pipeline call is over. A pass that runs out of memory, and some
    classes at their end, leave it as they have cast it; then every later call would fail."""
    dtype = getattr(codec, "dtype", None)
    try:
        yield
    finally:
        if dtype is not None and codec.dtype != dtype:
            codec.to(dtype)
