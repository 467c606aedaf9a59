"""model_configs/: strict TOML in, frozen specs out.

Every *.toml but the reserved ones describes one checkpoint and the model names it serves. All errors are reported at
once; each names the file, the key and the right value.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipelines.checkpoints.folder.problems import similar_names
from pipelines.protocol.images import CheckpointSpec
from pipelines.protocol.upstream import Upstream
from server.catalog.chat import ChatCatalog, read_chat
from server.catalog.file_checks import validate_file
from server.catalog.schema import QUALITIES, CatalogFile, CheckpointFile, ModelTable, Presets, QualityTable
from server.catalog.sizes import SizeRules, Tier, model_of_size, preset_problem
from server.catalog.specs import ModelNames, alias_of, checkpoint_spec
from server.catalog.toml import KeyPath, error_at, read_toml
from server.money import parse_money

RESERVED = ("catalog.toml", "presets.toml", "chat.toml")
CATALOG_FILES = "[!.]*.toml"  # not the hidden ones that editors and macOS put beside them
EXTREME_RATIOS = ("4:1", "1:4", "8:1", "1:8")
MAX_REFERENCES = 16  # of a call
CREATED = 1_760_000_000  # the date of the API; OpenAI's model objects must have one


class CatalogError(Exception):
    """One line for each error of the catalog."""


@dataclass(frozen=True, slots=True)
class ReferenceDrawing:
    """The checkpoint that draws a model's calls with `first` references or more."""

    checkpoint: CheckpointSpec
    steps: int
    first: int


@dataclass(frozen=True, slots=True)
class ImageModel:
    """A served name, and the price of a call of it."""

    name: str
    tier: Tier
    price_units: int
    group: str
    sizes: SizeRules
    checkpoint: CheckpointSpec
    quality: Mapping[str, int] | None  # steps by quality; None where quality is not accepted
    quality_names: Mapping[str, str]  # other names -> qualities of that table
    default_quality: str | None
    steps: int  # by default
    source: Path  # its catalog file
    references: ReferenceDrawing | None = None
    enhance: bool = False  # a chat model rewrites the prompts of requests that don't say
    created: int = CREATED
    owned_by: str = "darkroom"

    @property
    def ratios(self) -> tuple[str, ...]:
        """Return the accepted aspect ratios."""
        return tuple(self.sizes.presets)

    def drawn_with(self, references: int) -> "ImageModel":
        """Return the model as it draws a call with so many references: under the same name, size and price, but perhaps
        with another checkpoint, in as many steps for every quality."""
        other = self.references
        if other is None or references < other.first:
            return self
        quality = dict.fromkeys(self.quality, other.steps) if self.quality is not None else None
        return replace(self, checkpoint=other.checkpoint, steps=other.steps, quality=quality)

    @property
    def checkpoints(self) -> tuple[CheckpointSpec, ...]:
        """Return the model's own checkpoint, and the one for calls with references if there is one."""
        return (self.checkpoint, *([self.references.checkpoint] if self.references is not None else []))

    def resolved_quality(self, requested: str | None) -> str | None:
        """Return the quality of a call, never "auto"; None for a model without qualities."""
        if requested is None or requested == "auto":
            return self.default_quality
        return self.quality_names.get(requested, requested)

    def steps_for(self, requested: str | None) -> int:
        """Return the number of denoising steps of a quality."""
        quality = self.resolved_quality(requested)
        return self.quality[quality] if self.quality and quality else self.steps


@dataclass(frozen=True, slots=True)
class Catalog(ModelNames[ImageModel]):
    """All image models and their aliases; `chat` has the chat models."""

    chat: ChatCatalog = field(default_factory=ChatCatalog)
    bytes_aliases: frozenset[str] = frozenset()  # those whose answers are bytes unless a request asks for a URL
    tiered_aliases: frozenset[str] = frozenset()  # those whose `size` chooses the model of its tier

    @property
    def groups(self) -> frozenset[str]:
        """Return every group that a model requires of a key."""
        image_groups = {model.group for model in self.models.values()}
        return frozenset(image_groups | {model.group for model in self.chat.models.values()})

    @property
    def checkpoints(self) -> tuple[CheckpointSpec, ...]:
        """Return each local image checkpoint once."""
        return tuple(spec for spec in self._drawn_by if spec.upstream is None)

    @property
    def upstream_specs(self) -> tuple[CheckpointSpec, ...]:
        """Return each image model of another server once."""
        return tuple(spec for spec in self._drawn_by if spec.upstream is not None)

    @property
    def upstreams(self) -> tuple[Upstream, ...]:
        """Return the other servers, of chat and image models, each of their models once."""
        drawn = (spec.upstream for spec in self._drawn_by if spec.upstream is not None)
        return (*self.chat.upstreams, *drawn)

    @property
    def _drawn_by(self) -> tuple[CheckpointSpec, ...]:
        return tuple(dict.fromkeys(spec for model in self.models.values() for spec in model.checkpoints))

    def answers_bytes(self, name: str | None) -> bool:
        """Return whether the answers under this name are bytes, unless a request asks for a URL."""
        return self._is_alias_of(name, self.bytes_aliases)

    def find_for_size(self, name: str | None, size: str | None) -> ImageModel | None:
        """Return the image model that draws a call with this name and size; None if there is no such name."""
        model = self.find(name)
        if model is None or not self._is_alias_of(name, self.tiered_aliases):
            return model
        return self.models[model_of_size(model.sizes, size)]

    def _is_alias_of(self, name: str | None, aliases: frozenset[str]) -> bool:
        return name is not None and name not in self.models and alias_of(name, self.aliases) in aliases


def load_catalog(configs: Path, weights: Path) -> Catalog:
    """Read the catalog. Checkpoint paths are relative to `weights`. Raises CatalogError with all errors."""
    if not configs.is_dir():
        raise CatalogError(f"{configs}: there is no such folder; DARKROOM_MODEL_CONFIGS names the catalog")
    errors: list[str] = []
    shared = read_toml(configs / "catalog.toml", CatalogFile, errors)
    presets = read_presets(configs / "presets.toml", errors)
    files = {
        path: read_toml(path, CheckpointFile, errors)
        for path in sorted(configs.glob(CATALOG_FILES))
        if path.name not in RESERVED
    }
    if shared is None or presets is None or errors:
        raise CatalogError("\n".join(errors))
    reading = _Reading(shared, presets, weights, errors)
    for path, file in files.items():
        if file is not None:
            reading.add(path, file)
    models = reading.models
    errors += _alias_errors(configs / "catalog.toml", shared, models)
    chat = read_chat(configs / "chat.toml", weights, models, errors)
    if chat.default is None:
        message = "needs a chat model: name one as 'default' in chat.toml"
        errors += [error_at(path, ("enhance",), message) for path, file in files.items() if file and file.enhance]
    if errors:
        raise CatalogError("\n".join(errors))
    aliases = {name: alias.model for name, alias in shared.aliases.items()}
    with_bytes = frozenset(name for name, alias in shared.aliases.items() if alias.response_format == "b64_json")
    with_tiers = frozenset(name for name, alias in shared.aliases.items() if alias.tiers)
    return Catalog(_knowing_each_other(models), aliases, shared.default, chat, with_bytes, with_tiers)


def _knowing_each_other(models: Mapping[str, ImageModel]) -> dict[str, ImageModel]:
    """Return the models, each of which knows the sizes of the others in its file."""

    def others(model: ImageModel) -> tuple[SizeRules, ...]:
        return tuple(each.sizes for each in models.values() if each.source == model.source and each is not model)

    return {name: replace(each, sizes=replace(each.sizes, others=others(each))) for name, each in models.items()}


def read_presets(path: Path, errors: list[str]) -> Mapping[Tier, Mapping[str, tuple[int, int]]] | None:
    """Read the pixels of every ratio by tier; None if the file has errors, which are appended to `errors`."""
    file = read_toml(path, Presets, errors)
    if file is None:
        return None
    presets: Mapping[Tier, Mapping[str, tuple[int, int]]] = {
        "1K": file.tier_1k, "2K": file.tier_2k, "4K": file.tier_4k,
    }  # fmt: skip
    wrong = {
        (tier, ratio): problem
        for tier, ratios in presets.items()
        for ratio, (width, height) in ratios.items()
        if (problem := preset_problem(tier, ratio, width, height)) is not None
    }
    errors += [error_at(path, keys, problem) for keys, problem in wrong.items()]
    return presets


def tier_of_name(name: str) -> Tier:
    """Return the tier that a model's name stands for, by the API's naming rule."""
    if "4k-count" in name:
        return "4K"
    return "2K" if "hd-count" in name else "1K"


@dataclass(slots=True)
class _Reading:
    """What is known while the files of checkpoints are read one after another. `errors` takes what is wrong."""

    shared: CatalogFile
    presets: Mapping[Tier, Mapping[str, tuple[int, int]]]
    weights: Path
    errors: list[str]
    models: dict[str, ImageModel] = field(default_factory=dict)

    def add(self, path: Path, file: CheckpointFile) -> None:
        """Add the models of a file."""
        errors = validate_file(file, self.shared)
        self.errors += [error_at(path, tuple(key.split(".")), message) for key, message in errors]
        areas = [math.prod(size) for entry in file.models for size in self.presets[entry.tier].values()]
        spec = checkpoint_spec(file, file.family, self.weights, max(areas), path.name)
        self.errors += _adapter_errors(path, (), spec)
        references = None
        if (table := file.references) is not None:
            other = checkpoint_spec(table, file.family, self.weights, max(areas), f"{path.name}, [references]")
            self.errors += _adapter_errors(path, ("references",), other)
            references = ReferenceDrawing(other, table.steps, table.first)
        for index, entry in enumerate(file.models):
            ratios = entry.ratios or [ratio for ratio in self.presets[entry.tier] if ratio not in EXTREME_RATIOS]
            if self._check(path, index, entry, ratios):
                self.models[entry.name] = self._model(path, file, entry, ratios, (spec, references))

    def _check(self, path: Path, index: int, entry: ModelTable, ratios: list[str]) -> bool:
        """Append what is wrong with a model's entry to the errors, and return whether its sizes are known."""
        presets = self.presets[entry.tier]
        if unknown := [ratio for ratio in ratios if ratio not in presets]:
            message = f"{unknown[0]!r} is not in presets.toml, which has {', '.join(presets)}"
            self.errors.append(error_at(path, ("models", index, "ratios"), message))
            return False
        if entry.tier != (expected := tier_of_name(entry.name)):
            rule = "a name with hd-count is 2K, with 4k-count 4K, any other 1K"
            message = f"got {entry.tier!r}, expected {expected!r} for {entry.name!r} ({rule})"
            self.errors.append(error_at(path, ("models", index, "tier"), message))
        if entry.name in self.models:
            source = self.models[entry.name].source
            where = "is there twice" if source == path else f"is served by {source.name} too"
            self.errors.append(error_at(path, ("models", index, "name"), f"{entry.name!r} {where}"))
        return True

    def _model(
        self,
        path: Path,
        file: CheckpointFile,
        entry: ModelTable,
        ratios: list[str],
        drawn_by: tuple[CheckpointSpec, ReferenceDrawing | None],
    ) -> ImageModel:
        presets = self.presets[entry.tier]
        steps = file.steps or 0
        if file.quality is not None:
            steps = getattr(file.quality, file.quality.default).steps
        qualities, names = _qualities(file.quality) if file.quality else (None, {})
        return ImageModel(
            name=entry.name,
            tier=entry.tier,
            price_units=parse_money(entry.price),
            group=self.shared.groups.get(file.family, ""),
            sizes=SizeRules(entry.name, entry.tier, {ratio: presets[ratio] for ratio in ratios}),
            checkpoint=drawn_by[0],
            quality=qualities,
            quality_names=names,
            default_quality=file.quality.default if file.quality else None,
            steps=steps,
            source=path,
            references=drawn_by[1],
            enhance=file.enhance,
        )


def _adapter_errors(path: Path, table: KeyPath, spec: CheckpointSpec) -> list[str]:
    """Return the errors of folders of adapters and embeddings that are not there: no request could name one."""
    folders = {"lora_folder": spec.runtime.lora_folder, "embedding_folder": spec.runtime.embedding_folder}
    return [
        error_at(path, (*table, "runtime", key), f"{folder}: {_no_folder(folder)}")
        for key, folder in folders.items()
        if folder is not None and not folder.is_dir()
    ]


def _no_folder(folder: Path) -> str:
    return "not a folder" if folder.exists() else f"there is no such folder{similar_names(folder)}"


def _qualities(table: QualityTable) -> tuple[dict[str, int], dict[str, str]]:
    """Return the steps by quality, and the other names that a caller may use with the qualities that they stand for."""
    steps: dict[str, int] = {name: tier.steps for name in QUALITIES if (tier := getattr(table, name)) is not None}
    names: dict[str, str] = {"standard": table.standard, "hd": table.hd}
    return steps, names | dict.fromkeys(set(QUALITIES) - steps.keys(), list(steps)[-1])


def scaled_qualities(quality: Mapping[str, int] | None, before: int, after: int) -> Mapping[str, int] | None:
    """Return the steps of each quality when the default's change from `before` to `after`."""
    if quality is None:
        return None
    return {name: max(1, min(200, round(steps * after / before))) for name, steps in quality.items()}


def _alias_errors(path: Path, shared: CatalogFile, models: Mapping[str, ImageModel]) -> list[str]:
    known = ", ".join(models)
    errors = [
        error_at(path, ("aliases", name), f"{alias.model!r} is not a model; expected one of {known}")
        for name, alias in shared.aliases.items()
        if alias.model not in models
    ]
    errors += [
        error_at(path, ("aliases", alias), f"is the name of a model too, in {models[alias].source.name}")
        for alias in shared.aliases
        if alias in models
    ]
    if shared.default not in models:
        errors.append(error_at(path, ("default",), f"{shared.default!r} is not a model; expected one of {known}"))
    return errors
