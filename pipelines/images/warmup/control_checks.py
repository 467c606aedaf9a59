"""The images that find which of a checkpoint's controls work, and with which inputs."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from pipelines.checkpoints.classes.index import denoiser_name
from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.folder.files import CheckpointFiles
from pipelines.checkpoints.folder.folder import read_json
from pipelines.checkpoints.folder.own_parts import CALLED, KEYS, why_it_does_not_fit
from pipelines.images.drawing.image_checks import NO_CHANGE, difference
from pipelines.protocol.images import (
    CheckpointSpec,
    Control,
    ControlInput,
    ControlKind,
    EncodedImage,
    ImageJob,
    RawImage,
)
from pipelines.protocol.messages import Capabilities, ControlledWith, FailedCheck

Draw = Callable[[ImageJob], Awaitable[tuple[EncodedImage, ...] | str]]  # the images, or why it failed, in one line
SQUARES_PX: Final = 8


@dataclass(frozen=True, slots=True)
class ControlChecker:
    """Tries each control alone, which must change the image, and then the inputs that the fitting ones work with.

    `plain` are the images of `job`, drawn without any. `job_with` makes a job with a reference, or with a mask too.
    """

    spec: CheckpointSpec
    draw: Draw
    plain: tuple[EncodedImage, ...]
    job: ImageJob
    job_with: Callable[[ControlledWith], ImageJob]

    async def find(self, capabilities: Capabilities) -> Capabilities:
        """Try the controls, and return the capabilities with those that work. Raises CheckpointError if there are
        controls and none works."""
        await self._try_own_map()
        controls = [each for each in self.spec.controls if each.kind != "map"]
        if not controls:
            return capabilities
        denoiser = self._find_denoiser()
        failures = {each.name: why for each in controls if (why := await self._try(each, denoiser)) is not None}
        if len(failures) == len(controls):
            name, why = next(iter(failures.items()))
            keys = ", ".join(dict.fromkeys(KEYS[each.kind] for each in controls))
            message = f"{keys}: {self.spec.path}: none of its controls works with it: {name}: {why}"
            raise CheckpointError(message)
        failed_checks = [FailedCheck(f"the control {name}", why) for name, why in failures.items()]
        by_kind = {
            kind: [each for each in controls if each.name not in failures and each.kind == kind] for kind in KEYS
        }
        found: dict[str, Any] = {
            f"{field}_with": await self._working_inputs(by_kind[kind], capabilities, kind, failed_checks)
            for kind, field in KEYS.items()
        }
        found |= {
            f"{field}_at_once": await self._at_once(by_kind[kind], CALLED[kind], failed_checks)
            for kind, field in KEYS.items()
            if kind != "ip-adapter"
        }
        failed_checks[:0] = capabilities.failed_checks
        return replace(capabilities, unsupported_controls=tuple(failures), failed_checks=tuple(failed_checks), **found)

    async def _try_own_map(self) -> None:
        """Draw from another map, which must change the image. Raises CheckpointError."""
        if (own := self.spec.own_map) is None:
            return
        plain = RawImage(1, 1, "RGB", bytes(3))
        drawn = await self.draw(replace(self.job, controls=(ControlInput(own.name, plain, own.strength),)))
        if not isinstance(drawn, str) and difference(self.plain[0], drawn[0]) == 0:
            raise CheckpointError(f"{self.spec.path}: the map that it draws from changes nothing")

    async def _at_once(self, nets: list[Control], called: str, failed_checks: list[FailedCheck]) -> int:
        """Find how many networks of a kind an image may have."""
        if len(nets) > 1 and isinstance(failed := await self.draw(self._add_controls(self.job, nets[:2])), str):
            failed_checks.append(FailedCheck(f"two {called}s", failed))
            return 1
        return len(nets)

    async def _try(self, control: Control, denoiser: Path | None) -> str | None:
        """Try a control, and return the reason why it does not work; None if it works. `denoiser` is its folder."""
        if control.kind != "ip-adapter" and denoiser is not None:
            config, own = (read_json(each / "config.json") for each in (control.path, denoiser))
            if (why := why_it_does_not_fit(control, config, own, denoiser)) is not None:
                return why
        drawn = await self.draw(self._add_controls(self.job, [control]))
        if isinstance(drawn, str):
            return drawn
        return None if difference(self.plain[0], drawn[0]) > 0 else NO_CHANGE

    def _find_denoiser(self) -> Path | None:
        """Return the folder of the denoiser; None if the checkpoint has moved since it was loaded, and drawing
        decides."""
        try:
            folder = CheckpointFiles.of(self.spec).checked_folder
        except CheckpointError:
            return None
        return folder.path / denoiser_name(folder.index)

    async def _working_inputs(
        self,
        controls: list[Control],
        capabilities: Capabilities,
        kind: ControlKind,
        failed_checks: list[FailedCheck],
    ) -> tuple[ControlledWith, ...]:
        """Find the inputs that the first control works with, among those that are announced and work without it.
        Failures are appended to `failed_checks`."""
        ways: list[ControlledWith] = []
        for way in (
            [way for way in capabilities.controlled_with(kind) if way in capabilities.inputs] if controls else []
        ):
            drawn = await self.draw(self._add_controls(self.job_with(way), controls[:1]))
            if isinstance(drawn, str):
                failed_checks.append(FailedCheck(f"the control {controls[0].name} with {way}", drawn))
            else:
                ways.append(way)
        return tuple(ways)

    def _add_controls(self, job: ImageJob, controls: list[Control]) -> ImageJob:
        map_ = checkerboard(job.width_px, job.height_px)
        added = (ControlInput(each.name, map_, each.strength) for each in controls)
        return replace(job, controls=(*job.controls, *added))


def checkerboard(width_px: int, height_px: int) -> RawImage:
    """Return an image of black and white squares, in which ControlNets for edges, depth or poses find something, and
    IP-Adapters too."""
    across, down = np.arange(width_px) // SQUARES_PX, np.arange(height_px) // SQUARES_PX
    light = ((across[None, :] + down[:, None]) % 2 * 255).astype(np.uint8)
    return RawImage(width_px, height_px, "RGB", np.repeat(light[:, :, None], 3, axis=2).tobytes())
