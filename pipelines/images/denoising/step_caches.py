"""Step caches of runs that take turns: each run has states of its own, in every pipeline class.

diffusers' caches keep a state for each named context of a denoiser ("cond", "uncond"), which some pipelines set around
each forward pass and others do not. Here a context's name begins with the run, and it is set once the run has its turn,
so that cached runs interleave. Where a pipeline sets none, as some do in image-to-image and inpainting, the forward
passes of a step are numbered: with guidance there are two, and each has a state of its own.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch


class _Current(threading.local):
    """A run has a thread of its own."""

    context: tuple[str, dict[str, Any]] | None = None  # the pipeline's own name and arguments, inside its `with`
    forwards: int = 0  # without a context, since the last step
    entered: contextlib.AbstractContextManager[None] | None = None  # while the denoiser runs


class StepCaches:
    """Takes over the cache contexts of a denoiser with an enabled cache. Create it after the hooks that wait for the
    device, so that no other run changes the context between the two.
    """

    def __init__(self, denoiser: Any) -> None:
        self._denoiser = denoiser
        self._set_context = denoiser.cache_context
        self._current = _Current()
        denoiser.cache_context = self._remember_context
        denoiser._reset_stateful_cache = self._reset_at_the_end  # pipelines call it when they end
        denoiser.register_forward_pre_hook(self._enter)
        denoiser.register_forward_hook(self._leave, always_call=True)

    def begin_run(self) -> None:
        """Drop the cached states of this thread's last run, and of its last pipeline call."""
        self._current.forwards = 0
        prefix = _run_prefix()
        for states in self._states():
            for name in [name for name in states if name.startswith(prefix)]:
                del states[name]

    def end_step(self) -> None:
        """Mark the next forward pass as the first one of a step."""
        self._current.forwards = 0

    @contextlib.contextmanager
    def _remember_context(self, name: str, **arguments: Any) -> Iterator[None]:
        self._current.context = name, arguments
        try:
            yield
        finally:
            self._current.context = None

    def _enter(self, *_: object) -> None:
        current = self._current
        name, arguments = current.context or (f"forward {current.forwards}", {})
        current.forwards += 1
        current.entered = self._set_context(f"{_run_prefix()}{name}", **arguments)
        current.entered.__enter__()

    def _leave(self, *_: object) -> None:
        entered, self._current.entered = self._current.entered, None
        if entered is not None:
            entered.__exit__(None, None, None)

    def _reset_at_the_end(self, recurse: bool = True) -> None:
        self.begin_run()

    def _states(self) -> Iterator[dict[str, Any]]:
        """Yield the states by context name, of every hook. The library resets those of all contexts at once, so this
        reaches inside."""
        from diffusers.hooks.hooks import StateManager

        modules: Iterator[torch.nn.Module] = self._denoiser.modules()
        for module in modules:
            registry = getattr(module, "_diffusers_hook", None)
            for hook in registry.hooks.values() if registry is not None else ():
                yield from (part._state_cache for part in vars(hook).values() if isinstance(part, StateManager))


def _run_prefix() -> str:
    return f"run {threading.get_ident()} "
