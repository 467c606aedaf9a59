"""What a Ray cluster costs a call: `python -m benchmarks.cluster_link`, beside a child process with the same worker,
which draws nothing. Starts a Ray of its own on this machine. Needs the extra [cluster]."""

import asyncio
import os
import statistics
import time
from dataclasses import replace
from pathlib import Path

import ray

from pipelines.protocol.images import CheckpointSpec, Encoding, Event, ImageJob, RawImage
from server.backends import child_process
from server.backends.cluster.engine_actor import OPTIONS, Compare, EngineActor
from server.backends.cluster.engines_file import Engine
from server.backends.cluster.node_properties import describe_node
from server.backends.cluster.transport import NAMESPACE, RayLauncher
from server.backends.engine_host import EngineHost, HostLimits
from server.backends.transport import Launcher
from server.settings import Settings

WORKER = "benchmarks.echo_worker"
SPEC = CheckpointSpec("echo", Path("echo"), None, "alpha", "img2img", 1, max_area_px=9_000_000)
JOB = ImageJob(
    id="job", checkpoint=SPEC, prompt="1000", sampling=SPEC.sampling.resolve(steps=20), width_px=1024, height_px=1024,
    n=1, seed=1, references=(), mask=None, encoding=Encoding(), metadata={}, time_limit_s=60,
)  # fmt: skip
IMAGE_BYTES = 3_000_000  # a PNG of 1024 x 1024 without much to compress
REFERENCE = RawImage(1024, 1024, "RGB", bytes(3 * 2**20))
CALLS = 100
STREAMS, TOKENS = 32, 2000

Host = EngineHost[ImageJob, Event]


class EchoActor(EngineActor):
    """The engine's actor, with that worker."""

    def __init__(self, engine: Engine, engines: str, compare: Compare) -> None:
        super().__init__(engine, engines, compare)
        child_process.WORKER = WORKER


async def call_ms(host: Host, job: ImageJob) -> float:
    times = []
    for number in range(CALLS):
        began = time.perf_counter()
        async for _ in host.submit(replace(job, id=str(number))):
            pass
        times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times)


async def messages_per_s(host: Host) -> float:
    async def read(name: str) -> int:
        job = replace(JOB, id=name, sampling=replace(JOB.sampling, steps=TOKENS))
        return sum([1 async for _ in host.submit(job)])

    began = time.perf_counter()
    read_counts = await asyncio.gather(*(read(f"stream-{number}") for number in range(STREAMS)))
    return sum(read_counts) / (time.perf_counter() - began)


async def measure(name: str, launcher: Launcher) -> None:
    host = Host("image", (), HostLimits(1000), launcher=launcher)
    await host.start()
    await host.wait_ready()
    large = replace(JOB, prompt=str(IMAGE_BYTES))
    small_ms, image_ms = await call_ms(host, JOB), await call_ms(host, large)
    edit_ms = await call_ms(host, replace(large, references=(REFERENCE,)))
    rate = await messages_per_s(host)
    print(
        f"{name}: {small_ms:.1f} ms a call of 20 events and 1 kB, {image_ms:.1f} ms with a 3 MB image, "
        f"{edit_ms:.1f} ms with a reference too; {rate:,.0f} messages/s to one server"
    )
    await host.stop()


async def main() -> None:
    child_process.WORKER = WORKER
    await measure("child process", child_process.ChildProcess("image"))
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=200_000_000)
    try:
        engine = Engine("echo", "image", "cpu", beside=1)
        options = {**OPTIONS, "name": engine.name, "namespace": NAMESPACE}
        actor = ray.remote(EchoActor).options(**options).remote(engine, "", lambda _: None)
        await measure("Ray actor", RayLauncher(engine.name, describe_node(Settings(), "")))
        ray.kill(actor)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
