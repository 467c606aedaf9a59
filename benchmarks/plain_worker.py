"""`python -m benchmarks.plain_worker FD KIND`: a worker with engines that need no torch, so that it starts in half a
second. It speaks the real protocol over the real connection: images are of one colour, texts are always the same.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import numpy as np

from pipelines import worker
from pipelines.checkpoints.folder.files import CheckpointFiles
from pipelines.checkpoints.folder.own_parts import own_parts
from pipelines.images.job_files import encode
from pipelines.protocol.chat import (
    Admitted,
    ChatEvent,
    ChatFinished,
    ChatJob,
    ChatSpec,
    ChatUsage,
    ChoiceFinished,
    CountFinished,
    CountJob,
    TextDelta,
    ToolCallDelta,
)
from pipelines.protocol.images import (
    CheckpointSpec,
    EncodedImage,
    Event,
    Failed,
    Finished,
    ImageJob,
    Preview,
    Progress,
    Queued,
    Started,
)
from pipelines.protocol.messages import Capabilities, FromWorker, Ready, WorkerMemory

STEP_S = 0.04
TOKEN_S = 0.01
MOST_WORDS = 500
WORDS = ("The ", "colour ", "is ", "plain", ".")
CANCELLED = Failed("cancelled", "The job was cancelled; nothing was charged.")


class PlainImages:
    """Draws one job at a time, in the steps that it asks for."""

    def __init__(self) -> None:
        self._device = asyncio.Lock()
        self._waiting: set[str] = set()  # jobs that are not cancelled

    async def submit(self, job: ImageJob) -> AsyncIterator[Event]:
        """The job's events, up to the last one."""
        self._waiting.add(job.id)
        yield Queued()
        async with self._device:
            yield Started()
            for step in range(job.sampling.steps):
                if job.id not in self._waiting:
                    yield CANCELLED
                    return
                await asyncio.sleep(STEP_S)
                yield Progress(step + 1, job.sampling.steps)
                shown = [(job.previews + 1) * done // job.sampling.steps for done in (step, step + 1)]
                if shown[0] < shown[1] <= job.previews:
                    yield Preview(0, shown[0], _image(job, 0))
            images = [await asyncio.to_thread(_image, job, index) for index in range(job.n)]
        self._waiting.discard(job.id)
        yield Finished(tuple(images), run_s=STEP_S * job.sampling.steps, unit_s=STEP_S)

    def cancel(self, job_id: str) -> None:
        """Stop a job at its next step."""
        self._waiting.discard(job_id)

    async def prepare(self, spec: CheckpointSpec) -> Capabilities:
        """It can do everything, with parts that can be read. Raises CheckpointError."""
        if spec.parts:
            own_parts(spec.parts, CheckpointFiles.of(spec).index)
        return Capabilities(
            text=True,
            references=spec.max_references,
            mask=True,
            second_pass=True,
            negative_prompt=True,
            guidance=True,
            any_steps=True,
            unit_s=STEP_S,
        )

    def unload_except(self, specs: Sequence[CheckpointSpec]) -> None:
        """Nothing is in memory."""

    async def sleep(self) -> None:
        """Nothing is in memory."""


class PlainChats:
    """Says the same to everybody, again and again, or calls the first tool that it must call."""

    def __init__(self) -> None:
        self._running: set[str] = set()

    async def submit(self, job: ChatJob | CountJob) -> AsyncIterator[ChatEvent]:
        """The job's events, up to the last one."""
        yield Queued()
        yield Started()
        if isinstance(job, CountJob):
            yield CountFinished(len(job.messages))
            return
        yield Admitted(prompt_tokens=len(job.messages))
        self._running.add(job.id)
        calls_tool = job.tool_choice == "required"
        words = 1 if calls_tool else min(job.max_tokens, MOST_WORDS)
        for index in range(words):
            await asyncio.sleep(TOKEN_S)
            if job.id not in self._running:
                yield CANCELLED
                return
            if calls_tool:
                name = job.allowed_tools[0] if job.allowed_tools else job.tools[0]["function"]["name"]
                yield ToolCallDelta(0, 0, '{"prompt": "a plain colour"}', f"call_{job.id}", name)
            else:
                yield TextDelta(0, WORDS[index % len(WORDS)])
        self._running.discard(job.id)
        yield ChoiceFinished(0, "tool_calls" if calls_tool else "stop")
        yield ChatFinished(ChatUsage(len(job.messages), words), run_s=TOKEN_S * words)

    def cancel(self, job_id: str) -> None:
        """Stop a job at its next word."""
        self._running.discard(job_id)

    async def prepare(self, spec: ChatSpec) -> None:
        """Nothing is loaded."""

    def unload_except(self, specs: Sequence[ChatSpec]) -> None:
        """Nothing is in memory."""

    async def sleep(self) -> None:
        """Nothing is in memory."""


def _image(job: ImageJob, index: int) -> EncodedImage:
    seed = (job.seed + index) % 2**63
    colour = np.array([seed % 256, seed // 256 % 256, len(job.prompt) % 256], np.uint8)
    pixels = np.broadcast_to(colour, (job.height_px, job.width_px, 3))
    return encode(np.ascontiguousarray(pixels), job.encoding, job.metadata, seed)


def _start(options: argparse.Namespace, _: Callable[[FromWorker], None]) -> worker.Hosted:
    engine: worker.AnyEngine = PlainImages() if options.kind == "image" else PlainChats()
    return worker.Hosted(engine, Ready("no device", is_gpu=False), lambda: WorkerMemory(host_bytes=0))


if __name__ == "__main__":
    worker.main(_start)
