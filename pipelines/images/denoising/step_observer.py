"""The work after each denoising step of one pipeline call: the caller's callback, and previews on demand.

Nothing here reads a value from the device unless a preview is due: a read waits until the device has caught up, and
after every step that would leave a GPU idle while the next step's kernels are launched.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from pipelines.images.denoising.previews import PreviewMap, noise_schedule, predict_x0

Pixels = NDArray[np.uint8]  # (height, width, channels): three, or four with alpha
PreviewFn = Callable[[], Pixels | None]  # the image so far; None if there is none yet
EMBEDDING_DIM: Final = 2  # rows, channels
OnStep = Callable[[PreviewFn], None]


class StepObserver:
    """Follows the steps of one pipeline call and predicts its image from the latents of the last two steps."""

    def __init__(
        self, on_step: OnStep, preview_map: PreviewMap, size: tuple[int, int], canvas: PreviewFn | None = None
    ) -> None:
        self._on_step = on_step
        self._preview_map = preview_map
        self._size = size
        self._canvas = canvas  # previews of the second pass, instead of the latents of one tile
        self.restore: Callable[[torch.Tensor], None] = lambda _: None  # changes a step's latents, in place
        self._latents: list[torch.Tensor] = []  # after the last two steps
        self._scheduler: Any = None
        self._timestep: Any = None

    def callback(self, accepted: Mapping[str, Any], scheduler: Any) -> dict[str, Any]:
        """Return the step callback as an argument. Pipelines that predate callback_on_step_end take `callback`; of
        those that take neither, the steps of `scheduler` are watched, which must be of this call alone."""

        def after_step(pipeline: Any, _: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
            self._after_step(pipeline.scheduler, timestep, tensors.get("latents"))
            return tensors

        if "callback_on_step_end" in accepted:
            return {"callback_on_step_end": after_step}
        if "callback" not in accepted:
            self._watch(scheduler)

        def after_latents(_: int, __: Any, latents: torch.Tensor) -> None:
            if latents.dim() > EMBEDDING_DIM:  # else a prior's step: an embedding, of which no image can be seen
                self._after_step(None, None, latents)

        return {"callback": after_latents, "callback_steps": 1}

    def _watch(self, scheduler: Any) -> None:
        step = scheduler.step

        @functools.wraps(step)  # pipelines look at its parameters
        def observed(model_output: Any, timestep: Any, *args: Any, **kwargs: Any) -> Any:
            stepped = step(model_output, timestep, *args, **kwargs)
            self._after_step(scheduler, timestep, stepped[0])
            return stepped

        scheduler.step = observed

    @property
    def last_latents(self) -> torch.Tensor | None:
        """Return the latents after the last step; None if the pipeline shows none."""
        return self._latents[-1][0] if self._latents else None

    def _after_step(self, scheduler: Any, timestep: Any, latents: torch.Tensor | None) -> None:
        if latents is not None:
            self.restore(latents)
            self._latents = [*self._latents[-1:], latents]
        self._scheduler, self._timestep = scheduler, timestep
        self._on_step(self._canvas or self._predicted_image)

    def _predicted_image(self) -> Pixels | None:
        if not self._latents:
            return None
        latents = self._latents[-1][0]
        if len(self._latents) == 2 and (noise := self._noise_around_step()):
            latents = predict_x0(self._latents[0][0], latents, *noise)
        return self._preview_map.render(latents, *self._size)

    def _noise_around_step(self) -> tuple[tuple[float, float], tuple[float, float]] | None:
        """Return (a, s) before and after the step that has just ended; None for a sampler whose schedule is unknown."""
        if self._scheduler is None or (schedule := noise_schedule(self._scheduler)) is None:
            return None
        now = (torch.as_tensor(self._scheduler.timesteps) == self._timestep).tolist()
        step = now.index(True) if True in now else -1
        return (schedule[step], schedule[step + 1]) if 0 <= step < len(schedule) - 1 else None
