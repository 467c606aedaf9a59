"""A worker that draws nothing: `python -m benchmarks.echo_worker`, in place of pipelines.worker. A job's steps say how
many events it has, its prompt how many bytes its image."""

import argparse
import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from pipelines import worker
from pipelines.protocol.images import CheckpointSpec, EncodedImage, Event, Finished, ImageJob, Progress, Started
from pipelines.protocol.messages import Capabilities, FromWorker, Ready, WorkerMemory


class EchoEngine:
    """Satisfies pipelines.protocol.engine.Engine."""

    async def submit(self, job: ImageJob) -> AsyncIterator[Event]:
        yield Started()
        for step in range(1, job.sampling.steps + 1):
            yield Progress(step, job.sampling.steps)
            await asyncio.sleep(0)  # as a token of each chat in turn
        image = EncodedImage(bytes(int(job.prompt)), "image/png", job.width_px, job.height_px, job.seed)
        yield Finished((image,), 0.0, 0.0)

    def cancel(self, job_id: str) -> None: ...

    async def prepare(self, spec: CheckpointSpec) -> Capabilities | None: ...

    def unload_except(self, specs: Sequence[CheckpointSpec]) -> None: ...

    async def sleep(self) -> None: ...


def start(options: argparse.Namespace, send: Callable[[FromWorker], None]) -> worker.Hosted:
    return worker.Hosted(EchoEngine(), Ready("no device", is_gpu=False), lambda: WorkerMemory(0))


if __name__ == "__main__":
    worker.main(start)
