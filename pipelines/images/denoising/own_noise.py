"""The noise of one image: its seed decides it, whatever else the process draws meanwhile.

Pipelines hand an image's generator on to most of what draws noise. The rest they leave to torch's global generator,
which all threads share: the steps of flow matching, noise samplers, latents that a codec samples for some maps and
references, and tokens that a language model draws. Here these get a generator too. Steps go on with the image's own.
The others draw as if `torch.manual_seed(seed)` had been called for this image alone, so that its first noise stays that
of its seed.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from pipelines.images.scheduling.batching import SEED_MODULUS

WORD: Final = 2**32  # torch seeds its generator (MT19937) by one word, and drops the rest of a larger seed
STATE_BYTES: Final = slice(24, 24 + 8 * 624)  # of what get_state returns: behind the seed and the place in the state
_current: ContextVar[torch.Generator | None] = ContextVar("left_to_torch", default=None)


def new_generator(seed: int) -> torch.Generator:
    """Return the generator of a seed, the same on every device: a CPU's. Below 2^32 it is torch's own. Larger seeds
    initialise it by both of their words, low and high, as `init_by_array` of MT19937's authors does."""
    generator = torch.Generator("cpu").manual_seed(seed)
    if seed >= WORD:
        state = generator.get_state()
        words = np.random.RandomState([seed % WORD, seed // WORD]).get_state()[1]  # type: ignore[index]  # a tuple
        state[STATE_BYTES] = torch.from_numpy(np.asarray(words, np.uint64).view(np.uint8))
        generator.set_state(state)
    return generator


def tile_seed(seed: int, number: int) -> int:
    """Return the seed of a tile of an image's second pass, of one word if the image's is."""
    return (seed * 1_000_003 + number + 1) % (WORD if seed < WORD else SEED_MODULUS)


def bind_generator(owned: Any, generator: torch.Generator) -> None:
    """Have each method of an image's own object, such as its scheduler, draw from this generator where the method takes
    one and gets none. A sampler of noise that it makes by a seed begins with the generator's."""
    for name, function in inspect.getmembers(type(owned), inspect.isfunction):
        if not name.startswith("__") and "generator" in inspect.signature(function).parameters:
            setattr(owned, name, _with_generator(getattr(owned, name), generator))
    for name in inspect.signature(type(owned).__init__).parameters:
        if name.endswith("seed") and getattr(owned, name, generator) is None:
            setattr(owned, name, generator.initial_seed())


def _with_generator(method: Callable[..., Any], generator: torch.Generator) -> Callable[..., Any]:
    signature = inspect.signature(method)

    @functools.wraps(method)  # pipelines look at its parameters
    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        if given.arguments.get("generator") is None:
            given.arguments["generator"] = generator
        return method(*given.args, **given.kwargs)

    return call


@contextmanager
def own_noise(seed: int) -> Iterator[None]:
    """Let what a pipeline leaves to torch draw by this seed within, on this thread, as far as `watch_noise` has seen to
    it."""
    token = _current.set(new_generator(seed))
    try:
        yield
    finally:
        _current.reset(token)


def watch_noise(parts: Iterable[Any]) -> None:
    """Let components that all images share draw by the seed of the image that calls them: codecs, which sample the
    latents of an image, and language models, which sample tokens."""
    for part in parts:
        if isinstance(part, torch.nn.Module):
            for name, wrap in (("encode", _bind_posterior), ("generate", _bind_tokens)):
                if callable(method := getattr(part, name, None)):
                    setattr(part, name, wrap(method))


def _bind_posterior(encode: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(encode)
    def call(*args: Any, **kwargs: Any) -> Any:
        encoded, generator = encode(*args, **kwargs), _current.get()
        if generator is not None and hasattr(encoded[0], "sample"):
            bind_generator(encoded[0], generator)
        return encoded

    return call


def _bind_tokens(generate: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(generate)
    def call(*args: Any, **kwargs: Any) -> Any:
        generator = _current.get()
        if generator is None:
            return generate(*args, **kwargs)
        with _TokenChoice(generator):
            return generate(*args, **kwargs)

    return call


class _TokenChoice(TorchFunctionMode):
    """Lets the choices of a thread's language model come from a generator of the CPU: transformers passes none on."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self._generator = generator

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.multinomial and kwargs.get("generator") is None:
            weights, *rest = args
            return func(weights.cpu(), *rest, **kwargs, generator=self._generator).to(weights.device)
        return func(*args, **kwargs)
