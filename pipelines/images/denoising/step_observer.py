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

from pipelines.images.denoising.previews import PreviewMap, predict_x0

Pixels = NDArray[np.uint8]  # (height, width, channels): three, or four with alpha
PreviewFn = Callable[[], Pixels | None]  # the image so far; None if there is none yet
EMBEDDING_DIM: Final = 2  # rows, channels
OnStep = Callable[[PreviewFn], None]


class StepObserver:
    """Follows the steps of one pipeline call, and shows its image as the denoiser predicts it."""

    def __init__(
        self, on_step: OnStep, preview_map: PreviewMap, size: tuple[int, int], canvas: PreviewFn | None = None
    ) -> None:
        self._on_step = on_step
        self._preview_map = preview_map
        self._size = size
        self._canvas = canvas  # previews of the second pass, instead of the latents of one tile
        self.restore: Callable[[torch.Tensor], None] = lambda _: None  # changes a step's latents, in place
        self._latents: torch.Tensor | None = None  # after the last step
        self._predict: Callable[[], torch.Tensor | None] = lambda: None  # x0, at the last step

    def callback(self, accepted: Mapping[str, Any], scheduler: Any) -> dict[str, Any]:
        """Return the step callback as an argument. Pipelines that predate callback_on_step_end take `callback`; of
        those that take neither, the steps of `scheduler` are counted. It must be of this call alone."""

        def after_step(_: Any, __: int, ___: Any, tensors: dict[str, Any]) -> dict[str, Any]:
            self._after_step(tensors.get("latents"))
            return tensors

        def after_latents(_: int, __: Any, latents: torch.Tensor) -> None:
            if latents.dim() > EMBEDDING_DIM:  # else a prior's step: an embedding, of which no image can be seen
                self._after_step(latents)

        self._watch(scheduler, counts=not accepted.keys() & {"callback_on_step_end", "callback"})
        if "callback_on_step_end" in accepted:
            return {"callback_on_step_end": after_step}
        return {"callback": after_latents, "callback_steps": 1}

    def _watch(self, scheduler: Any, *, counts: bool) -> None:
        step = getattr(scheduler, "step", None)
        if step is None:
            return

        @functools.wraps(step)  # pipelines look at its parameters
        def observed(model_output: Any, timestep: Any, sample: Any, *args: Any, **kwargs: Any) -> Any:
            self._predict = functools.partial(predict_x0, scheduler, timestep, model_output, sample)
            stepped = step(model_output, timestep, sample, *args, **kwargs)
            if counts:
                self._after_step(stepped[0])
            return stepped

        scheduler.step = observed

    @property
    def last_latents(self) -> torch.Tensor | None:
        """Return the latents after the last step; None if the pipeline shows none."""
        return None if self._latents is None else self._latents[0]

    def _after_step(self, latents: torch.Tensor | None) -> None:
        if latents is not None:
            self.restore(latents)
            self._latents = latents
        self._on_step(self._canvas or self._predicted_image)

    def _predicted_image(self) -> Pixels | None:
        """Return the image so far; None where it can't be told from the noise."""
        x0 = self._predict()
        if x0 is None or self._latents is None or x0.shape != self._latents.shape:
            return None
        return self._preview_map.render(x0[0], *self._size)
