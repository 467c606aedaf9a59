"""Which files make a checkpoint another one: whatever of them is changed in whatever way, the next reload sees it."""

import os
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.folder.files import CheckpointFiles
from pipelines.checkpoints.folder.sums import Digests, verify, write_manifest
from pipelines.checkpoints.folder.versions import FileVersion, delete, files_in, files_version
from pipelines.checkpoints.inspection.suggestion import suggested_spec
from pipelines.checkpoints.work.estimate import weights_key
from pipelines.protocol.images import CheckpointSpec
from server.catalog.chat import read_chat
from server.catalog.images import load_catalog
from server.catalog.schema import CheckpointFile, CheckpointTable
from server.catalog.specs import checkpoint_spec
from server.flows.catalog.files import with_sums
from server.flows.operators.checkpoints import CheckpointManager
from server.moderation.policy import load_policy
from tests.support.harness import REPOSITORY
from tests.support.weight_files import denoiser_file, flux_folder

OLD_NS = 10**18  # 2001
TABLES = """
family = "beta"
conditioning = "native"
steps = 2
checkpoint = "{checkpoint}"
{keys}
[runtime]
{runtime}
{tables}
[[models]]
name = "mine"
tier = "1K"
price = "0.01"
"""
IN_CHECKPOINT = "transformer/diffusion_pytorch_model.safetensors"
# By the key that names them: the catalog file's parts, and a file of those that a load reads
PLACES: Mapping[str, tuple[dict[str, str], str]] = {
    "checkpoint": ({"checkpoint": "own"}, f"own/{IN_CHECKPOINT}"),
    "checkpoint, a config": ({"checkpoint": "own"}, "own/text_encoder/config.json"),
    "checkpoint, a tokenizer": ({"checkpoint": "own"}, "own/tokenizer/merges.txt"),
    "checkpoint, the index": ({"checkpoint": "own"}, "own/model_index.json"),
    "checkpoint, a file": ({"keys": 'base = "own"', "checkpoint": "one.safetensors"}, "one.safetensors"),
    "base": ({"keys": 'base = "own"', "checkpoint": "one.safetensors"}, "own/vae/diffusion_pytorch_model.safetensors"),
    "config": ({"keys": 'config = "own"', "checkpoint": "one.safetensors"}, "own/vae/config.json"),
    "vae": ({"keys": 'vae = "part"'}, "part/file.safetensors"),
    "text_encoder": ({"keys": 'text_encoder = "one.safetensors"'}, "one.safetensors"),
    "text_encoder_2": ({"keys": 'text_encoder_2 = "part"'}, "part/file.safetensors"),
    "text_encoder_3": ({"keys": 'text_encoder_3 = "part"'}, "part/file.safetensors"),
    "denoiser": ({"keys": 'denoiser = "part"'}, "part/file.safetensors"),
    "runtime.loras": ({"runtime": 'loras = [{path = "one.safetensors"}]'}, "one.safetensors"),
    "runtime.loras, its strength": (
        {"runtime": 'loras = [{path = "peft/adapter_model.safetensors"}]'}, "peft/adapter_config.json",
    ),
    "runtime.lora_folder": ({"runtime": 'lora_folder = "part"'}, "part/file.safetensors"),
    "runtime.embedding_folder": ({"runtime": 'embedding_folder = "part"'}, "part/file.safetensors"),
    "controlnets.checkpoint": (
        {"tables": '[[controlnets]]\nname = "a"\ncheckpoint = "part"\nmap = "canny"'}, "part/file.safetensors",
    ),
    "t2i_adapters.checkpoint": (
        {"tables": '[[t2i_adapters]]\nname = "a"\ncheckpoint = "part"\nmap = "canny"'}, "part/file.safetensors",
    ),
    "ip_adapters.checkpoint": (
        {"tables": '[[ip_adapters]]\nname = "a"\ncheckpoint = "one.safetensors"\nimage_encoder = "part"'},
        "one.safetensors",
    ),
    "ip_adapters.image_encoder": (
        {"tables": '[[ip_adapters]]\nname = "a"\ncheckpoint = "one.safetensors"\nimage_encoder = "part"'},
        "part/file.safetensors",
    ),
    "references.checkpoint": (
        {"tables": '[references]\ncheckpoint = "part"\nconditioning = "native"\nsteps = 2'}, "part/file.safetensors",
    ),
}  # fmt: skip


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Weights, and a catalog beside them with one model."""
    folder = tmp_path / "weights"
    flux_folder(folder / "own")
    (folder / "own" / "tokenizer" / "merges.txt").write_text("a b")
    denoiser_file(folder / "one.safetensors")
    for name in ("part", "peft"):
        (folder / name).mkdir()
    denoiser_file(folder / "part" / "file.safetensors")
    denoiser_file(folder / "peft" / "adapter_model.safetensors")
    (folder / "peft" / "adapter_config.json").write_text("{}")
    (tmp_path / "configs").mkdir()
    shutil.copy(REPOSITORY / "model_configs" / "presets.toml", tmp_path / "configs")
    (tmp_path / "configs" / "catalog.toml").write_text('default = "mine"\n[groups]\nbeta = "all"\n')
    return folder


def reader_of(weights: Path, parts: Mapping[str, str]) -> Callable[[], tuple[CheckpointSpec, ...]]:
    """Reads the specs of a catalog file anew, as a reload does."""
    values = {"checkpoint": "own", "keys": "", "runtime": "", "tables": ""} | parts
    text = TABLES.format(**values)
    (weights.parent / "configs" / "mine.toml").write_text(text)
    file = CheckpointFile.model_validate(tomllib.loads(text))
    tables = [file, *([file.references] if file.references is not None else [])]
    return lambda: tuple(checkpoint_spec(table, "beta", weights, 2**20, "") for table in tables)


def other(file: Path) -> Path:
    """A file of other bytes, as many as this has, from which nothing else tells it."""
    copy = file.with_name(f"new-{file.name}.part")
    copy.write_bytes(bytes(byte ^ 1 for byte in file.read_bytes()))
    return copy


def put_in_place_with_an_older_date(file: Path) -> None:
    os.utime(made := other(file), ns=(OLD_NS, OLD_NS))
    made.replace(file)


def put_in_place_with_the_same_date(file: Path) -> None:
    status = file.stat()
    os.utime(made := other(file), ns=(status.st_atime_ns, status.st_mtime_ns))
    made.replace(file)


def write_over_with_an_older_date(file: Path) -> None:
    """As `cp -p` does, and tar and unzip."""
    os.utime(made := other(file), ns=(OLD_NS, OLD_NS))
    shutil.copyfile(made, file)
    shutil.copystat(made, file)
    made.unlink()


def write_over_with_the_same_date(file: Path) -> None:
    status, content = file.stat(), other(file)
    while file.stat().st_ctime_ns == status.st_ctime_ns:  # its clock has ticks of milliseconds
        shutil.copyfile(content, file)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    content.unlink()


def make_longer(file: Path) -> None:
    status = file.stat()
    file.write_bytes(file.read_bytes() + b" ")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


WAYS = (
    put_in_place_with_an_older_date, put_in_place_with_the_same_date, write_over_with_an_older_date,
    write_over_with_the_same_date, make_longer, Path.unlink,
)  # fmt: skip


def link_file(file: Path, aside: Path) -> Path:
    """The file is a link to one elsewhere. Returns that."""
    file.rename(moved := aside / file.name)
    file.symlink_to(moved)
    return moved


def link_folder(file: Path, aside: Path) -> Path:
    """The file's folder is a link to one elsewhere."""
    file.parent.rename(moved := aside / file.parent.name)
    file.parent.symlink_to(moved)
    return moved / file.name


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("link", [None, link_file, link_folder])
def test_every_change_of_a_file_that_a_load_reads_makes_another_spec(
    link: Callable[[Path, Path], Path] | None, place: str, weights: Path, tmp_path: Path
) -> None:
    parts, name = PLACES[place]
    file = weights / name
    (tmp_path / "aside").mkdir()
    if link is not None and not (link is link_folder and file.parent == weights):
        file = link(file, tmp_path / "aside")
    os.utime(weights / "own" / "scheduler" / "scheduler_config.json")  # newer than all others
    read = reader_of(weights, parts)
    seen = [read()]
    assert read() == seen[0], "nothing has changed"
    for way in WAYS:
        way(file)
        seen.append(read())
        assert seen[-1] not in seen[:-1], way.__name__


@pytest.mark.parametrize("place", PLACES)
def test_a_link_that_leads_elsewhere_makes_another_spec(place: str, weights: Path, tmp_path: Path) -> None:
    parts, name = PLACES[place]
    (tmp_path / "aside").mkdir()
    for link in (link_file, link_folder):
        file = weights / name
        if file.parent == weights and link is link_folder:
            continue
        moved = link(file, tmp_path / "aside")
        read = reader_of(weights, parts)
        before = read()
        entry, target = (file, moved) if link is link_file else (file.parent, moved.parent)
        twin = target.with_name(f"twin-{target.name}")
        (shutil.copy2 if link is link_file else shutil.copytree)(target, twin)
        entry.unlink()
        entry.symlink_to(twin)
        assert read() != before
        entry.unlink()
        twin.rename(entry)


def path_keys(table: type[BaseModel]) -> Iterator[str]:
    """The keys of a catalog file that take any text at all, as paths do."""
    for name, field in table.model_fields.items():
        inner = [each for each in leaves(field.annotation) if isinstance(each, type) and issubclass(each, BaseModel)]
        if inner:
            yield from (f"{name}.{key}" for each in inner for key in path_keys(each))
        elif str in leaves(field.annotation):
            yield name


def leaves(annotation: Any) -> list[Any]:
    inner = [leaf for each in get_args(annotation) for leaf in leaves(each)]
    return [annotation, *inner]


def test_every_key_that_names_a_file_is_tried_here() -> None:
    no_files = {
        "name", "map", "url", "model", "api_key_env", "supports", "scheduler", "negative_prompt", "schedulers",
        "scheduler_config", "attention", "control_map",
    }  # fmt: skip
    named = {key for key in path_keys(CheckpointTable) if key.split(".")[-1] not in no_files}
    tried = {place.split(",")[0] for place in PLACES}
    assert {key.removesuffix(".path") for key in named} <= tried


@pytest.mark.parametrize("name", ["README.md", "own/README.md", "own/preview.png", "own/.cache/lock", "own/.x.part"])
def test_what_no_load_reads_changes_nothing(name: str, weights: Path) -> None:
    read = reader_of(weights, {})
    before = read()
    (weights / name).parent.mkdir(exist_ok=True)
    (weights / name).write_text("new")
    assert read() == before


def test_a_change_of_an_adapter_that_calls_name_loads_no_weights_anew(weights: Path) -> None:
    read = reader_of(weights, {"runtime": 'lora_folder = "part"'})
    (before,) = read()
    (weights / "part" / "more.safetensors").touch()
    (after,) = read()
    assert after != before
    assert weights_key(after) == weights_key(before)


@pytest.mark.parametrize(
    ("checkpoint", "name"),
    [("own", "own/model.safetensors"), ("own", "own/chat_template.jinja"), ("q.gguf", "q.gguf"),
     ("q.gguf", "tokenizer_config.json"), ("q.gguf", "chat_template.jinja")],
)  # fmt: skip
@pytest.mark.parametrize("way", WAYS)
def test_a_chat_checkpoint_whose_files_change_is_another(
    checkpoint: str, name: str, way: Callable[[Path], object], weights: Path, tmp_path: Path
) -> None:
    for file in ("own/model.safetensors", "own/chat_template.jinja", "q.gguf", "tokenizer_config.json"):
        (weights / file).write_text("{}")
    (weights / "chat_template.jinja").write_text("{}")
    (tmp_path / "chat.toml").write_text(f'[[models]]\nname = "c"\ncheckpoint = "{checkpoint}"\n')

    def read() -> object:
        return read_chat(tmp_path / "chat.toml", weights, (), []).models["c"].spec

    before = read()
    assert read() == before
    way(weights / name)
    assert read() != before


def test_a_classifier_whose_files_change_is_another(weights: Path, tmp_path: Path) -> None:
    (weights / "own" / "config.json").write_text('{"id2label": {"0": "bad"}}')
    (tmp_path / "policy.toml").write_text(
        '[[classifiers]]\nreads = "prompts"\ncheckpoint = "own"\n'
        '[classifiers.labels.bad]\npolicy = "p"\ncategory = "c"\nthreshold = 0.5\n'
    )
    before = load_policy(tmp_path / "policy.toml", weights, ()).checkpoints
    assert load_policy(tmp_path / "policy.toml", weights, ()).checkpoints == before
    put_in_place_with_the_same_date(weights / "own" / IN_CHECKPOINT)
    assert load_policy(tmp_path / "policy.toml", weights, ()).checkpoints != before


def test_machines_with_the_same_files_know_a_checkpoint_by_the_same_version(weights: Path, tmp_path: Path) -> None:
    parts = {"keys": 'vae = "part"', "runtime": 'lora_folder = "part"\nloras = [{path = "one.safetensors"}]'}
    reader_of(weights, parts)
    (tmp_path / "configs" / "chat.toml").write_text('[[models]]\nname = "c"\ncheckpoint = "own"\n')
    shutil.copytree(weights, tmp_path / "copy")
    for file in files_in(tmp_path / "copy"):
        os.utime(file, ns=(OLD_NS, OLD_NS))
    digests = Digests(tmp_path / "digests.json")
    here, there = (load_catalog(tmp_path / "configs", folder) for folder in (weights, tmp_path / "copy"))
    assert here.checkpoints[0].version != there.checkpoints[0].version

    def versions() -> list[list[str]]:
        catalogs = [
            with_sums(load_catalog(tmp_path / "configs", each), digests) for each in (weights, tmp_path / "copy")
        ]
        images = [[each.checkpoints[0].version, each.checkpoints[0].adapters_version] for each in catalogs]
        return [[*image, each.chat.checkpoints[0].version] for image, each in zip(images, catalogs, strict=True)]

    one, two = versions()
    assert one == two
    put_in_place_with_the_same_date(tmp_path / "copy" / "part" / "file.safetensors")
    put_in_place_with_the_same_date(tmp_path / "copy" / "own" / IN_CHECKPOINT)
    assert not {*one} & {*versions()[1]}
    assert versions()[0] == one


def test_a_checkpoint_that_is_tried_before_it_has_a_catalog_file_is_known_by_its_files(weights: Path) -> None:
    manager = CheckpointManager(weights.parent / "configs", weights)
    before = suggested_spec("own", *manager.inspect("own"))
    assert suggested_spec("own", *manager.inspect("own")) == before
    put_in_place_with_the_same_date(weights / "own" / "vae" / "config.json")
    assert suggested_spec("own", *manager.inspect("own")).version != before.version


def test_a_folder_of_linked_parts_is_read_as_one_of_its_own(weights: Path, tmp_path: Path) -> None:
    spec = CheckpointSpec("own", weights / "own", None, "beta", "native", 1)
    whole = Digests(tmp_path / "digests.json").of(weights / "own")
    for part in [each for each in (weights / "own").iterdir() if each.is_dir()]:
        part.rename(tmp_path / part.name)
        part.symlink_to(tmp_path / part.name)
    assert CheckpointFiles.of(spec).checked_folder.path == weights / "own"
    assert Digests(tmp_path / "digests.json").of(weights / "own") == whole
    files = files_in(weights / "own")
    write_manifest(weights / "own", dict(zip(files, Digests(tmp_path / "digests.json").of_files(files), strict=True)))
    put_in_place_with_the_same_date(tmp_path / "vae" / "config.json")
    assert {each.file for each in verify(weights / "own") if each.state == "changed"} == {"own/vae/config.json"}
    listed = {each.name: each for each in CheckpointManager(tmp_path / "configs", weights).list_all()}
    assert listed["own"].bytes == sum(file.stat().st_size for file in files_in(weights / "own"))
    (tmp_path / "vae" / "modeling.py").write_text("import os")
    with pytest.raises(CheckpointError, match=r"vae/modeling\.py: checkpoints may not bring code"):
        _ = CheckpointFiles.of(spec).checked_folder


def test_links_that_go_round_end(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "file").touch()
    (tmp_path / "a" / "b" / "up").symlink_to("..")
    (tmp_path / "a" / "here").symlink_to(".")
    (tmp_path / "a" / "self").symlink_to("self")
    (tmp_path / "a" / "nowhere").symlink_to("gone")
    (tmp_path / "a" / "again").symlink_to("b")
    (tmp_path / "a" / "b" / "deep").touch()
    os.mkfifo(tmp_path / "a" / "pipe")  # reading it would wait for ever
    names = [str(file.relative_to(tmp_path / "a")) for file in files_in(tmp_path / "a")]
    assert names == ["again/deep", "b/deep", "file"]


def test_names_that_no_file_can_have_are_no_files(tmp_path: Path) -> None:
    names = ["x" * 300, "a\0b", "file/below", "gone"]
    (tmp_path / "file").touch()
    for name in names:
        assert FileVersion.find(tmp_path / name) is None
        assert files_version([tmp_path / name]) == files_version([tmp_path / name])


def test_the_strength_beside_an_adapter_is_a_part_of_its_version(weights: Path) -> None:
    file = weights / "peft" / "adapter_model.safetensors"
    before = FileVersion.find(file)
    put_in_place_with_the_same_date(file.with_name("adapter_config.json"))
    assert FileVersion.find(file) != before


def test_a_blob_that_a_linked_folder_leads_to_is_kept(weights: Path, tmp_path: Path) -> None:
    blob = weights / "models--x--y" / "blobs" / "abc"
    blob.parent.mkdir(parents=True)
    blob.touch()
    (tmp_path / "elsewhere").mkdir()
    (weights / "shared").symlink_to(tmp_path / "elsewhere")
    for link in (tmp_path / "elsewhere" / "a.safetensors", weights / "b.safetensors"):
        link.symlink_to(blob)
    delete(weights / "b.safetensors", weights)
    assert blob.exists()
    delete(tmp_path / "elsewhere" / "a.safetensors", weights)
    assert not blob.exists()
