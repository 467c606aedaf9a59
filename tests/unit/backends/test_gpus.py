"""The GPUs of a machine of which NVML can't tell everything: each is read by itself, and the others are used.

NVML is a fake with the errors of the real one.
"""

from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace

import pynvml
import pytest
from structlog.testing import capture_logs

from pipelines.checkpoints.memory.shares import host_memory_bytes
from server.backends import gpus
from server.backends.engine_layout import automatic_layout, read_layout
from server.backends.gpus import Gpu, list_gpus
from server.errors import StartError

GIB = 2**30
LOST, NOT_SUPPORTED = pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_NOT_SUPPORTED
MODELS = ("alpha-1",)


@dataclass
class Card:
    """A GPU, or an instance of one, and what asking for each thing raises."""

    uuid: str
    errors: dict[str, int] = field(default_factory=dict)
    instances: "list[Card | None] | None" = None  # by place; the GPU is divided

    def answer(self, function: str, value: object) -> object:
        if function in self.errors:
            raise pynvml.NVMLError(self.errors[function])
        return value


def installed(monkeypatch: pytest.MonkeyPatch, *cards: Card, shutdown: int | None = None) -> None:
    """Give the machine these GPUs."""

    def mode(card: Card) -> tuple[int, int]:
        if card.instances is None:
            raise pynvml.NVMLError(NOT_SUPPORTED)
        return pynvml.NVML_DEVICE_MIG_ENABLE, 0

    def instance(card: Card, place: int) -> Card:
        found = (card.instances or [])[place]
        if found is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return found

    def end() -> None:
        if shutdown is not None:
            raise pynvml.NVMLError(shutdown)

    memory = SimpleNamespace(total=80 * GIB, free=79 * GIB)
    for name, function in {
        "Init": lambda: None,
        "Shutdown": end,
        "DeviceGetCount": lambda: len(cards),
        "DeviceGetHandleByIndex": lambda index: cards[index].answer("handle", cards[index]),
        "DeviceGetName": lambda card: card.answer("name", "H100"),
        "DeviceGetUUID": lambda card: card.answer("uuid", card.uuid),
        "DeviceGetMemoryInfo": lambda card: card.answer("memory", memory),
        "DeviceGetMigMode": mode,
        "DeviceGetMaxMigDeviceCount": lambda card: len(card.instances or []),
        "DeviceGetMigDeviceHandleByIndex": instance,
    }.items():
        monkeypatch.setattr(pynvml, f"nvml{name}", function)


def cards(count: int, **lost: int) -> list[Card]:
    """So many GPUs; `lost` has the index of one, by what of it can't be read."""
    found = [Card(f"GPU-{index}a{index}") for index in range(count)]
    for what, index in lost.items():
        found[index].errors[what] = LOST
    return found


def uuids(gpus: list[Gpu]) -> list[str]:
    return [gpu.uuid for gpu in gpus if gpu.problem is None]


@pytest.mark.parametrize("what", ["handle", "name", "uuid", "memory"])
def test_a_lost_gpu_hides_no_other(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, *cards(4, **{what: 2}))
    found = list_gpus(None)
    assert uuids(found) == ["GPU-0a0", "GPU-1a1", "GPU-3a3"]
    assert [gpu.problem for gpu in found] == [None, None, "GPU 2 can't be used: GPU is lost", None]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("0,1", ["GPU-0a0", "GPU-1a1"]),
        ("0,2,3", ["GPU-0a0", "GPU-3a3"]),
        ("GPU-0a,GPU-2a,GPU-3a3", ["GPU-0a0", "GPU-3a3"]),  # it does not tell that it is GPU-2a2
        ("0,7,1", ["GPU-0a0"]),
        ("0,nonsense,1", ["GPU-0a0"]),
        ("0,\u00b2,1", ["GPU-0a0"]),  # a digit, and no number
        (f"0,{'9' * 5000},1", ["GPU-0a0"]),
    ],
)
def test_a_lost_gpu_keeps_its_place_among_the_visible_ones(
    visible: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, *cards(4, handle=2))
    assert uuids(list_gpus(visible)) == expected


def test_memory_that_nvml_does_not_know_is_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    unified = Card("GPU-0a0", {"memory": NOT_SUPPORTED})
    installed(monkeypatch, unified, Card("GPU-1a1"))
    assert list_gpus(None) == [
        Gpu("GPU-0a0", "H100", host_memory_bytes(), host_memory_bytes()), Gpu("GPU-1a1", "H100", 80 * GIB, 79 * GIB)
    ]  # fmt: skip


def test_instances_of_divided_gpus_are_gpus_each(monkeypatch: pytest.MonkeyPatch) -> None:
    divided = Card("GPU-0a0", instances=[None, Card("MIG-1b1"), Card("MIG-2b2", {"memory": LOST}), Card("MIG-3b3")])
    empty = Card("GPU-1a1", instances=[None, None])
    installed(monkeypatch, divided, empty, Card("GPU-2a2"))
    found = list_gpus(None)
    assert uuids(found) == ["MIG-1b1", "MIG-3b3", "GPU-2a2"]
    assert [gpu.problem for gpu in found if gpu.problem] == [
        "GPU 0 can't be used: GPU is lost", "GPU 1 can't be used: it is divided (MIG), and has no instance"
    ]  # fmt: skip
    assert uuids(list_gpus("MIG-3b3,GPU-2a2")) == ["MIG-3b3", "GPU-2a2"]


def test_a_driver_that_fails_when_it_is_left_has_told_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, *cards(1), shutdown=pynvml.NVML_ERROR_UNKNOWN)
    assert uuids(list_gpus(None)) == ["GPU-0a0"]


def test_a_driver_that_hangs_lets_the_server_start_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    hangs, ends = Event(), Event()
    installed(monkeypatch, Card("GPU-0a0"), Card("GPU-1a1"))
    read = pynvml.nvmlDeviceGetUUID

    class Asking(Thread):
        def join(self, timeout: float | None = None) -> None:
            assert hangs.wait(timeout)

    def read_or_hang(card: Card) -> str:
        if card.uuid == "GPU-1a1":
            hangs.set()
            ends.wait()
        return read(card)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", read_or_hang)
    monkeypatch.setattr(gpus, "Thread", Asking)
    with capture_logs() as logs:
        assert uuids(list_gpus(None)) == ["GPU-0a0"]
    ends.set()
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("NVML does not answer", "error")]


def test_a_file_of_engines_that_names_a_lost_gpu_starts_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, *cards(4, handle=2))
    file = tmp_path / "engines.toml"
    file.write_text(
        '[[image]]\ndevice = "cuda:0"\n[[image]]\ndevices = ["cuda:1", "cuda:2"]\n[[image]]\ndevice = "GPU-2a2"\n'
        '[chat]\ndevice = "cuda:3"\n'
    )
    layout = read_layout(file, list_gpus(None), MODELS, 8)
    shown = [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in (*layout.images, layout.chat)]
    assert shown == ["GPU-0a0", "GPU-1a1", "", "GPU-3a3"]
    assert [(slot.device, slot.size) for slot in layout.images] == [("cuda", 1)] * 3
    assert layout.classify.gpus == layout.images[1].gpus, "the last image worker's that has a GPU"
    file.write_text('[[image]]\ndevice = "cuda:4"\n')
    with pytest.raises(StartError, match=r"there is no cuda:4; .* cuda:2 \(GPU 2 can't be used: GPU is lost\), cuda:3"):
        read_layout(file, list_gpus(None), MODELS, 8)


@pytest.mark.parametrize(
    ("gibs", "others_gib", "chat"), [((24, 8), 0, 1), ((24, 8), 5, 0), ((24, 24), 5, 1), ((8, 12), 40, 1)]
)
def test_the_chat_is_on_the_last_gpu_that_has_room_for_it(gibs: tuple[int, ...], others_gib: int, chat: int) -> None:
    gpus = [Gpu(f"GPU-{index}a{index}", "H100", gib * GIB, gib * GIB) for index, gib in enumerate(gibs)]
    layout = automatic_layout("auto", gpus, others_bytes=others_gib * GIB)
    assert layout.chat.gpus == layout.classify.gpus == (gpus[chat],)
