"""What /metrics says of an app that has answered, refused, replayed, moderated and charged."""

import asyncio

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pipelines.protocol.messages import CachedCheckpoint, CachedCheckpoints, GpuMemory, WorkerMemory
from server.telemetry.engine_metrics import EngineCollector, EngineReport
from server.telemetry.metrics import MAX_CODES, Metrics
from tests.support.metrics import scrape_busy_app
from tests.unit.images.test_sampling_fields import SPEC

Samples = dict[tuple[str, frozenset[str]], float]
MODEL = "alpha-image-2-count"
IMAGES = "/v1/images/generations"


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    families = text_string_to_metric_families(asyncio.run(scrape_busy_app(tmp_path_factory.mktemp("home"))))
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("darkroom_requests_total", {IMAGES, "POST", "200"}, 2),
        ("darkroom_request_seconds_count", {IMAGES, "POST"}, 4),
        ("darkroom_replays_total", {IMAGES}, 1),
        ("darkroom_refusals_total", {IMAGES, "model_not_found"}, 1),
        ("darkroom_refusals_total", {IMAGES, "moderation_blocked"}, 1),
        ("darkroom_moderation_refusals_total", {"no-weapons", "input"}, 1),
        ("darkroom_image_calls_total", {MODEL, "captured"}, 1),
        ("darkroom_pictures_total", {MODEL}, 1),
        ("darkroom_charged_cny_total", {MODEL}, 0.1),
        ("darkroom_queue_seconds_count", {"image", MODEL}, 1),
        ("darkroom_queue_seconds_count", {"chat", "starter-chat"}, 1),
        ("darkroom_image_run_seconds_count", {MODEL}, 1),
        ("darkroom_jobs_waiting", {"image"}, 0),
        ("darkroom_jobs_running", {"chat"}, 0),
        ("darkroom_worker_restarts_total", {"image"}, 0),
        ("darkroom_engine_up", {"image"}, 0),
    ],
)
def test_each_is_counted(samples: Samples, name: str, labels: set[str], value: float) -> None:
    assert samples[name, frozenset(labels)] == pytest.approx(value)


def test_the_process_its_build_and_its_disk_are_told(samples: Samples) -> None:
    names = {name for name, _ in samples}
    assert {"process_resident_memory_bytes", "python_gc_collections_total", "darkroom_build_info"} <= names
    assert samples["darkroom_disk_free_bytes", frozenset()] > 0
    assert not [name for name in names if name.endswith("_created")]


def test_workers_tell_their_memory_and_checkpoints() -> None:
    metrics = Metrics()
    gpu = GpuMemory(total_bytes=80, free_bytes=50, allocated_bytes=20, peak_bytes=25, reserved_bytes=25)
    report = EngineReport(
        engine="image-1",
        kind="image",
        up=True,
        asleep=False,
        waiting=2,
        running=1,
        restarts=3,
        memory=WorkerMemory(7, gpu),
        cached_checkpoints=CachedCheckpoints(
            (CachedCheckpoint(SPEC, 9, on_device=False),), device_bytes=5, budget_bytes=6
        ),
        checkpoints={"sdxl": True, "broken": False},
    )
    metrics.registry.register(EngineCollector(lambda: [report]))
    lines = generate_latest(metrics.registry).decode().splitlines()
    for line in (
        'darkroom_worker_memory_bytes{engine="image-1",kind="image"} 7.0',
        'darkroom_device_memory_bytes{engine="image-1",kind="image",what="free"} 50.0',
        'darkroom_device_memory_bytes{engine="image-1",kind="image",what="peak"} 25.0',
        'darkroom_weights_bytes{engine="image-1",kind="image"} 5.0',
        'darkroom_checkpoint_resident_bytes{checkpoint="x",engine="image-1",kind="image",place="host"} 9.0',
        'darkroom_checkpoint_loaded{checkpoint="broken",engine="image-1",kind="image"} 0.0',
        'darkroom_worker_restarts_total{engine="image-1",kind="image"} 3.0',
        'darkroom_jobs_waiting{engine="image-1",kind="image"} 2.0',
    ):
        assert line in lines


def test_codes_of_upstreams_can_not_make_endless_series() -> None:
    metrics = Metrics()
    for number in range(MAX_CODES + 5):
        metrics.count_refusal("/v1/chat/completions", f"code-{number}")
    lines = [line for line in generate_latest(metrics.registry).decode().splitlines() if "refusals_total{" in line]
    assert len([line for line in lines if "darkroom_refusals" in line]) == MAX_CODES + 1
    assert 'darkroom_refusals_total{code="other",route="/v1/chat/completions"} 5.0' in lines
