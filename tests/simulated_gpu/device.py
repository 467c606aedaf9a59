"""The simulated GPU of this process: `install()` before anything asks torch for CUDA.

The extension (csrc) registers the device with torch. What `torch.cuda` has in C++ that a build for CPUs lacks is
replaced here.
"""

import importlib.util
import itertools
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from tests.simulated_gpu import triton_kernels
from tests.simulated_gpu.build import NAME, REPOSITORY, build
from tests.simulated_gpu.log import Log

MAX_DEVICES = 4
GIB = 2**30
H100 = (9, 0)  # its compute capability
COUNT, MEMORY_GIB, USED = "SIMULATED_GPUS", "SIMULATED_GPU_GIB", "SIMULATED_GPU_USED"  # of the environment

log = Log()
graph_pools = itertools.count(1)
kept_pools: Counter[tuple[int, int]] = Counter()  # by captures that have failed
extension: Any = None  # its functions, once it is installed


def install(devices: int = 1, gib: float = 80.0, capability: tuple[int, int] = H100) -> Any:
    """Give this process `devices` GPUs of `gib` GiB, and return the extension: see the end of csrc/extension.cpp for
    what it can be told. A second call changes their number alone."""
    global extension
    if extension is None:
        spec = importlib.util.spec_from_file_location(NAME, build())
        assert spec is not None
        assert spec.loader is not None
        extension = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(extension)
        extension.set_report(log)
        for device in range(MAX_DEVICES):
            extension.set_total(device, int(gib * GIB))
        _replace_functions(capability)
        triton_kernels.interpret(extension)
    extension.set_device_count(devices)
    return extension


def environment(devices: int = 1, gib: float | Sequence[float] = 80.0, used: Path | None = None) -> dict[str, str]:
    """Return the environment that gives every Python process below such GPUs, as soon as it imports torch: `gib` is of
    all, or of each. In the folder `used` they write down what they have of each, for site/pynvml.py."""
    gibs = [gib] * devices if isinstance(gib, float) else gib
    here = Path(__file__).parent
    path = [str(here / "site"), str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        COUNT: str(devices),
        MEMORY_GIB: ",".join(map(str, gibs)),
    } | ({USED: str(used)} if used is not None else {})


def install_from_environment() -> None:
    """Install what `environment` says, of which CUDA_VISIBLE_DEVICES may show a part. SIGUSR1 then loses the devices of
    a process: the next launch fails, and all after it."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gibs = [float(gib) for gib in os.environ[MEMORY_GIB].split(",")]
    if visible is not None:
        gibs = [gibs[int(name.removeprefix("GPU-").partition("-")[0])] for name in visible.split(",") if name]
    install(len(gibs))
    for device, gib in enumerate(gibs):
        extension.set_total(device, int(gib * GIB))
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGUSR1, lambda *_: extension.fail_launch(1))


class Stream(torch.Stream):
    """`torch.cuda.Stream`, whose own base class is missing in a build for CPUs."""

    def __new__(cls, device: Any = None, priority: int = 0, **made: Any) -> "Stream":
        if "stream_id" in made:
            return super().__new__(cls, **made)
        return super().__new__(cls, device=torch.device("cuda", _index(device)), priority=priority)

    @property
    def cuda_stream(self) -> int:
        return self.stream_id


class Event(torch.Event):
    """`torch.cuda.Event`. Its times are the host's."""

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> "Event":
        return super().__new__(cls, device="cuda", enable_timing=enable_timing)

    def record(self, stream: Any = None) -> None:
        self.recorded_s = time.perf_counter()
        super().record(_current_stream() if stream is None else stream)

    def elapsed_time(self, end: "Event") -> float:  # type: ignore[override]
        return (end.recorded_s - self.recorded_s) * 1000


class StreamContext:
    """`torch.cuda.stream`."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> Any:
        if self.stream is not None:
            self.before = torch.accelerator.current_stream(self.stream.device), _current_stream()
            torch.accelerator.set_stream(self.stream)
        return self.stream

    def __exit__(self, *_: object) -> None:
        if self.stream is not None:
            for stream in self.before:  # the last one's device is the current one again
                torch.accelerator.set_stream(stream)


class CUDAGraph:
    """`torch.cuda.CUDAGraph`."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._graph = extension.Graph()

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        self._pool = pool or _new_graph_pool()
        self._graph.begin()

    def capture_end(self) -> None:
        try:
            self._graph.end()
        except RuntimeError:  # torch 2.13 gives the pool back for graphs that were made alone
            kept_pools[self._pool] += 1
            raise

    def replay(self) -> None:
        self._graph.replay()

    def reset(self) -> None:
        self._graph.reset()

    def pool(self) -> tuple[int, int]:
        return self._pool


def _new_graph_pool() -> tuple[int, int]:
    return next(graph_pools), 0


def _index(device: Any) -> int:
    index = device if isinstance(device, int) or device is None else torch.device(device).index
    return extension.current_device() if index is None else index


def _current_stream(device: Any = None) -> Stream:
    stream = torch.accelerator.current_stream(torch.device("cuda", _index(device)))
    return Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)


def _default_stream(device: Any = None) -> Stream:
    return Stream(stream_id=0, device_index=_index(device), device_type=1)


def _memory(figure: str) -> Callable[..., int]:
    return lambda device=None: extension.memory(_index(device))[figure]


def _free_and_total(device: Any = None) -> tuple[int, int]:
    extension.check_lost()
    _write_down_used()
    _see_others()
    memory = extension.memory(_index(device))
    return memory["free"], memory["total"]


def _empty_cache() -> None:
    extension.empty_cache()
    _write_down_used()


def _visible() -> list[str]:
    return list(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")))


def _see_others() -> None:
    """Take from each GPU what other processes that live have written down."""
    if folder := os.environ.get(USED):
        for index, name in enumerate(_visible()):
            files = (file for file in Path(folder).glob(f"{name}.*") if file.suffix != f".{os.getpid()}")
            taken = sum(int(file.read_text() or 0) for file in files if Path("/proc", file.suffix[1:]).exists())
            extension.set_taken(index, taken)


def _write_down_used() -> None:
    """Let other processes see what this one has of each GPU, as NVML lets them."""
    if folder := os.environ.get(USED):
        for index, name in enumerate(_visible()):
            (Path(folder) / f"{name}.{os.getpid()}").write_text(str(extension.memory(index)["reserved"]))


def _properties(capability: tuple[int, int]) -> Callable[..., SimpleNamespace]:
    """The properties of an H100 that torch and libraries read."""

    def of(device: Any = None) -> SimpleNamespace:
        names = _visible()
        uuid = names[_index(device)] if names else "GPU-00000000-0000-0000-0000-000000000000"
        return SimpleNamespace(
            name="Simulated H100", major=capability[0], minor=capability[1], multi_processor_count=132, warp_size=32,
            total_memory=extension.memory(_index(device))["total"], gcnArchName="", is_integrated=0,
            max_threads_per_multi_processor=2048, regs_per_multiprocessor=65536, L2_cache_size=50 * 2**20,
            shared_memory_per_block_optin=232448, uuid=uuid.removeprefix("GPU-"),
        )  # fmt: skip

    return of


def _functions(capability: tuple[int, int]) -> Mapping[str, Any]:
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_compiled": lambda: True,
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "_lazy_call": lambda call, **_: call(),
        "device_count": lambda: extension.device_count(),
        "current_device": lambda: extension.current_device(),
        "set_device": lambda device: extension.set_device(_index(device)),
        "_exchange_device": lambda device: extension.exchange_device(device),
        "_maybe_exchange_device": lambda device: extension.exchange_device(device),
        "synchronize": lambda device=None: extension.synchronize(_index(device)),
        "get_device_capability": lambda device=None: capability,
        "get_device_name": lambda device=None: "Simulated H100",
        "get_device_properties": _properties(capability),
        "get_arch_list": lambda: [f"sm_{capability[0]}{capability[1]}"],
        "is_bf16_supported": lambda *_, **__: True,
        "is_current_stream_capturing": lambda: extension.is_capturing(),
        "ipc_collect": lambda: None,
        "default_generators": tuple(extension.default_generator(device) for device in range(MAX_DEVICES)),
        "current_stream": _current_stream,
        "default_stream": _default_stream,
        "set_stream": torch.accelerator.set_stream,
        "stream": StreamContext,
        "StreamContext": StreamContext,
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": CUDAGraph,
        "graph_pool_handle": _new_graph_pool,
    }


def _memory_functions() -> Mapping[str, Any]:
    return {
        "mem_get_info": _free_and_total,
        "memory_allocated": _memory("used"),
        "max_memory_allocated": _memory("used_peak"),
        "memory_reserved": _memory("reserved"),
        "max_memory_reserved": _memory("reserved_peak"),
        "memory_stats": lambda device=None: {},
        "reset_peak_memory_stats": lambda device=None: extension.reset_peak(_index(device)),
        "empty_cache": _empty_cache,
        "memory_snapshot": lambda pool=None: ["a segment"] * kept_pools[pool],
        "set_per_process_memory_fraction": lambda share, device=None: extension.set_fraction(_index(device), share),
    }


def _replace_functions(capability: tuple[int, int]) -> None:
    """In torch.cuda, and in its modules that have imported them from there."""
    modules = [module for name, module in sys.modules.items() if name.startswith("torch.cuda")]
    for name, function in {**_functions(capability), **_memory_functions()}.items():
        original = getattr(torch.cuda, name)
        for module in modules:
            if getattr(module, name, None) is original:
                setattr(module, name, function)
    torch.version.cuda = "13.0"
    torch.backends.cuda.is_built = lambda: True
    torch._C._cuda_getCurrentRawStream = lambda device=0: 0
    for of_graphs in ("_cuda_CUDAAllocator_AllocatorState", "_set_cached_tensors_enabled"):
        setattr(torch._C, of_graphs, lambda *_: None)  # dynamo's reset needs them
    torch._C._cuda_releasePool = lambda _, pool: kept_pools.subtract([pool])
    compile_with = torch.compile

    def trace(model: Any = None, **options: Any) -> Any:
        """Trace graphs, and compute them as they are: inductor would write kernels for Triton."""
        return compile_with(model, **{**options, "backend": "eager", "mode": None, "options": None})

    torch.compile = trace  # type: ignore[assignment]
