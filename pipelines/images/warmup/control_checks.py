"""The pictures that find which of a checkpoint's controls work, and with what."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from pipelines.catalog.checkpoint_files import CheckpointError
from pipelines.images.drawing.looks import NO_CHANGE, difference
from pipelines.protocol.images import CheckpointSpec, Control, ControlInput, EncodedImage, ImageJob, Picture
from pipelines.protocol.messages import Abilities, ControlledWith, Withdrawn

Draw = Callable[[ImageJob], Awaitable[tuple[EncodedImage, ...] | str]]  # the pictures, or why it failed, in one line
SQUARES_PX: Final = 8


@dataclass(frozen=True, slots=True)
class ControlChecker:
    """Tries each control alone, which must change the picture, and then what else the fitting ones work with.

    `plain` are the pictures of `job`, drawn without any. `job_with` makes a job with a reference, or with a mask too.
    """

    spec: CheckpointSpec
    draw: Draw
    plain: tuple[EncodedImage, ...]
    job: ImageJob
    job_with: Callable[[ControlledWith], ImageJob]

    async def find(self, abilities: Abilities) -> Abilities:
        """What of the controls works. Raises CheckpointError if there are some and none does."""
        controls = self.spec.controls
        if not controls:
            return abilities
        failures = {each.name: why for each in controls if (why := await self._try(each)) is not None}
        if len(failures) == len(controls):
            name, why = next(iter(failures.items()))
            raise CheckpointError(f"{self.spec.path}: none of its controls works with it: {name}: {why}")
        nets, adapters = (
            [each for each in controls if each.name not in failures and each.kind == kind]
            for kind in ("controlnet", "ip-adapter")
        )
        withdrawn = [Withdrawn(f"the control {name}", why) for name, why in failures.items()]
        at_once = len(nets)
        if at_once > 1 and isinstance(failed := await self.draw(self._with(self.job, nets[:2])), str):
            withdrawn.append(Withdrawn("two ControlNets", failed))
            at_once = 1
        nets_with = await self._ways(nets, abilities, abilities.controlnets_with, withdrawn)
        adapters_with = await self._ways(adapters, abilities, abilities.ip_adapters_with, withdrawn)
        return replace(
            abilities,
            unfit_controls=tuple(failures),
            controlnets_with=nets_with,
            controlnets_at_once=at_once,
            ip_adapters_with=adapters_with,
            withdrawn=(*abilities.withdrawn, *withdrawn),
        )

    async def _try(self, control: Control) -> str | None:
        """Why it does not work."""
        drawn = await self.draw(self._with(self.job, [control]))
        if isinstance(drawn, str):
            return drawn
        return None if difference(self.plain[0], drawn[0]) > 0 else NO_CHANGE

    async def _ways(
        self,
        controls: list[Control],
        abilities: Abilities,
        announced: tuple[ControlledWith, ...],
        withdrawn: list[Withdrawn],
    ) -> tuple[ControlledWith, ...]:
        """What the first of them works with, of what is announced and works without. Adds what fails to `withdrawn`."""
        works = {"text": abilities.text, "image": abilities.references > 0, "mask": abilities.mask}
        ways: list[ControlledWith] = []
        for way in [way for way in announced if works[way]] if controls else []:
            drawn = await self.draw(self._with(self.job_with(way), controls[:1]))
            if isinstance(drawn, str):
                withdrawn.append(Withdrawn(f"the control {controls[0].name} with {way}", drawn))
            else:
                ways.append(way)
        return tuple(ways)

    def _with(self, job: ImageJob, controls: list[Control]) -> ImageJob:
        squares = _squares(job.width_px, job.height_px)
        return replace(job, controls=tuple(ControlInput(each.name, squares, each.strength) for each in controls))


def _squares(width_px: int, height_px: int) -> Picture:
    """Black and white squares: edges, depth and a pose to some ControlNet, and a picture to an IP-Adapter."""
    across, down = np.arange(width_px) // SQUARES_PX, np.arange(height_px) // SQUARES_PX
    light = ((across[None, :] + down[:, None]) % 2 * 255).astype(np.uint8)
    return Picture(width_px, height_px, "RGB", np.repeat(light[:, :, None], 3, axis=2).tobytes())
