"""An app of which every metric has a sample."""

from pathlib import Path

from pipelines.protocol.messages import CachedCheckpoint, CachedCheckpoints, CheckpointState, GpuMemory, WorkerMemory
from tests.support.in_process import come_up, in_process

RULE = '[[rules]]\nname = "no-weapons"\ncategory = "violence"\nterms = ["dagger"]\n'


async def scrape_busy_app(home: Path) -> str:
    """Its /metrics: it has drawn one image, replayed it, refused two calls and chatted once, and its image worker has
    told its memory."""
    policy = home / "policy.toml"
    policy.write_text(RULE)
    async with in_process(home, moderation=policy) as running:
        body = {"model": "alpha-image-2-count", "prompt": "a boat", "size": "256x256"}
        for expected, changes in ((200, {}), (200, {}), (404, {"model": "no"}), (400, {"prompt": "a dagger"})):
            headers = {} if changes else {"Idempotency-Key": "one"}
            answer = await running.client.post("/v1/images/generations", json=body | changes, headers=headers)
            assert answer.status_code == expected, answer.text
        chat = {"model": "starter-chat", "messages": [{"role": "user", "content": "Hi"}]}
        assert (await running.client.post("/v1/chat/completions", json=chat)).status_code == 200
        services = running.services
        (engine,) = services.engines.image.hosts
        spec = services.served.catalog.current.checkpoints[0]
        come_up(
            engine,
            memory=WorkerMemory(2**20, GpuMemory(2**30, 2**29, 2**20, 2**21, 2**21)),
            cached_checkpoints=CachedCheckpoints((CachedCheckpoint(spec, 2**20, on_device=True),), 2**20, 2**29),
        )
        engine.checkpoints[spec] = CheckpointState(spec, "loaded", "")
        return (await running.client.get("/metrics")).text
