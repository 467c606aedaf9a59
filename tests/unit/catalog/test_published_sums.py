"""The sums that are published of a checkpoint's files: which are found, and what is said of a file with another one."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.folder.sums import Digests, check_sum, describe, manifest_of, published_sums
from server.catalog.images import load_catalog
from server.errors import BadRequest
from server.flows.operators.checkpoints import CheckpointManager
from tests.support.weight_files import flux_folder

OTHER = "0123456789ab" + "0" * 52
WEIGHTS = "unet/diffusion.safetensors"
MANIFESTS: dict[str, tuple[str, Callable[[str], str]]] = {
    "darkroom's": ("mine.sha256", lambda sum_: f"{sum_}  mine/{WEIGHTS}\n"),
    "sha256sum's in the folder": ("mine/SHA256SUMS", lambda sum_: f"{sum_} *./{WEIGHTS}\n"),
    "sha256sum's beside the folder": ("SHA256SUMS", lambda sum_: f"{OTHER}  x\n{sum_}  mine/{WEIGHTS}\n"),
    "a file's": (f"mine/{WEIGHTS}.sha256", lambda sum_: f"{sum_}  diffusion.safetensors\r\n"),
    "a file's, without its ending": ("mine/unet/diffusion.sha256", lambda sum_: sum_.upper()),
    "a sum alone": (f"mine/{WEIGHTS}.sha256", lambda sum_: f"\ufeff{sum_}\n"),
    "shasum's with a tag": ("mine/SHA256SUMS.txt", lambda sum_: f"SHA256 ({WEIGHTS}) = {sum_}\n"),
}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    file = tmp_path / "mine" / WEIGHTS
    file.parent.mkdir(parents=True)
    file.write_bytes(b"weights")
    return file


def sum_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize("kind", MANIFESTS)
def test_a_manifest_beside_the_files_is_compared(weights: Path, tmp_path: Path, kind: str) -> None:
    name, text = MANIFESTS[kind]
    manifest = tmp_path / name
    manifest.write_text(text(sum_of(weights)))
    check_sum(weights, sum_of(weights), [tmp_path])
    manifest.write_text(text(OTHER))
    with pytest.raises(CheckpointError) as refused:
        check_sum(weights, sum_of(weights), [tmp_path])
    for part in (str(weights), sum_of(weights)[:12], OTHER[:12], str(manifest), "Copy or download it again"):
        assert part in str(refused.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("SHA256SUMS", f"{OTHER}  {WEIGHTS}\n"),  # of a file in another folder
        ("mine/SHA256SUMS", "no sums\n"),
        ("mine/SHA256SUMS", f"{OTHER}  other.safetensors\n"),
        (f"mine/{WEIGHTS}.sha256", f"{OTHER[:40]}  diffusion.safetensors\n"),  # a SHA-1
        ("mine/unet/other.sha256", OTHER),
    ],
)
def test_what_is_said_of_other_files_counts_for_nothing(weights: Path, tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert list(published_sums(weights, [tmp_path])) == []


def test_no_manifest_above_the_checkpoints_folder_is_read(weights: Path, tmp_path: Path) -> None:
    (tmp_path / "SHA256SUMS").write_text(f"{OTHER}  mine/{WEIGHTS}\n")
    assert list(published_sums(weights, [tmp_path / "mine"])) == []


def test_a_blob_of_a_download_cache_is_named_by_its_sum(weights: Path, tmp_path: Path) -> None:
    blobs = tmp_path / "models--a--b" / "blobs"
    snapshot = tmp_path / "models--a--b" / "snapshots" / "1"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for name in (sum_of(weights), OTHER, OTHER[:40]):  # 40 digits are git's name of a small file
        (blobs / name).write_bytes(b"weights")
        (snapshot / name[-50:]).symlink_to(blobs / name)
        if name != OTHER:
            check_sum(snapshot / name[-50:], sum_of(weights), [tmp_path])
    with pytest.raises(CheckpointError, match="its name in the download cache says 0123456789ab"):
        check_sum(snapshot / OTHER[-50:], sum_of(weights), [tmp_path])
    (tmp_path / "linked.safetensors").symlink_to(blobs / OTHER)
    with pytest.raises(CheckpointError, match="Delete the blob and download it again"):
        check_sum(tmp_path / "linked.safetensors", sum_of(weights), [tmp_path])


def test_a_damaged_checkpoint_is_not_added_and_its_manifest_stays(
    manager: CheckpointManager, folders: tuple[Path, Path]
) -> None:
    folder = flux_folder(folders[1] / "flux")
    manifest = manifest_of(folder)
    manifest.write_text(text := f"{OTHER}  flux/vae/diffusion_pytorch_model.safetensors\n")
    files = sorted(folders[0].iterdir())
    with pytest.raises(BadRequest, match=r"Nothing is added\. .*/flux/vae/.*says 0123456789ab") as refused:
        manager.add("flux")
    assert refused.value.param == "checkpoint"
    assert (sorted(folders[0].iterdir()), manifest.read_text()) == (files, text)
    manifest.unlink()
    assert manager.add("flux").manifest == manifest
    assert {each.state for each in manager.verify("flux")} == {"unchanged"}


def test_what_was_read_to_add_a_checkpoint_is_not_read_again(folders: tuple[Path, Path], tmp_path: Path) -> None:
    flux_folder(folders[1] / "flux")
    digests = Digests(tmp_path / "digests.json")
    CheckpointManager(*folders, digests).add("flux", name="mine")
    read: list[int] = []
    assert "sha256" in describe(load_catalog(*folders).models["mine"].checkpoint, digests, read.append)
    assert read == []
