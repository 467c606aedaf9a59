"""Comparison grids as jobs: their progress, their place in the queue, and their end. The engine is a gate here."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from server.errors import BadRequest
from server.flows.operators.comparison_grid import Recipe
from tests.support.in_process import InProcess
from tests.support.polling import eventually
from tests.unit.http.operators import request, running

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running"]

LATER = {"Prefer": "respond-async"}
PATH = "/admin/checkpoints/proof"
BODY = {"candidates": [{"name": "starter-alpha"}], "prompts": ["a boat"], "seeds": [1, 2], "size": "64x64"}


class Gate:
    """Draws one image of a grid, and the rest once it is open."""

    def __init__(self, outcome: bytes | Exception = b"sheet") -> None:
        self.opened = asyncio.Event()
        self.outcome = outcome

    async def draw(self, recipe: Recipe, on_image: Callable[[], None]) -> bytes:
        on_image()
        await self.opened.wait()
        on_image()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


async def begin(running: InProcess, gate: Gate) -> str:
    running.services.operations.grid_jobs._grids = gate  # type: ignore[assignment]
    answer = await request(running, "POST", PATH, BODY, **LATER)
    assert answer.status_code == 202, answer.text
    begun: dict[str, Any] = answer.json()
    assert (begun["state"], begun["total"], answer.headers["location"]) == ("running", 2, f"{PATH}/{begun['id']}")
    identity: str = begun["id"]
    return identity


async def state(running: InProcess, job: str) -> dict[str, Any]:
    answer: dict[str, Any] = (await request(running, "GET", f"{PATH}/{job}")).json()
    return answer


async def test_a_grid_tells_its_progress_and_stands_in_the_queue(running: InProcess) -> None:
    gate = Gate()
    job = await begin(running, gate)
    await eventually(lambda: running.services.operations.grid_jobs.show(job).drawn == 1)
    assert (await request(running, "GET", f"{PATH}/{job}/sheet")).json()["error"]["code"] == "job_not_finished"
    [queued] = (await request(running, "GET", "/admin/jobs")).json()["data"]
    assert [queued[name] for name in ("id", "kind", "model", "state", "step", "steps", "size")] == [
        job, "grid", "starter-alpha", "running", 1, 2, "64x64",
    ]  # fmt: skip
    gate.opened.set()
    await eventually(lambda: running.services.operations.grid_jobs.show(job).state == "succeeded")
    sheet = await request(running, "GET", f"{PATH}/{job}/sheet")
    assert (sheet.content, sheet.headers["content-type"]) == (b"sheet", "image/png")
    assert (await request(running, "GET", "/admin/jobs")).json()["data"] == []


async def test_an_operator_cancels_a_grid_in_the_queue(running: InProcess) -> None:
    job = await begin(running, Gate())
    assert (await request(running, "DELETE", f"/admin/jobs/{job}")).status_code == 200
    assert (await state(running, job))["state"] == "cancelled"
    assert (await request(running, "DELETE", f"/admin/jobs/{job}")).status_code == 404
    changes = (await request(running, "GET", "/admin/audit")).json()["data"]
    assert (changes[0]["action"], changes[0]["target"]) == ("job.cancel", job)


async def test_a_grid_that_fails_says_why(running: InProcess) -> None:
    gate = Gate(BadRequest("starter-alpha could not draw: no.", param="candidates"))
    gate.opened.set()
    job = await begin(running, gate)
    await eventually(lambda: running.services.operations.grid_jobs.show(job).state == "failed")
    assert (await state(running, job))["error"]["message"] == "starter-alpha could not draw: no."
    waited = await request(running, "POST", PATH, BODY)  # without the header, the answer is the sheet or the error
    assert (waited.status_code, waited.json()["error"]["param"]) == (400, "candidates")
    assert (await request(running, "GET", f"{PATH}/grid_none")).status_code == 404


async def test_a_checkpoint_that_is_served_is_drawn_with_the_catalogs_values(running: InProcess) -> None:
    grids, catalog = running.services.operations.comparison_grids, running.services.served.catalog.current
    models = [model for model in catalog.models.values() if model.checkpoint.name == "starter-alpha"]
    candidate = await asyncio.to_thread(grids.candidate, "starter-alpha", {"guidance": 3.5})
    assert candidate.sampling.steps in {model.steps for model in models}
    assert candidate.checkpoint in [model.checkpoint for model in models]
    assert candidate.sampling.guidance == 3.5
    plain = await asyncio.to_thread(grids.candidate, "starter-alpha", {})
    assert plain.sampling.guidance == models[0].checkpoint.sampling.guidance
