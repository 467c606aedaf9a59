"""The tests that need a GPU, on the simulated one: in a process of their own, as the others must see none."""

import subprocess
import sys

import pytest

from tests.simulated_gpu.build import REPOSITORY, build, unavailable
from tests.simulated_gpu.device import environment

GPUS = 2
pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))


def run(*arguments: str, limit_s: float, turn: int = 0) -> None:
    """Run pytest with two simulated GPUs; of what fails at every place, this turn's part. Fails with what it has
    printed."""
    build()
    command = [sys.executable, "-m", "pytest", "-p", "tests.simulated_gpu.plugin", "-p", "no:cacheprovider", *arguments]
    ended = subprocess.run(
        command,
        cwd=REPOSITORY,
        env={**environment(GPUS), "TURN": str(turn)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit_s,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-20_000:]


QUICK = (
    "tests/gpu/test_turns.py",
    "tests/gpu/test_fp8.py",
    "tests/gpu/test_chats.py::test_a_model_that_left_and_came_back_is_captured_anew",
    "tests/gpu/test_groups.py::test_text_encoders_are_on_the_second_gpu_and_come_back_to_it",
    "tests/engines/test_no_numbers.py::test_nan_of_any_part_is_no_image[float16-fp8 by the kernel-eager]",
    "tests/gpu/simulated/test_graphs.py",
    "tests/gpu/simulated/test_host_waits.py",
    "tests/gpu/simulated/test_launches.py",
    "tests/gpu/simulated/test_options_take_turns.py::test_a_run_meets_the_scheduler_at_every_step[offload group]",
    "tests/gpu/test_failures.py",
    "tests/gpu/test_attention.py",
    "tests/gpu/simulated/test_device.py",
    "tests/gpu/simulated/test_lost_devices.py",
    "tests/gpu/simulated/test_refused_options.py",
)
LONG = (
    "tests/gpu/test_chats.py",
    "tests/gpu/test_fusion.py",
    "tests/gpu/test_groups.py",
    "tests/gpu/test_runtime_options.py",
    "tests/gpu/simulated/test_default_part.py",
    "tests/gpu/simulated/test_memory.py",
    "tests/gpu/simulated/test_graph_memory.py",
    "tests/gpu/simulated/test_options_take_turns.py",
    "tests/gpu/simulated/test_waits.py",
    "tests/gpu/simulated/test_lost_devices.py",
    "tests/gpu/simulated/test_failing_allocations.py",
)
ENGINES = [
    f"tests/engines/test_{name}.py"
    for name in (
        "adapter_strength", "adapters_leave_nothing", "alignment", "cast_codecs", "channels",
        "chat_constraints", "chat_engine", "chat_files", "chat_lengths", "chat_threads", "chat_vision", "checkpoints",
        "classify_engine", "controls", "decode_graphs", "device_failures", "device_reads", "embeddings",
        "encode", "engine_host", "enlarging", "families", "file_sampling", "image_engine", "image_scheduling",
        "image_sizes", "invalid_images", "late_start", "long_prompts", "merging", "merging_faults", "modular",
        "no_numbers", "own_parts", "packed_linear", "packing", "pass_graphs", "pipelines", "prompt_cache",
        "quantizing", "runtime_options", "runtime_pairs", "safety_checker", "scaled_weights", "sleep",
        "step_caches", "upscalers", "weight_names",
    )
]  # fmt: skip


def test_turns_failures_and_the_device_itself() -> None:
    run(*QUICK, limit_s=800)


@pytest.mark.nightly
@pytest.mark.timeout(5000)
@pytest.mark.parametrize("tests", [*LONG, *ENGINES])
def test_all_that_needs_a_gpu(tests: str, pytestconfig: pytest.Config) -> None:
    run(tests, "-m", "nightly or not nightly", limit_s=4800, turn=pytestconfig.getoption("turn"))
