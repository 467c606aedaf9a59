"""A catalog as the texts of its files, and the sums of the weights that they name."""

import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

import structlog

from pipelines.checkpoints.folder.sums import Digests
from pipelines.protocol.images import CheckpointSpec
from server.catalog.chat import ChatModel
from server.catalog.images import CATALOG_FILES, Catalog, CatalogError, ImageModel, load_catalog
from server.flows.catalog.edit import write_text

SendProgress = Callable[[int, int], None]  # bytes that were read, of how many

log = structlog.stdlib.get_logger("darkroom.catalog")


def read_files(folder: Path) -> dict[str, str]:
    """Return the text of each catalog file, by its name. Raises CatalogError."""
    try:
        return {file.name: file.read_text() for file in sorted(folder.glob(CATALOG_FILES))}
    except (OSError, UnicodeDecodeError) as error:
        raise CatalogError(f"{folder}: {error}") from error


def parse(files: Mapping[str, str], configs: Path, weights: Path) -> Catalog:
    """Return the catalog that these files would make in the folder `configs`. Raises CatalogError."""
    with tempfile.TemporaryDirectory(prefix="darkroom-catalog-") as scratch:
        for name, text in files.items():
            (Path(scratch) / name).write_text(text)
        try:
            catalog = load_catalog(Path(scratch), weights)
        except CatalogError as error:
            raise CatalogError(str(error).replace(scratch, str(configs))) from error
    models = {name: replace(model, source=configs / model.source.name) for name, model in catalog.models.items()}
    return replace(catalog, models=models)


def write_files(folder: Path, files: Mapping[str, str], known: Collection[tuple[str, str]]) -> list[str]:
    """Make the folder's catalog files these, but for those whose name and text are not `known`: returns their names. A
    failure is logged: the folder may be read-only, or another gateway's too."""
    edited: list[str] = []
    try:
        present = read_files(folder)
        edited += [name for name, text in present.items() if (name, text) not in known]
        for name in files.keys() - set(edited):
            if present.get(name) != files[name]:
                write_text(folder / name, files[name])
        for name in present.keys() - files.keys() - set(edited):
            (folder / name).unlink(missing_ok=True)
    except (OSError, CatalogError) as error:
        log.warning("the catalog's files can't be written", folder=str(folder), error=str(error))
    return edited


def weight_checksums(
    catalog: Catalog, weights: Path, digests: Digests, send: SendProgress = lambda _done, _total: None
) -> dict[str, str]:
    """Return the SHA-256 of everything that is loaded, by its path as catalog files name it. Blocking: reads the files
    that have changed since the last time. Raises CatalogError for a missing file."""
    sums: dict[str, str] = {}
    images = [path for spec in catalog.checkpoints for path in spec.paths]
    paths = list(dict.fromkeys([*images, *(spec.path for spec in catalog.chat.checkpoints)]))
    done = 0
    total = sum(digests.unread_bytes(path) for path in paths if path.exists())

    def send_progress(count: int) -> None:
        nonlocal done
        done += count
        send(done, max(done, total))  # a file may have grown

    for path in paths:
        name = str(path.relative_to(weights)) if path.is_relative_to(weights) else str(path)
        try:
            sums[name] = digests.of(path, send_progress)
        except OSError as error:
            raise CatalogError(f"{path}: {error.strerror}; all servers of a cluster need the same weights") from error
    return sums


def with_sums(catalog: Catalog, digests: Digests, *, only_known: bool = False) -> Catalog:
    """Return the catalog with versions of its files that are made of their sums. Engines that several machines use know
    a checkpoint by its version, and inodes and times differ between copies. `only_known`: checkpoints with files that
    were not read yet keep the version of this machine. Blocking. Raises CatalogError."""

    def of_files(spec: CheckpointSpec) -> CheckpointSpec:
        folder = spec.runtime.lora_folder
        if only_known and any(map(digests.unread_bytes, (*spec.paths, *([folder] if folder is not None else [])))):
            return spec
        adapters = digests.version([folder]) if folder is not None else ""
        return replace(spec, version=digests.version(spec.paths), adapters_version=adapters)

    def with_checkpoints(model: ImageModel) -> ImageModel:
        other = model.references
        if other is not None:
            other = replace(other, checkpoint=of_files(other.checkpoint))
        return replace(model, checkpoint=of_files(model.checkpoint), references=other)

    def with_spec(chat: ChatModel) -> ChatModel:
        spec = chat.spec
        if spec is None or (only_known and digests.unread_bytes(spec.path)):
            return chat
        return replace(chat, source=replace(spec, version=digests.version([spec.path])))

    try:
        models = {name: with_checkpoints(model) for name, model in catalog.models.items()}
        chats = {name: with_spec(chat) for name, chat in catalog.chat.models.items()}
    except OSError as error:  # a file has gone since the sums were compared
        raise CatalogError(f"{error.filename}: {error.strerror}") from error
    return replace(catalog, models=models, chat=replace(catalog.chat, models=chats))


def compare_checksums(own: Mapping[str, str], expected: Mapping[str, str]) -> None:
    """Check that this server has the weights of the others. Raises CatalogError if any differ."""
    if different := sorted(name for name in expected if own.get(name) != expected[name]):
        raise CatalogError(
            f"the weights of {', '.join(different)} are not those of the other servers (by SHA-256 of their files): "
            "copy them from there"
        )
