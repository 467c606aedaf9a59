"""Looks at checkpoints on the disk and their catalog files, adds them, checks their sums, and removes them.

Blocking, and without a running server: commands use it as they are, routes in threads. A running server serves a new
checkpoint once it reloads its catalog.
"""

import re
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pipelines.checkpoints.classes.index import index_file
from pipelines.checkpoints.errors import BrokenFile, CheckpointError
from pipelines.checkpoints.folder.files import CheckpointFiles
from pipelines.checkpoints.folder.folder import CheckpointFolder
from pipelines.checkpoints.folder.problems import similar_names
from pipelines.checkpoints.folder.sums import (
    Checked,
    Digests,
    check_sum,
    manifest_of,
    sha256_of,
    verify,
    write_manifest,
)
from pipelines.checkpoints.folder.versions import HUB_CACHE, cache_of, checkpoint_files, delete, files_in, shortened
from pipelines.checkpoints.inspection.beside_folders import find_bases, loads_all_components, nearest_base
from pipelines.checkpoints.inspection.findings import Inspection, inspect_checkpoint
from pipelines.checkpoints.inspection.suggestion import Suggestion, adapter_weight, suggest
from pipelines.checkpoints.weight_file.adapters import Adapter, read_adapter, read_adapters
from pipelines.checkpoints.weight_file.file import SINGLE_FILES, WeightFile
from pipelines.protocol.images import CheckpointSpec
from server.catalog.images import Catalog, CatalogError, ImageModel, load_catalog
from server.catalog.new_file import Loading, NewFile, NewModel, catalog_text, name_for
from server.catalog.sizes import Tier
from server.errors import BadRequest, NotFound
from server.flows.catalog.edit import SettingChange
from server.flows.catalog.fit import Comparison, changed_values
from server.flows.operators.runtime_here import meaning_here
from server.money import format_money

MOST_NAMED = 20  # of what is in a folder


@dataclass(frozen=True, slots=True)
class ListedCheckpoint:
    """A checkpoint that is on the disk or in the catalog, with its size and state."""

    name: str  # as catalog files name it
    path: Path
    bytes: int  # of all its files
    models: tuple[str, ...]  # that it draws, by the catalog's files
    state: str  # "in the catalog", "not in the catalog" or "missing"
    has_manifest: bool


@dataclass(frozen=True, slots=True)
class Added:
    """A new catalog file. `manifest` is None where none could be written, such as on a read-only disk."""

    file: Path
    text: str
    models: tuple[str, ...]
    manifest: Path | None
    needs: tuple[str, ...]
    loading: str | None  # what `runtime = "auto"` means on this machine; None where the file does not have it


class CheckpointManager:
    """The checkpoints under `weights` and the catalog files in `model_configs`. `digests` knows the sums that were read
    before, and so will the reload that serves what is added."""

    def __init__(self, model_configs: Path, weights: Path, digests: Digests | None = None) -> None:
        self._model_configs = model_configs
        self._weights = weights
        self._digests = digests

    def inspect(
        self,
        checkpoint: str,
        base: str | None = None,
        config: str | None = None,
        loras: Sequence[str] = (),
        like: CheckpointSpec | None = None,
    ) -> tuple[Inspection, Suggestion]:
        """Return the facts and capabilities of a checkpoint, and the values that fit it and the adapters of all its
        images. `base` and `config` go with a single file; of several folders that fit, that of `like` is taken, and its
        adapters. Raises NotFound, and BadRequest if one must be named."""
        path = self._locate(checkpoint, "checkpoint")
        if base is not None and config is not None:
            raise BadRequest("'base' is for a denoiser alone and 'config' for a whole checkpoint.", param="config")
        beside = [self._locate(each, key) if each else None for each, key in ((base, "base"), (config, "config"))]
        files = CheckpointFiles.at(path, *beside)
        if files.folder is not None or files.file is None:
            inspection = inspect_checkpoint(files)
        else:
            inspection = self._inspect_file(files.file, like)
        kept = [lora.path for lora in like.runtime.loras] if like is not None else []
        return inspection, suggest(inspection, [*kept, *self._adapters(loras)])

    def _adapters(self, loras: Sequence[str]) -> list[Path]:
        """Find adapters. Raises NotFound, and BadRequest for a file that no model takes."""
        found = [self._locate(each, "loras") for each in loras]
        for path in found:
            problem = read_adapter(path).problem if path.is_file() else "it is a folder: name its .safetensors file"
            if problem is not None:
                raise BadRequest(f"{path.name}: {problem}.", param="loras")
        return found

    def _inspect_file(self, file: WeightFile, like: CheckpointSpec | None) -> Inspection:
        """Inspect a single file with the folder that fits. With a class that loads no whole files, only the denoiser is
        used."""
        alone = CheckpointFiles(file.path, file)
        if file.upscaler is not None:
            return inspect_checkpoint(alone)
        folders = self._folders()
        base = self._find_base(file, folders, (like.config or like.base) if like is not None else None)
        folder = base
        if folder is None and like is not None and like.config is not None and file.has_other_components:
            folder = CheckpointFolder(like.config)
        if folder is not None and loads_all_components(file, folder):
            return inspect_checkpoint(replace(alone, folder=folder))
        if base is not None:
            return inspect_checkpoint(replace(alone, folder=base, is_base=True))
        inspection, nearest = inspect_checkpoint(alone), nearest_base(file, folders)
        if nearest is None:
            return inspection
        folder, weights, own_weights = nearest
        message = f"the nearest folder here is {self._name(folder.path)}, whose denoiser has {weights:,} weights; "
        message += f"the file's has {own_weights:,}. Name it if they go together"
        return replace(inspection, problems=(*inspection.problems, message))

    def add(  # noqa: PLR0913 (what a person may say of it)
        self,
        checkpoint: str,
        *,
        name: str | None = None,
        family: str | None = None,
        tiers: Sequence[Tier] = ("1K",),
        price: str | None = None,
        base: str | None = None,
        config: str | None = None,
        loras: Sequence[str] = (),
        runtime: Loading = "auto",
    ) -> Added:
        """Write the catalog file and the manifest of a checkpoint. Raises ApiError; then no file was written."""
        inspection, suggestion = self.inspect(checkpoint, base, config, loras)
        weights = inspection.files.file
        if inspection.folder is None and weights is not None and weights.has_other_components:
            folders = ", ".join(self._name(folder) for folder in self._on_disk() if folder.is_dir())
            message = "It has all components: name the diffusers folder of its configs in 'config'. Folders here: "
            raise BadRequest(f"{message}{folders or 'none'}.", param="config")
        if inspection.problems:
            raise BadRequest(f"It can't be served: {'; '.join(inspection.problems)}", param="checkpoint")
        catalog = self._catalog()
        family = family or _family_of(catalog, inspection.conditioning)
        path = shortened(self._locate(checkpoint, "checkpoint"))
        stem = name or _slug(path)
        models = [
            NewModel(name_for(stem, tier), tier, price or _price_of(catalog, family, tier))
            for tier in dict.fromkeys(tiers)
        ]
        if taken := [catalog.models[model.name] for model in models if model.name in catalog.models]:
            message = f"`{taken[0].name}` is served already, by {taken[0].source.name}: choose another name."
            raise BadRequest(message, param="name")
        base_name, config_name = map(self._name_if, (inspection.base, inspection.config))
        weighted = [(self._name(each), adapter_weight(inspection, each)) for each in self._adapters(loras)]
        new = NewFile(self._name(path), base_name, config_name, family, models, inspection.notes, runtime, weighted)
        text = catalog_text(new, suggestion)
        is_auto = runtime == "auto" and suggestion.conditioning != "upscale"
        loading = meaning_here(inspection.files) if is_auto else None
        file = self._model_configs / f"{_slug(Path(stem))}.toml"
        self._write(file, text)
        try:
            manifest = self._write_sums(path)
        except CheckpointError as error:
            file.unlink()
            raise BadRequest(f"Nothing is added. {error}.", param="checkpoint") from error
        return Added(file, text, tuple(model.name for model in models), manifest, inspection.needs, loading)

    def fit(self, model: ImageModel, checkpoint: str) -> list[SettingChange]:
        """Return the values of a model's catalog file that change with its checkpoint. Raises as `compare` does."""
        compared = self.compare(model, checkpoint)
        return changed_values(compared) if compared is not None else []

    def compare(self, model: ImageModel, checkpoint: str) -> Comparison | None:
        """Compare a model's checkpoint with another one, which is to take its place. None if that can't be served:
        loading it will fail, and say more. Raises NotFound, and BadRequest if several folders go with it."""
        spec = model.checkpoint
        try:
            inspection, suggestion = self.inspect(checkpoint, like=spec)
        except BadRequest as error:
            message = f"{error.message} Edit `checkpoint` and `{error.param}` in {model.source.name}, and reload."
            raise BadRequest(message, param=error.param) from error
        if inspection.problems:
            return None
        old = inspect_checkpoint(CheckpointFiles.at(spec.path, spec.base, spec.config))
        before = None if old.problems else suggest(old, [lora.path for lora in spec.runtime.loras])
        folders = {
            "base": (self._name_if(spec.base), self._name_if(inspection.base)),
            "config": (self._name_if(spec.config), self._name_if(inspection.config)),
        }
        return Comparison(model, old, inspection, before, suggestion, folders)

    def folder_advice(self, checkpoint: str) -> str | None:
        """Say what to write for a checkpoint in one file with which none of the folders here goes; None for others."""
        path = self._weights / checkpoint
        if not path.is_file() or path.suffix not in SINGLE_FILES:
            return None
        file = WeightFile(path)
        with suppress(BrokenFile):
            if file.kind is not None:
                return None
        folders = ", ".join(self._name(folder.path) for folder in self._folders()) or "none"
        whole, alone = "`config`, the diffusers folder of its configs,", "`base`, the folder with the other parts,"
        needed = whole if file.has_other_components else alone
        return (
            f"{path.name} is one file, and no folder here goes with it (there are: {folders}). Write `checkpoint = "
            f'"{checkpoint}"` and {needed}'
        )

    def list_all(self) -> list[ListedCheckpoint]:
        """List the checkpoints of the catalog, then the others under the weights folder."""
        try:
            served = list(self._catalog().models.values())
        except BadRequest:  # a broken catalog names none
            served = []
        used: dict[Path, list[str]] = {}
        for model in served:
            named = (self._weights / self._name(path) for spec in model.checkpoints for path in spec.paths)
            for path in dict.fromkeys(named):
                used.setdefault(path, []).append(model.name)
        drawn = (spec for model in served for spec in model.checkpoints if spec.upstream is None)
        paths = dict.fromkeys([*(self._weights / self._name(spec.path) for spec in drawn), *self._on_disk()])
        return [self._found(path, used.get(path, [])) for path in paths]

    def models_of(self, checkpoint: str) -> tuple[str, ...]:
        """Return the names of the models that a checkpoint draws, by its name in the catalog's files."""
        return next((found.models for found in self.list_all() if found.name == checkpoint), ())

    def adapters(self) -> dict[str, list[Adapter]]:
        """Return the adapters of each model that takes them by request, by its name: those of its folder."""
        folders = {model.name: model.checkpoint.runtime.lora_folder for model in self._catalog().models.values()}
        return {name: read_adapters(folder) for name, folder in folders.items() if folder is not None}

    def verify(self, checkpoint: str) -> list[Checked]:
        """Compare every file with its manifest, and return the comparisons. Reads the files whole. Raises NotFound."""
        path = self._locate(checkpoint, "checkpoint")
        if not manifest_of(path).is_file():
            message = f"There is no {manifest_of(path)}: `darkroom checkpoints add` writes it."
            raise NotFound(message, param="checkpoint")
        return list(verify(path))

    def remove(self, model: str, *, delete_files: bool = False) -> list[Path]:
        """Delete the catalog file of a model and, if told so, the files that its `checkpoint` names. Returns the
        deleted paths.

        Raises ApiError, then nothing was deleted: also where the rest of the catalog needs those files.
        """
        catalog = self._catalog()
        found = catalog.find(model)
        if found is None:
            known = ", ".join(catalog.models)
            raise NotFound(f"There is no image model `{model}`. Image models here: {known}.", param="model")
        source = found.source
        text = source.read_text()
        checkpoint = self._deletable(source, text, catalog) if delete_files else None
        source.unlink()
        try:
            self._catalog()
        except BadRequest as error:
            source.write_text(text)
            message = f"{source.name} is not removed, since the rest of the catalog needs it: {error.message}"
            raise BadRequest(message, code="in_use") from error
        deleted = [source]
        for path in (checkpoint, manifest_of(checkpoint)) if checkpoint is not None else ():
            if path.exists():
                delete(path, self._weights)
                deleted.append(path)
        return deleted

    def _deletable(self, source: Path, text: str, catalog: Catalog) -> Path | None:
        """Return the checkpoint of a catalog file, exactly as the file names it; None for another server's model.
        Raises BadRequest if it must stay."""
        name = tomllib.loads(text).get("checkpoint")
        if name is None:
            return None
        checkpoint: Path = self._weights / name
        if self._weights.resolve() not in checkpoint.resolve().parents:
            raise BadRequest(f"{checkpoint} is not under the weights folder: delete it by hand.", param="delete_files")
        place = checkpoint.parent.resolve() / checkpoint.name
        for path in _named_elsewhere(catalog, source):
            for needed in (path.parent.resolve() / path.name, path.resolve()):  # a link, and where it leads
                if needed.is_relative_to(place) or place.is_relative_to(needed):
                    raise BadRequest(f"{checkpoint} is not deleted: another catalog file names it.", code="in_use")
        return checkpoint

    def _catalog(self) -> Catalog:
        try:
            return load_catalog(self._model_configs, self._weights)
        except CatalogError as error:
            raise BadRequest(f"The catalog is invalid:\n{error}", code="invalid_catalog") from error

    def _locate(self, text: str, param: str) -> Path:
        """Find a path under the weights folder, or anywhere else. Raises NotFound."""
        for path in (self._weights / text, Path(text).absolute()):
            try:
                if path.exists():
                    return path
            except (OSError, ValueError):
                continue
        if not (hint := similar_names(self._weights / text) or similar_names(Path(text).absolute())):
            found = sorted(path.name for path in self._weights.glob("*") if not path.name.startswith("."))
            more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
            hint = f". {self._weights} has: {', '.join(found[:MOST_NAMED]) or 'nothing'}{more}."
        raise NotFound(f"There is no checkpoint at {text[:200]}{hint}", param=param)

    def _name(self, path: Path) -> str:
        """Return a path as catalog files name it: relative to the weights folder if it is inside."""
        weights, path = self._weights.absolute(), shortened(path)
        return str(path.absolute().relative_to(weights)) if path.absolute().is_relative_to(weights) else str(path)

    def _name_if(self, path: Path | None) -> str | None:
        return self._name(path) if path is not None else None

    def _find_base(
        self, file: WeightFile, folders: Sequence[CheckpointFolder], current: Path | None
    ) -> CheckpointFolder | None:
        """Return the folder whose denoiser has as many weights as a single file's: the current one, or the only one.
        Raises BadRequest if there are several: trainings of one architecture differ."""
        found = find_bases(file, folders)
        if (same := next((folder for folder in found if folder.path == current), None)) is not None:
            return same
        if len(found) > 1:
            names = ", ".join(self._name(folder.path) for folder in found)
            key = "config" if any(loads_all_components(file, folder) for folder in found) else "base"
            message = f"Several folders go with {file.path.name}: {names}. "
            raise BadRequest(f"{message}Name the one that it was trained from in '{key}'.", param=key)
        return found[0] if found else None

    def _folders(self) -> list[CheckpointFolder]:
        return [CheckpointFolder(path) for path in self._on_disk() if path.is_dir()]

    def _on_disk(self) -> Iterator[Path]:
        for path in sorted(self._weights.iterdir()) if self._weights.is_dir() else []:
            named = path.suffix in SINGLE_FILES or path.name.startswith(HUB_CACHE)
            if not path.name.startswith(".") and (named or index_file(path).is_file()):
                yield path

    def _found(self, path: Path, models: Sequence[str]) -> ListedCheckpoint:
        state = "missing" if not path.exists() else "in the catalog" if models else "not in the catalog"
        blobs = {file.resolve() for file in files_in(path) if file.is_file()}  # once, if a hub cache links to them
        return ListedCheckpoint(
            name=self._name(path),
            path=path,
            bytes=sum(file.stat().st_size for file in blobs),
            models=tuple(models),
            state=state,
            has_manifest=manifest_of(path).is_file(),
        )

    def _write_sums(self, path: Path) -> Path | None:
        """Write the manifest of a checkpoint, and return its path; None where it can't be written or the files can't be
        read. Raises CheckpointError if the sum of a file is not the one that is published."""
        with suppress(OSError):
            files = checkpoint_files(path)
            read = map(sha256_of, files) if self._digests is None else self._digests.of_files(files)
            sums = dict(zip(files, read, strict=True))
            for file, sum_ in sums.items():
                check_sum(file, sum_, [path.parent])
            return write_manifest(path, sums)
        return None

    def _write(self, file: Path, text: str) -> None:
        """Write a catalog file. Raises ApiError if the catalog with this file would be refused; the file is gone
        then."""
        try:
            with file.open("x") as stream:
                stream.write(text)
        except FileExistsError as error:
            raise BadRequest(f"{file} is there already: choose another name.", param="name") from error
        except OSError as error:
            raise BadRequest(f"{file} can't be written: {error.strerror}.", param="name") from error
        try:
            self._catalog()
        except BadRequest:
            file.unlink()
            raise


def _family_of(catalog: Catalog, conditioning: str) -> str:
    """Find the family whose checkpoints take references as this one does. Raises BadRequest if there is none."""
    families = {model.checkpoint.conditioning: model.checkpoint.family for model in catalog.models.values()}
    if conditioning not in families:
        raise BadRequest(f"No family here has conditioning {conditioning!r}: name a family for it.", param="family")
    return families[conditioning]


def _price_of(catalog: Catalog, family: str, tier: Tier) -> str:
    """Return the highest price among the family's models of this tier. Raises BadRequest if there are none."""
    prices = [m.price_units for m in catalog.models.values() if (m.checkpoint.family, m.tier) == (family, tier)]
    if not prices:
        message = f"Family '{family}' has no {tier} model whose price could be taken: give the price of a call."
        raise BadRequest(message, param="price")
    return format_money(max(prices))


def _slug(path: Path) -> str:
    """Derive the name of a model or a catalog file from a path. A snapshot is named by a hash, so its repository's name
    is used."""
    path = (cache_of(path) or path) if path.parent.name == "snapshots" else path
    stem = path.name.removesuffix(".safetensors").removesuffix(".gguf").removeprefix(HUB_CACHE)
    return re.sub(r"[^a-z0-9.]+", "-", stem.lower()).strip("-.") or "checkpoint"


def _named_elsewhere(catalog: Catalog, source: Path) -> Iterator[Path]:
    """Yield each path that the catalog names outside one of its files."""
    others = [spec for model in catalog.models.values() if model.source != source for spec in model.checkpoints]
    for spec in others:
        yield from spec.paths
        if spec.runtime.lora_folder is not None:
            yield spec.runtime.lora_folder
    yield from (chat.path for chat in catalog.chat.checkpoints)
