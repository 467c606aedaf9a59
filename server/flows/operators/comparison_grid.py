"""Comparison grids of several checkpoints, drawn by the running engine for the operator: nothing is held or charged.

The grid's metadata have the whole recipe, with every value that was used, so that sending it again draws it again.
"""

import asyncio
import json
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipelines.checkpoints.inspection.suggestion import suggested_spec
from pipelines.protocol.images import CheckpointSpec, Encoding, Failed, Finished, ImageJob, Sampling
from pipelines.protocol.python_command import python_command
from server.backends.job_events import QueueFull
from server.backends.worker_pool import WorkerPool
from server.catalog.images import Catalog, ImageModel
from server.errors import BadRequest, EngineFailure, Overloaded
from server.flows.operators.checkpoints import CheckpointManager
from server.state.served import ServedCatalog

AT_ONCE = 4  # jobs in the engine's queue, so that callers' images are drawn meanwhile
SAMPLED = ("steps", "guidance", "negative_prompt", "scheduler", "shift")  # of a candidate, in the recipe
SHEET = "pipelines.images.contact_sheet"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A column of the grid: a checkpoint, and how it draws."""

    name: str
    checkpoint: CheckpointSpec
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Recipe:
    """A comparison grid. `values` of `axis` are drawn side by side for each candidate; None is no axis."""

    candidates: tuple[Candidate, ...]
    prompts: tuple[str, ...]
    seeds: tuple[int, ...]
    axis: str | None
    values: tuple[Any, ...]
    width_px: int
    height_px: int
    cell_px: int

    @property
    def columns(self) -> list[tuple[Candidate, Any]]:
        """Return each candidate with each value of the axis, or with None if there is no axis."""
        return [(candidate, value) for candidate in self.candidates for value in self.values or (None,)]

    @property
    def rows(self) -> list[tuple[str, int]]:
        """Return each prompt with each seed."""
        return [(prompt, seed) for prompt in self.prompts for seed in self.seeds]


class ComparisonGrids:
    """Draws comparison grids."""

    def __init__(
        self, catalog: ServedCatalog, engine: WorkerPool, checkpoints: CheckpointManager, time_limit_s: float
    ) -> None:
        self._catalog = catalog
        self._engine = engine
        self._checkpoints = checkpoints
        self._time_limit_s = time_limit_s

    def candidate(self, name: str, changes: dict[str, Any]) -> Candidate:
        """Return the column of a served model, or of a checkpoint on the disk: with the catalog's values where the
        catalog serves it, else with those that were found in it. `changes` are fields of Sampling. Blocking. Raises
        ApiError."""
        catalog: Catalog = self._catalog.current
        model = catalog.find(name) or self._served(catalog, name)
        if model is not None:
            spec, steps = model.checkpoint, model.steps
        else:
            try:
                inspection, suggestion = self._checkpoints.inspect(name)
            except BadRequest as error:
                message = f"{error.message} Add it with `darkroom checkpoints add`, and name the model here."
                raise BadRequest(message, param="candidates") from error
            if inspection.problems:
                raise BadRequest(f"{name} can't be drawn: {'; '.join(inspection.problems)}", param="candidates")
            spec, steps = suggested_spec(name, inspection, suggestion), int(suggestion.steps.value)
        return Candidate(name, spec, replace(spec.sampling.resolve(steps), **changes))

    def _served(self, catalog: Catalog, checkpoint: str) -> ImageModel | None:
        """Return the first model that the checkpoint draws; None of one that is not served."""
        names = self._checkpoints.models_of(checkpoint)
        return next((catalog.models[name] for name in names if name in catalog.models), None)

    async def draw(self, recipe: Recipe, on_image: Callable[[], None] = lambda: None) -> bytes:
        """Draw the grid as a PNG; `on_image` is called after each of its images. Raises ApiError."""
        with tempfile.TemporaryDirectory(prefix="darkroom-proof-") as name:
            folder = Path(name)
            await self._draw_cells(recipe, folder, on_image)
            described = {
                "columns": [_column_title(candidate, recipe.axis, value) for candidate, value in recipe.columns],
                "rows": [f"seed {seed}: {prompt}" for prompt, seed in recipe.rows],
                "cell_px": recipe.cell_px,
                "recipe": _as_json(recipe),
            }
            await asyncio.to_thread((folder / "sheet.json").write_text, json.dumps(described))
            command = python_command(SHEET, name)
            process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
            _, errors = await process.communicate()
            if process.returncode:
                raise EngineFailure(f"The sheet could not be made: {errors.decode(errors='replace')[-300:]}")
            return await asyncio.to_thread((folder / "sheet.png").read_bytes)

    async def _draw_cells(self, recipe: Recipe, folder: Path, on_image: Callable[[], None]) -> None:
        """Draw the cells column by column, so that a checkpoint is loaded once. The first failure ends it all."""
        places = asyncio.Semaphore(AT_ONCE)

        async def draw(job: ImageJob, file: Path) -> None:
            async with places:
                data = await self._draw_one(job)
            await asyncio.to_thread(file.write_bytes, data)
            on_image()

        try:
            async with asyncio.TaskGroup() as tasks:
                for column, (candidate, value) in enumerate(recipe.columns):
                    for row, (prompt, seed) in enumerate(recipe.rows):
                        job = self._job(recipe, candidate, value, prompt, seed)
                        tasks.create_task(draw(job, folder / f"{row}-{column}.png"))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures

    async def _draw_one(self, job: ImageJob) -> bytes:
        try:
            events = self._engine.submit(job)
        except QueueFull as error:
            raise Overloaded(f"The server is busy: {error}.", error.retry_after_s) from error
        try:
            async for event in events:
                if isinstance(event, Finished):
                    return event.images[0].data
                if isinstance(event, Failed):
                    reason = event.detail.strip().splitlines()[-1] if event.detail.strip() else event.message
                    raise BadRequest(f"{job.checkpoint.name} could not draw: {reason}", param="candidates")
        finally:
            self._engine.cancel(job.id)
        raise EngineFailure("The image engine ended without a result.")

    def _job(self, recipe: Recipe, candidate: Candidate, value: Any, prompt: str, seed: int) -> ImageJob:
        changes = {} if recipe.axis is None else {recipe.axis: value}
        return ImageJob(
            id=f"proof-{uuid.uuid4().hex}",
            checkpoint=candidate.checkpoint,
            prompt=prompt,
            sampling=replace(candidate.sampling, **changes),
            width_px=recipe.width_px,
            height_px=recipe.height_px,
            n=1,
            seed=seed,
            references=(),
            mask=None,
            encoding=Encoding(),
            metadata={},
            time_limit_s=self._time_limit_s,
        )


def _column_title(candidate: Candidate, axis: str | None, value: Any) -> str:
    sampling = candidate.sampling
    values = f"{sampling.steps} steps, guidance {sampling.guidance:g}" if axis is None else f"{axis} {value}"
    return f"{candidate.name}\n{values}"


def _as_json(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe of a comparison grid as POST /admin/checkpoints/proof takes it."""
    return {
        "candidates": [
            {"name": candidate.name, "sampling": {name: getattr(candidate.sampling, name) for name in SAMPLED}}
            for candidate in recipe.candidates
        ],
        "prompts": list(recipe.prompts),
        "seeds": list(recipe.seeds),
        "axis": {recipe.axis: list(recipe.values)} if recipe.axis is not None else {},
        "size": f"{recipe.width_px}x{recipe.height_px}",
        "cell_px": recipe.cell_px,
    }
