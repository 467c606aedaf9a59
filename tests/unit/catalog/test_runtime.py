"""Options of `[runtime]` that defeat each other, and what `runtime = "auto"` chooses for devices of several sizes."""

from pathlib import Path

import pytest

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.memory.runtime import CONFLICTS, check_conflicts, choose_runtime
from pipelines.checkpoints.memory.shares import CONTEXT_BYTES, Room, worker_bytes
from pipelines.protocol.images import Lora, Quantize, Runtime, StepCache
from server.data_folders import REPOSITORY
from tests.support.runtime_pairs import OPTIONS, expected

GIB = 2**30
SHARES = {"none": 1.0, "fp8": 0.64, "float8": 0.64}  # of FLUX.1's denoiser
ADAPTER = (Lora(Path("style.safetensors")),)


def flux_sizes(quantize: Quantize) -> dict[str, list[float]]:
    """Components of bfloat16: the denoiser, T5, CLIP, and the VAE."""
    blocks = [22 * GIB * SHARES[quantize] / 50] * 50
    return {"transformer": blocks, "text_encoder_2": [GIB / 4] * 36, "text_encoder": [GIB / 4], "vae": [GIB / 4]}


@pytest.mark.parametrize(
    ("runtime", "reason"),
    [
        (Runtime(compile=True, quantize="float8"), "casts the weights before every layer"),
        (Runtime(compile=True, cache=StepCache("taylorseer")), "three graphs"),
        (Runtime(compile=True, offload="group"), "copied by hooks"),
        (Runtime(compile=True, lora_folder=Path("loras")), "compiled anew"),
        (Runtime(quantize="fp8", loras=ADAPTER), "not quantized"),
        (Runtime(quantize="fp8", lora_folder=Path("loras")), "not quantized"),
        (Runtime(quantize="fp8", offload="group"), "takes longer"),
        (Runtime(quantize="int8", offload="model"), "can't be moved while images are drawn"),
        (Runtime(quantize="int4", offload="group"), "can't be moved while images are drawn"),
    ],
)
def test_options_that_defeat_each_other_are_refused_with_the_reason(runtime: Runtime, reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        check_conflicts(runtime)


@pytest.mark.parametrize(
    "runtime",
    [
        Runtime(),
        Runtime(compile=True, quantize="fp8", cache=StepCache("first-block"), attention="_native_cudnn"),
        Runtime(compile=True, offload="model", loras=ADAPTER),
        Runtime(quantize="float8", offload="group", lora_folder=Path("loras")),
    ],
)
def test_options_that_work_together_are_taken(runtime: Runtime) -> None:
    check_conflicts(runtime)


def test_the_documentation_has_every_option_alone_and_in_pairs() -> None:
    page = (REPOSITORY / "docs" / "reference" / "runtime-options.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    at = next(number for number, line in enumerate(lines) if line.startswith("| | compile |"))
    header, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines[at : at + 2 + len(OPTIONS)]
    ]
    assert header[1:] == list(OPTIONS)
    for number, (name, *cells) in enumerate(rows):
        others = list(OPTIONS)[: number + 1]
        assert cells[: number + 1] == [expected(name, other) for other in others], name


def test_every_conflict_names_two_options() -> None:
    assert len({(one, other) for (one, _), (other, _), _ in CONFLICTS}) == len(CONFLICTS)


@pytest.mark.parametrize(
    ("card_gb", "capability", "quantize", "offload"),
    [
        (140, (9, 0), "none", "none"),
        (80, (9, 0), "none", "none"),
        (48, (8, 9), "none", "none"),
        (32, (12, 0), "none", "encoders"),
        (24, (8, 9), "fp8", "encoders"),
        (24, (8, 6), "float8", "encoders"),
        (19, (8, 9), "fp8", "model"),
        (8, (8, 9), "float8", "group"),
    ],
)
def test_auto_takes_the_fastest_options_that_fit(
    card_gb: int, capability: tuple[int, int], quantize: str, offload: str
) -> None:
    """FLUX.1, with four fifths of the card for weights."""
    chosen, why = choose_runtime(flux_sizes, Room(int(0.8 * card_gb * 1e9)), capability)
    assert (chosen.quantize, chosen.offload) == (quantize, offload)
    assert f"{0.8 * card_gb * 1e9 / GIB:.1f} GiB for weights" in why
    check_conflicts(chosen)


def test_auto_keeps_the_denoiser_on_the_device_for_controls() -> None:
    for budget_gib, quantize in ((24, "fp8"), (26, "none"), (4, "fp8")):  # beside controls of 3 GiB
        chosen, _ = choose_runtime(flux_sizes, Room(budget_gib * GIB), (8, 9), 3 * GIB)
        assert (chosen.quantize, chosen.offload) == (quantize, "encoders")


@pytest.mark.parametrize(
    ("refused", "quantize", "offload"),
    [
        ((), "fp8", "encoders"),
        (("fp8",), "float8", "encoders"),
        (("encoders",), "fp8", "model"),
        (("encoders", "fp8"), "float8", "model"),
        (("encoders", "model"), "float8", "group"),
    ],
)
def test_auto_leaves_out_what_was_refused(refused: tuple[str, ...], quantize: str, offload: str) -> None:
    chosen, _ = choose_runtime(flux_sizes, Room(16 * GIB), (8, 9), refused=refused)
    assert (chosen.quantize, chosen.offload) == (quantize, offload)


@pytest.mark.parametrize(
    ("device_gib", "host_gib", "quantize", "offload", "page_lock"),
    [
        (24, 12, "none", "encoders", True),  # encoders of 9.25 GiB
        (24, 8, "fp8", "none", True),  # no room for them there: all on the device
        (20, 8, "float8", "group", False),  # which nothing fits, and loading refuses
        (6, 30, "float8", "group", True),
        (6, 20, "float8", "group", False),
    ],
)
def test_auto_knows_the_hosts_memory_too(
    device_gib: float, host_gib: float, quantize: str, offload: str, page_lock: bool
) -> None:
    room = Room(int(device_gib * GIB), host_gib * GIB)
    chosen, why = choose_runtime(flux_sizes, room, (8, 9))
    assert (chosen.quantize, chosen.offload, chosen.page_lock) == (quantize, offload, page_lock)
    assert f"{device_gib:.1f} GiB and {host_gib:.1f} GiB of the host for weights" in why


def test_one_memory_for_both_is_counted_once() -> None:
    """Weights that wait on the host of a GB10 take the memory that its GPU computes in."""
    chosen, _ = choose_runtime(flux_sizes, Room(24 * GIB, 24 * GIB, is_unified=True), (12, 1))
    assert (chosen.quantize, chosen.offload) == ("fp8", "none")


def test_auto_changes_nothing_without_a_gpu() -> None:
    assert choose_runtime(flux_sizes, Room(GIB), None) == (Runtime(), "no GPU: the plain settings")


def test_other_workers_count_their_files_and_a_context_if_they_run(tmp_path: Path) -> None:
    assert worker_bytes([]) == 0
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    (tmp_path / "config.json").write_bytes(bytes(10))
    folders = [tmp_path, tmp_path, tmp_path / "absent"]
    assert worker_bytes((folder, "none") for folder in folders) == 1000 + CONTEXT_BYTES
