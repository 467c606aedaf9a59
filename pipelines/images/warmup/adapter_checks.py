"""The images that find which adapters of a checkpoint's folder fit, and that none leaves anything behind."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.weight_file.header import WEIGHT_FILES
from pipelines.images.drawing.image_checks import NO_CHANGE, ONE_COLOUR, difference, is_single_colour
from pipelines.images.warmup.control_checks import Draw
from pipelines.protocol.images import CheckpointSpec, EncodedImage, ImageJob
from pipelines.protocol.messages import Capabilities, FailedCheck

MAX_ADAPTERS: Final = 16  # that are tried: each is loaded. Others are checked when a call names them
WEIGHTS: Final = (1.0, 4.0)  # at which one must change the image: little, or as much as a call may
LEFT_BEHIND: Final = "the model draws another image after it"
Images = tuple[EncodedImage, ...]


@dataclass(frozen=True, slots=True)
class AdapterChecker:
    """Tries each adapter alone: it must give an image of several colours, and another one than `job` without it, which
    must be the same again afterwards. `refuse` is called for a file after which it is not: the weights are loaded
    anew."""

    spec: CheckpointSpec
    draw: Draw
    job: ImageJob
    refuse: Callable[[Path, str], None]

    async def find(self, capabilities: Capabilities) -> Capabilities:
        """Try the adapters of the folder, and return the capabilities with those that work. Raises CheckpointError if
        there are adapters and none fits."""
        folder = self.spec.runtime.lora_folder
        files = sorted(folder.glob(WEIGHT_FILES)) if folder is not None else []
        if not files:
            return capabilities
        plain = await self.draw(self.job)
        if isinstance(plain, str):
            raise CheckpointError(f"{self.spec.path}: without an adapter: {plain}")
        failures = {
            file.stem: why for file in files[:MAX_ADAPTERS] if (why := await self._try(file, plain)) is not None
        }
        if len(failures) == len(files):
            name, reason = next(iter(failures.items()))
            raise CheckpointError(
                f"runtime.lora_folder: no adapter in {folder} fits {self.spec.path}: {name}: {reason}"
            )
        return _without_adapters(capabilities, failures)

    async def _try(self, file: Path, plain: Images) -> str | None:
        """Try an adapter, and return the reason why it does not work; None if it works."""
        found = await self._changes(file, plain)
        if await self._leaves_something(plain):
            self.refuse(file, LEFT_BEHIND)
            return LEFT_BEHIND
        return found

    async def _changes(self, file: Path, plain: Images) -> str | None:
        """Draw with an adapter: None if the image with it is another one, else the reason why it does not work."""
        for weight in WEIGHTS:
            loras = ((file.stem, weight),)
            drawn = await self.draw(replace(self.job, sampling=replace(self.job.sampling, loras=loras)))
            if isinstance(drawn, str):
                return drawn
            if is_single_colour(drawn[0]) and not is_single_colour(plain[0]):
                return ONE_COLOUR if weight == WEIGHTS[0] else None
            if difference(plain[0], drawn[0]) > 0:
                return None
        return NO_CHANGE

    async def _leaves_something(self, plain: Images) -> bool:
        """Return whether the job's image is another one now. One that differs from draw to draw shows nothing."""
        again = [await self.draw(self.job)]
        if _are_same_images(plain, again[0]):
            return False
        again.append(await self.draw(self.job))
        return _are_same_images(again[0], again[1])


def _are_same_images(one: Images | str, other: Images | str) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return isinstance(one, str) and isinstance(other, str)
    return difference(one[0], other[0]) == 0


def _without_adapters(capabilities: Capabilities, failures: Mapping[str, str]) -> Capabilities:
    failed_checks = (FailedCheck(f"the adapter {name}", why) for name, why in failures.items())
    return replace(
        capabilities, unsupported_adapters=tuple(failures), failed_checks=(*capabilities.failed_checks, *failed_checks)
    )
