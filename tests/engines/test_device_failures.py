"""A device that fails: what counts as memory, what ends the worker, and that a GPU is never replaced by a CPU."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest
import torch

from pipelines.device import failures
from pipelines.device.choice import choose_device
from pipelines.device.failures import is_device_error, is_out_of_memory, is_responsive, require_device
from pipelines.protocol.classify import Classified, ClassifierSpec, ClassifyEvent, ClassifyJob
from pipelines.protocol.engine import NoDevice
from pipelines.protocol.images import Failed
from server.backends import child_process
from server.backends.engine_host import EngineHost, HostLimits
from tests.support import faulty_worker
from tests.support.polling import eventually
from tests.support.tiny_classifiers import make_text_classifier

Host = EngineHost[ClassifyJob, ClassifyEvent]
LIMIT_S = 240  # a worker imports torch, on a busy machine

NO_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    MemoryError(),
    torch.AcceleratorError("CUDA error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("CUDA driver error: CUDA_ERROR_OUT_OF_MEMORY"),
    RuntimeError("CUDA driver error: out of memory"),
    RuntimeError(
        'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":838, please report'
    ),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory: you tried to"),
]
DEVICE = [
    torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("CUDA error: uncorrectable ECC error encountered"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(...)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"),
    RuntimeError("CUDA error: device-side assert triggered"),
    RuntimeError("CUDA driver error: an illegal memory access was encountered"),  # of expandable segments
    RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),  # of compiled kernels
]
NEITHER = [RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"), ValueError("CUDA error"), OSError()]


@pytest.mark.parametrize("error", NO_MEMORY, ids=str)
def test_a_failed_allocation_counts_as_out_of_memory_under_any_name(error: Exception) -> None:
    assert is_out_of_memory(error)
    assert not is_device_error(error)


@pytest.mark.parametrize("error", DEVICE, ids=str)
def test_other_errors_of_the_device_are_told_apart(error: Exception) -> None:
    assert is_device_error(error)
    assert not is_out_of_memory(error)


@pytest.mark.parametrize("error", NEITHER, ids=repr)
def test_errors_of_the_call_are_neither(error: Exception) -> None:
    assert not is_device_error(error)
    assert not is_out_of_memory(error)


def test_the_cause_counts_where_a_library_wraps_it() -> None:
    wrapped = OSError("Unable to load weights")
    wrapped.__cause__ = torch.OutOfMemoryError("CUDA out of memory.")
    assert is_out_of_memory(wrapped)


@pytest.mark.parametrize("error", [*DEVICE, *NEITHER], ids=repr)
def test_a_trial_that_fails_says_no_while_the_device_answers(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    require_device(error, torch.device("cpu"))
    monkeypatch.setattr(failures, "is_responsive", lambda _: False)
    if error in DEVICE:
        with pytest.raises(type(error)):
            require_device(error, torch.device("cpu"))


@pytest.mark.parametrize("error", NO_MEMORY, ids=str)
def test_a_trial_without_memory_says_nothing(error: Exception) -> None:
    with pytest.raises(type(error)):
        require_device(error, torch.device("cpu"))


def test_a_working_device_answers() -> None:
    assert is_responsive(torch.device("cpu"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_was_asked_for_is_not_replaced_by_the_cpu() -> None:
    assert choose_device("auto").type == choose_device("cpu").type == "cpu"
    with pytest.raises(NoDevice, match="no GPU can be used: "):
        choose_device("cuda")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> ClassifierSpec:
    return ClassifierSpec("blades", make_text_classifier(tmp_path_factory.mktemp("t") / "blades"), "prompts")


@pytest.fixture
async def host(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Host]:
    monkeypatch.setattr(child_process, "WORKER", "tests.support.faulty_worker")
    made: Host = EngineHost("classify", [], HostLimits(8))
    await made.start()
    await asyncio.wait_for(made.wait_ready(), LIMIT_S)
    yield made
    await made.stop()


async def last(host: Host, spec: ClassifierSpec, text: str) -> ClassifyEvent:
    return [event async for event in host.submit(ClassifyJob(f"job {text}", spec, texts=(text,)))][-1]


@pytest.mark.nightly
async def test_a_sticky_error_ends_the_worker_and_the_next_one_works(host: Host, texts: ClassifierSpec) -> None:
    inside = [asyncio.create_task(last(host, texts, text)) for text in (faulty_worker.STICKY, "a boat")]
    for failed in await asyncio.wait_for(asyncio.gather(*inside), LIMIT_S):
        assert isinstance(failed, Failed)
        assert failed.code == "worker_died"
    await eventually(lambda: host.restarts == 1)
    assert isinstance(await asyncio.wait_for(last(host, texts, "a boat"), LIMIT_S), Classified)


@pytest.mark.nightly
async def test_the_jobs_of_a_group_that_ran_out_of_memory_are_told_so(host: Host, texts: ClassifierSpec) -> None:
    failed = await asyncio.wait_for(last(host, texts, faulty_worker.GROUP_NO_MEMORY), LIMIT_S)
    assert isinstance(failed, Failed)
    assert failed.code == "worker_died"
    assert "out of memory" in failed.message
    assert "nothing was charged" in failed.message
    assert "try a smaller size" in failed.message


@pytest.mark.daily("CUDA error: invalid configuration argument")
@pytest.mark.parametrize("text", [faulty_worker.PASSING, faulty_worker.NO_MEMORY])
async def test_an_error_after_which_the_device_answers_fails_its_job_alone(
    text: str, host: Host, texts: ClassifierSpec
) -> None:
    failed = await asyncio.wait_for(last(host, texts, text), LIMIT_S)
    assert isinstance(failed, Failed)
    assert failed.code != "worker_died"
    assert isinstance(await asyncio.wait_for(last(host, texts, "a boat"), LIMIT_S), Classified)
    assert host.restarts == 0


@pytest.mark.nightly
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
async def test_a_worker_that_must_have_a_gpu_and_finds_none_says_why(texts: ClassifierSpec) -> None:
    host: Host = EngineHost("classify", [], HostLimits(8), device="cuda")
    await host.start()
    try:
        failed = await asyncio.wait_for(last(host, texts, "a boat"), LIMIT_S)
        assert isinstance(failed, Failed)
        assert "no device to compute on" in failed.message
        assert host.status.problem is not None
        assert host.status.problem.startswith("no GPU can be used: ")
        assert not host.ready
    finally:
        await host.stop()


@pytest.mark.nightly
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
async def test_the_worker_after_one_with_a_gpu_must_have_a_gpu_too(host: Host) -> None:
    """As if the first worker had found one; there is none, so the next one must not go on with the CPU."""
    host.device_choice = "cuda"
    assert host.status.pid is not None
    os.kill(host.status.pid, signal.SIGKILL)
    await eventually(lambda: "no GPU can be used" in str(host.status.problem))
    assert host.status.device is None
