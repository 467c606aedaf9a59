"""Codecs that pipelines cast. SDXL's overflows in float16, so the classes of that family compute some of its passes in
float32: they cast the module there and back, though the runs of all tasks share it.

So cast, pass and cast back must be one turn.
"""

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any, Final

import torch

OPTION: Final = "force_upcast"  # of a codec's config


def is_cast(part: Any, pipeline_class: type[Any]) -> bool:
    """Whether the class's calls cast this component. AutoencoderKL's own default is to ask for it; most classes, such
    as those of FLUX, have no code that looks."""
    if not getattr(getattr(part, "config", None), OPTION, False) or part.dtype == torch.float32:
        return False
    methods = (inspect.unwrap(method) for _, method in inspect.getmembers(pipeline_class, inspect.isfunction))
    return any(OPTION in method.__code__.co_names for method in methods)


@contextlib.contextmanager
def restored_dtype(codec: Any) -> Iterator[None]:
    """A pipeline call, after which the codec has the dtype that it had. A pass without memory, and some classes at
    their end, leave it as they have cast it; then every later call would fail."""
    dtype = getattr(codec, "dtype", None)
    try:
        yield
    finally:
        if dtype is not None and codec.dtype != dtype:
            codec.to(dtype)
