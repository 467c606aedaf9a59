"""The devices of the workers: found by NVML, or named in a file."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from server.backends.engine_layout import automatic_layout, group_sizes, heap_on_cpu, read_layout
from server.backends.gpus import Gpu, select_visible
from server.errors import StartError

GPUS = [Gpu(f"GPU-{index}a{index}", "H100", 80 * 2**30, 79 * 2**30) for index in range(3)]
MIG = [Gpu("MIG-1", "A100", 10, 10), Gpu("MIG-2", "A100", 10, 10)]
MODELS = ("alpha-1", "beta-1")


def names(gpus: list[Gpu]) -> list[str]:
    return [gpu.uuid for gpu in gpus]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, ["GPU-0a0", "MIG-1", "MIG-2", "GPU-2a2"]),
        ("2,0", ["GPU-2a2", "GPU-0a0"]),
        ("GPU-2a", ["GPU-2a2"]),
        ("1", ["MIG-1", "MIG-2"]),
        ("MIG-2", ["MIG-2"]),
        ("0,7,2", ["GPU-0a0"]),  # as CUDA: the first that is not there ends the list
        ("", []),
        ("-1", []),
    ],
)
def test_only_the_visible_gpus_are_used(visible: str | None, expected: list[str]) -> None:
    assert names(select_visible([[GPUS[0]], MIG, [GPUS[2]]], visible)) == expected


def test_each_gpu_gets_an_image_worker_and_the_last_one_the_others() -> None:
    layout = automatic_layout("auto", GPUS)
    assert [slot.name for slot in layout.images] == ["image-0", "image-1", "image-2"]
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in layout.images] == names(GPUS)
    assert {slot.device for slot in layout.images} == {"cuda"}
    assert layout.chat.gpus == layout.classify.gpus == (GPUS[-1],)
    assert layout.images[-1].shares_device(layout.chat)
    assert not layout.images[0].shares_device(layout.chat)


@pytest.mark.parametrize(
    ("gpus", "device", "image", "others"),
    [
        ([], "auto", heap_on_cpu(), {}),  # the workers look for one
        # to CUDA it is perhaps 0; the CPU does not take its place
        (select_visible([[gpu] for gpu in GPUS], "1"), "cuda", *[{"CUDA_VISIBLE_DEVICES": "GPU-1a1"}] * 2),
    ],
)
def test_with_one_gpu_or_none_all_workers_are_on_it(
    gpus: list[Gpu], device: str, image: Mapping[str, str], others: Mapping[str, str]
) -> None:
    layout = automatic_layout("auto", gpus)
    assert [(slot.name, slot.device, slot.environment) for slot in layout.images] == [("image", device, image)]
    for slot in (layout.chat, layout.classify):
        assert (slot.device, slot.environment) == (device, others)
        assert slot.shares_device(layout.images[0])


def test_only_an_image_worker_on_the_cpu_keeps_the_memory_that_it_frees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    file = tmp_path / "engines.toml"
    file.write_text('[[image]]\ndevice = "cuda:0"\n[[image]]\ndevice = "cpu"\n')
    on_gpu, on_cpu = read_layout(file, GPUS, MODELS, 8).images
    assert "GLIBC_TUNABLES" not in on_gpu.environment
    assert on_cpu.environment["GLIBC_TUNABLES"] == heap_on_cpu()["GLIBC_TUNABLES"]


def test_gpus_are_left_alone_where_models_run_on_the_cpu() -> None:
    assert [slot.name for slot in automatic_layout("cpu", GPUS).images] == ["image"]


@pytest.mark.parametrize(
    ("gpus", "needs", "sizes"),
    [
        (8, {1}, [1] * 8),
        (8, {2}, [2, 2, 2, 2]),
        (8, {1, 2}, [2, 1, 2, 1, 2]),
        (8, {1, 4}, [4, 1, 1, 1, 1]),
        (8, {1, 2, 4}, [4, 2, 1, 1]),
        (8, {1, 8}, [8]),
        (3, {2}, [2]),  # the third is the chat's
        (2, {1, 2}, [2]),
        (2, {4}, [1, 1]),  # loading says that it takes more
        (2, set(), [1, 1]),
    ],
)
def test_gpus_are_divided_by_what_checkpoints_take(gpus: int, needs: set[int], sizes: list[int]) -> None:
    assert group_sizes(gpus, needs) == sizes


def test_instances_of_a_divided_gpu_have_a_worker_each() -> None:
    """CUDA shows a process one of them alone."""
    layout = automatic_layout("auto", [MIG[0], *GPUS[:2], MIG[1]], {1, 2})
    assert [names(list(slot.gpus)) for slot in layout.images] == [["GPU-0a0", "GPU-1a1"], ["MIG-1"], ["MIG-2"]]
    assert [names(list(slot.gpus)) for slot in automatic_layout("auto", MIG, {2}).images] == [["MIG-1"], ["MIG-2"]]


def test_a_file_can_not_have_one_worker_use_several_instances(tmp_path: Path) -> None:
    file = tmp_path / "engines.toml"
    file.write_text('[[image]]\ndevices = ["MIG-1", "MIG-2"]\n')
    with pytest.raises(StartError, match=r"devices: instances of a divided GPU \(MIG\) have a worker each"):
        read_layout(file, MIG, MODELS, 8)


def test_a_group_sees_its_gpus_and_the_chat_is_beside_the_last() -> None:
    layout = automatic_layout("auto", GPUS, {1, 2})
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in layout.images] == ["GPU-0a0,GPU-1a1", "GPU-2a2"]
    assert [slot.size for slot in layout.images] == [2, 1]
    pair = automatic_layout("auto", GPUS[:2], {2})
    assert pair.images[0].shares_device(pair.chat)


def test_without_a_gpu_a_group_is_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert automatic_layout("cpu", GPUS, {1, 2}).images[0].size == 2
    assert automatic_layout("auto", GPUS[:1], {2}).images[0].size == 1
    assert automatic_layout("auto", [], {2}).images[0].size == 2


def test_a_file_gives_a_worker_several_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    file = tmp_path / "engines.toml"
    file.write_text('[[image]]\ndevices = ["cuda:2", "GPU-0a"]\n[[image]]\ndevices = ["cpu", "cpu"]\n')
    gpus, cpu = read_layout(file, GPUS, MODELS, 8).images
    assert (gpus.size, gpus.gpus, gpus.environment["CUDA_VISIBLE_DEVICES"]) == (
        2,
        (GPUS[2], GPUS[0]),
        "GPU-2a2,GPU-0a0",
    )
    assert (cpu.size, cpu.gpus, cpu.environment["OMP_NUM_THREADS"]) == (2, (), "4")


def test_a_file_says_which_models_are_drawn_where(tmp_path: Path) -> None:
    file = tmp_path / "engines.toml"
    file.write_text("""
[[image]]
device = "cuda:2"
name = "large"
models = ["alpha-1"]
[[image]]
device = "GPU-0a"
[replicas]
"beta-1" = 1
[classify]
device = "cpu"
""")
    layout = read_layout(file, GPUS, MODELS, 8)
    large, other = layout.images
    assert (large.name, large.gpus, large.models) == ("large", (GPUS[2],), {"alpha-1"})
    assert (other.name, other.gpus, other.models) == ("image-1", (GPUS[0],), None)
    assert layout.chat.gpus == (GPUS[0],)
    assert layout.classify.device == "cpu"
    assert layout.replicas == {"beta-1": 1}


def test_workers_on_the_cpu_share_its_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    file = tmp_path / "engines.toml"
    file.write_text('[[image]]\ndevice = "cpu"\n' * 3)
    threads = [slot.environment["OMP_NUM_THREADS"] for slot in read_layout(file, [], MODELS, 8).images]
    assert threads == ["3", "3", "2"]
    assert {slot.environment["OMP_NUM_THREADS"] for slot in read_layout(file, [], MODELS, 1).images} == {"1"}
    monkeypatch.setitem(os.environ, "OMP_NUM_THREADS", "5")
    assert all(slot.environment == heap_on_cpu() for slot in read_layout(file, [], MODELS, 8).images)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "image: missing"),
        ('[[image]]\ndevice = "gpu1"', "line 2: image[0].device"),
        (
            '[[image]]\ndevice = "cuda:3"',
            "line 2: image[0].device: there is no cuda:3; this machine has cuda:0 (G",
        ),
        (
            '[[image]]\ndevice = "cuda:1"\n[[image]]\ndevice = "GPU-1a1"',
            "line 4: image[1].device: GPU-1a1 has an",
        ),
        ('[[image]]\ndevice = "cpu"\nmodels = ["gamma"]', "'gamma' is not an image model; expected one of alpha-1"),
        ('[[image]]\ndevice = "cpu"\n[replicas]\ngamma = 2', "line 4: replicas.gamma: 'gamma' is not an image model"),
        ('[[image]]\ndevice = "cpu"\nname = "a"\n[[image]]\ndevice = "cpu"\nname = "a"', "line 6: image[1].name"),
        ('[[image]]\ndevice = "cpu"\n[chat]\ndevice = "cuda:9"', "line 4: chat.device: there is no cuda:9"),
        ('[[image]]\ndevice = "cpu"\nmodel = "x"', "unknown key"),
        ('[[image]]\nname = "a"', "image[0]: expected one of `device` and `devices`"),
        ('[[image]]\ndevice = "cpu"\ndevices = ["cpu", "cpu"]', "image[0]: expected one of `device` and `devices`"),
        ('[[image]]\ndevices = ["cuda:0", "cpu"]', "image[0].devices: one worker has GPUs or the CPU, not both"),
        ('[[image]]\ndevices = ["cuda:0", "GPU-0a0"]', "image[0].devices: GPU-0a0 has an image worker already"),
    ],
)
def test_a_wrong_file_names_the_line_and_what_would_be_right(text: str, error: str, tmp_path: Path) -> None:
    file = tmp_path / "engines.toml"
    file.write_text(text)
    with pytest.raises(StartError) as refused:
        read_layout(file, GPUS, MODELS, 8)
    assert error in str(refused.value)
    assert str(file) in str(refused.value)
