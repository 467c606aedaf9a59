"""Image to image and inpainting by a pipeline that only draws from text: it starts late, from noised latents.

A pipeline's own `prepare_latents` makes the noise, and its scheduler the schedule. Both are of one call, so both are
wrapped: the schedule loses its first steps, and the noise is mixed with the image's latents in place. With a mask, the
part that it leaves out is put back at every step, noised as far as the step is.
"""

import copy
import functools
from typing import Any

import torch
from PIL import Image

from pipelines.images.tasks import UnsupportedTask


class LateStart:
    """One pipeline call that runs the last `run` steps of its schedule on an image. Raises UnsupportedTask during the
    call if the latents are of a form that is not known."""

    def __init__(self, pipeline: Any, image: Image.Image, run: int, mask: Image.Image | None = None) -> None:
        """Wrap the pipeline's methods for the call. `mask` is of mode "L"; white is painted. The pipeline and its
        scheduler must be of this call alone."""
        self._pipeline = pipeline
        self._image = image
        self._mask = mask
        self._run = run
        self._latents: torch.Tensor | None = None  # the call's own, changed in place
        self._clean = self._noise = torch.empty(0)
        self._factors: list[tuple[float, float]] = []  # of image and noise, before each step and after the last
        self._painted: torch.Tensor | None = None  # 1 where the mask paints, of the latents' size
        self._begun = False  # the schedule is there
        self._steps = 0  # that are done
        prepare, schedule = pipeline.prepare_latents, pipeline.scheduler.set_timesteps

        def prepare_latents(*args: Any, **kwargs: Any) -> Any:
            latents = prepare(*args, **kwargs)
            self._set_latents(latents)
            return latents

        @functools.wraps(schedule)  # pipelines look at its parameters
        def set_timesteps(*args: Any, **kwargs: Any) -> None:
            schedule(*args, **kwargs)
            self._skip_steps()

        pipeline.prepare_latents = prepare_latents
        pipeline.scheduler.set_timesteps = set_timesteps

    def _set_latents(self, latents: Any) -> None:
        if not isinstance(latents, torch.Tensor) or latents.dim() != 4:
            raise UnsupportedTask(f"{type(self._pipeline).__name__} has latents that an image is not known to have")
        self._latents, self._clean = latents, self._encode(latents)
        self._noise = latents / getattr(self._pipeline.scheduler, "init_noise_sigma", 1.0)
        if self._mask is not None:
            size = (latents.shape[-1], latents.shape[-2])
            painted = torch.frombuffer(
                bytearray(self._mask.resize(size, Image.Resampling.BOX).tobytes()), dtype=torch.uint8
            )
            self._painted = painted.view(size[1], size[0]).to(latents) / 255
        self._begin()

    def _skip_steps(self) -> None:
        scheduler = self._pipeline.scheduler
        start = len(scheduler.timesteps) - min(self._run * scheduler.order, len(scheduler.timesteps))
        scheduler.timesteps = scheduler.timesteps[start:]
        if getattr(scheduler, "sigmas", None) is not None:
            scheduler.sigmas = scheduler.sigmas[start:]
        self._begun = True
        self._begin()

    def _begin(self) -> None:
        """Noise the latents for the first step, once the latents and the schedule are there, in whichever order the
        pipeline makes them."""
        if self._begun and self._latents is not None:
            self._factors = _noise_factors(self._pipeline.scheduler)
            self._latents.copy_(self._add_noise(0))

    def _add_noise(self, step: int) -> torch.Tensor:
        """Return the image's latents, noised as they are before a step."""
        clean, noise = self._factors[step]
        return clean * self._clean + noise * self._noise

    def restore(self, latents: torch.Tensor) -> None:
        """Put back the part that the mask leaves out. Call it after each step with its latents."""
        self._steps += 1
        if self._painted is not None:
            kept = self._add_noise(self._steps).to(latents.dtype)
            latents.copy_(torch.lerp(kept, latents, self._painted.to(latents.dtype)))

    def _encode(self, like: torch.Tensor) -> torch.Tensor:
        """Return the image's latents, in the size of those of the call: some pipelines draw in a size of their own."""
        codec = self._pipeline.vae
        if hasattr(codec, "bn") or getattr(codec.config, "latents_mean", None) is not None:
            raise UnsupportedTask(f"the latents of {type(codec).__name__} have another scale")
        encoded = self._encode_at(self._image.size)
        if encoded.shape[-2:] != like.shape[-2:]:
            factor = self._image.width / encoded.shape[-1]
            encoded = self._encode_at((round(like.shape[-1] * factor), round(like.shape[-2] * factor)))
        if encoded.shape != like.shape:
            raise UnsupportedTask(f"{type(self._pipeline).__name__} draws latents of another shape than an image's")
        shift = getattr(codec.config, "shift_factor", None) or 0.0
        latents: torch.Tensor = (encoded - shift) * codec.config.scaling_factor
        return latents.to(like)

    def _encode_at(self, size: tuple[int, int]) -> torch.Tensor:
        codec = self._pipeline.vae
        image = self._image if self._image.size == size else self._image.resize(size, Image.Resampling.LANCZOS)
        pixels = self._pipeline.image_processor.preprocess(image)
        encoded = codec.encode(pixels.to(self._pipeline._execution_device, codec.dtype))
        latents: torch.Tensor = encoded.latent_dist.mode() if hasattr(encoded, "latent_dist") else encoded.latent
        return latents


def _noise_factors(scheduler: Any) -> list[tuple[float, float]]:
    """Return by how much image and noise count before each step, and after the last. They are computed on the host, all
    at once: at each step the schedule would be read from the device. Raises UnsupportedTask."""
    on_host = copy.copy(scheduler)
    on_host.timesteps = scheduler.timesteps.cpu()
    on_host._begin_index = on_host._step_index = None  # it goes by the timesteps alone
    one, zero = torch.ones(len(on_host.timesteps)), torch.zeros(len(on_host.timesteps))
    if hasattr(scheduler, "scale_noise"):  # flow matching
        factors = (on_host.scale_noise(clean, on_host.timesteps, noise) for clean, noise in ((one, zero), (zero, one)))
    elif hasattr(scheduler, "add_noise"):
        factors = (on_host.add_noise(clean, noise, on_host.timesteps) for clean, noise in ((one, zero), (zero, one)))
    else:
        raise UnsupportedTask(f"{type(scheduler).__name__} can't start from an image")
    return [*zip(*(factor.tolist() for factor in factors), strict=True), (1.0, 0.0)]
