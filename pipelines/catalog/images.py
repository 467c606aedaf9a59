"""model_configs/: strict TOML in, frozen specs out.

Every *.toml but the reserved ones describes one checkpoint and the model names it serves. All errors are reported at
once; each names the file, the key and what would be right.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipelines.catalog.chat import ChatCatalog, read_chat
from pipelines.catalog.conditioning import MODES
from pipelines.catalog.plan import needs_two_passes
from pipelines.catalog.schema import CatalogFile, CheckpointFile, Presets, RuntimeTable, validate_file
from pipelines.catalog.sizes import SizeRules, Tier
from pipelines.catalog.toml import error_at, read_toml
from pipelines.protocol.images import CheckpointSpec, Lora, Runtime, SamplingDefaults, StepCache

RESERVED = ("catalog.toml", "presets.toml", "chat.toml")
UNITS_PER_CNY = 10_000
EXTREME_RATIOS = ("4:1", "1:4", "8:1", "1:8")
CREATED = 1_760_000_000  # the date of the API; OpenAI's model objects must have one


class CatalogError(Exception):
    """One line for each error of the catalog."""


@dataclass(frozen=True, slots=True)
class ImageModel:
    """A served name. The price is in 1/10000 CNY a call."""

    name: str
    tier: Tier
    price: int
    group: str
    sizes: SizeRules
    checkpoint: CheckpointSpec
    quality: Mapping[str, int] | None  # steps by quality; None where quality is not accepted
    default_quality: str | None
    steps: int  # by default
    source: Path  # its catalog file
    created: int = CREATED
    owned_by: str = "darkroom"

    @property
    def ratios(self) -> tuple[str, ...]:
        """The accepted aspect ratios."""
        return tuple(self.sizes.presets)

    def resolved_quality(self, requested: str | None) -> str | None:
        """The quality of a call, never "auto"; None for a model without qualities."""
        return self.default_quality if requested in {None, "auto"} else requested

    def steps_for(self, requested: str | None) -> int:
        """Denoising steps of a quality."""
        quality = self.resolved_quality(requested)
        return self.quality[quality] if self.quality and quality else self.steps


@dataclass(frozen=True, slots=True)
class Catalog:
    """All image models and their aliases; `chat` has the chat models."""

    models: Mapping[str, ImageModel]
    aliases: Mapping[str, str]
    default: str
    chat: ChatCatalog = field(default_factory=ChatCatalog)

    @property
    def groups(self) -> frozenset[str]:
        """Every group that a model requires of a key."""
        image_groups = {model.group for model in self.models.values()}
        return frozenset(image_groups | {model.group for model in self.chat.models.values()})

    @property
    def checkpoints(self) -> tuple[CheckpointSpec, ...]:
        """Each image checkpoint once."""
        return tuple(dict.fromkeys(model.checkpoint for model in self.models.values()))

    def with_checkpoint(self, source: Path, checkpoint: str, weights: Path) -> "Catalog":
        """The catalog as if `source`, one of its files, named this checkpoint."""
        models = {
            name: replace(model, checkpoint=_with_weights(model.checkpoint, checkpoint, weights))
            if model.source == source
            else model
            for name, model in self.models.items()
        }
        return replace(self, models=models)

    def find(self, name: str | None) -> ImageModel | None:
        """By name or alias; the default when there is no name."""
        name = name or self.default
        return self.models.get(self.aliases.get(name, name))


def load_catalog(configs: Path, weights: Path) -> Catalog:
    """Read the catalog. Checkpoint paths are relative to `weights`. Raises CatalogError with all errors."""
    if not configs.is_dir():
        raise CatalogError(f"{configs}: there is no such folder; DARKROOM_MODEL_CONFIGS names the catalog")
    errors: list[str] = []
    shared = read_toml(configs / "catalog.toml", CatalogFile, errors)
    presets = _read_presets(configs / "presets.toml", errors)
    files = {
        path: read_toml(path, CheckpointFile, errors)
        for path in sorted(configs.glob("*.toml"))
        if path.name not in RESERVED
    }
    if shared is None or errors:
        raise CatalogError("\n".join(errors))
    models: dict[str, ImageModel] = {}
    for path, file in files.items():
        if file is not None:
            _add_models(models, path, file, shared, presets, weights, errors)
    errors += _alias_errors(configs / "catalog.toml", shared, models)
    chat = read_chat(configs / "chat.toml", weights, models, errors)
    if errors:
        raise CatalogError("\n".join(errors))
    return Catalog(models, shared.aliases, shared.default, chat)


def tier_of_name(name: str) -> Tier:
    """The API's naming rule."""
    if "4k-count" in name:
        return "4K"
    return "2K" if "hd-count" in name else "1K"


def _read_presets(path: Path, errors: list[str]) -> dict[str, dict[str, tuple[int, int]]]:
    table = read_toml(path, Presets, errors)
    return table.model_dump(by_alias=True) if table else {}


def _add_models(
    models: dict[str, ImageModel],
    path: Path,
    file: CheckpointFile,
    shared: CatalogFile,
    presets: Mapping[str, Mapping[str, tuple[int, int]]],
    weights: Path,
    errors: list[str],
) -> None:
    errors += [error_at(path, (key,), message) for key, message in validate_file(file, shared)]
    spec = _checkpoint(file, weights, presets)
    steps = file.steps or 0
    if file.quality is not None:
        steps = getattr(file.quality, file.quality.default).steps
    for index, model in enumerate(file.models):
        tier_presets = presets[model.tier]
        ratios = model.ratios or [ratio for ratio in tier_presets if ratio not in EXTREME_RATIOS]
        if unknown := [ratio for ratio in ratios if ratio not in tier_presets]:
            message = f"{unknown[0]!r} is not in presets.toml, which has {', '.join(tier_presets)}"
            errors.append(error_at(path, ("models", index, "ratios"), message))
            continue
        if model.tier != tier_of_name(model.name):
            rule = "a name with hd-count is 2K, with 4k-count 4K, any other 1K"
            expected = tier_of_name(model.name)
            message = f"got {model.tier!r}, expected {expected!r} for {model.name!r} ({rule})"
            errors.append(error_at(path, ("models", index, "tier"), message))
        if model.name in models:
            errors.append(error_at(path, ("models", index, "name"), f"{model.name!r} is served by another file too"))
        models[model.name] = ImageModel(
            name=model.name,
            tier=model.tier,
            price=_units(model.price),
            group=shared.groups.get(file.family, ""),
            sizes=SizeRules(model.name, model.tier, {ratio: tier_presets[ratio] for ratio in ratios}),
            checkpoint=spec,
            quality={q: getattr(file.quality, q).steps for q in ("low", "medium", "high")} if file.quality else None,
            default_quality=file.quality.default if file.quality else None,
            steps=steps,
            source=path,
        )


def _checkpoint(
    file: CheckpointFile, weights: Path, presets: Mapping[str, Mapping[str, tuple[int, int]]]
) -> CheckpointSpec:
    path = weights / file.checkpoint
    areas = [math.prod(size) for tier in {model.tier for model in file.models} for size in presets[tier].values()]
    return CheckpointSpec(
        name=file.checkpoint.removesuffix(".safetensors"),
        path=path,
        config=weights / file.config if file.config else None,
        family=file.family,
        conditioning=file.conditioning,
        max_references=file.max_references or MODES[file.conditioning].max_references,
        native_area_px=file.native_area_px,
        max_area_px=file.max_area_px,
        sampling=SamplingDefaults(**file.sampling.model_dump()),
        runtime=_runtime(file.runtime, weights),
        refined=needs_two_passes(max(areas), file.native_area_px, file.max_area_px),
        version=files_version(path),
    )


def _with_weights(spec: CheckpointSpec, checkpoint: str, weights: Path) -> CheckpointSpec:
    path = weights / checkpoint
    return replace(spec, name=checkpoint.removesuffix(".safetensors"), path=path, version=files_version(path))


def files_version(path: Path) -> int:
    """The newest mtime of a checkpoint's files, in ns; 0 if there are none, or none that can be read."""
    try:
        files = path.rglob("*") if path.is_dir() else [path]
        return max((file.stat().st_mtime_ns for file in files if file.is_file()), default=0)
    except OSError:  # such as a name that is too long: check_files says so
        return 0


def _runtime(table: RuntimeTable, weights: Path) -> Runtime:
    scalars = table.model_dump(exclude={"cache", "loras", "lora_folder"})
    cache = table.cache.model_dump() | {"mag_ratios": tuple(table.cache.mag_ratios)} if table.cache else None
    return Runtime(
        **scalars,
        cache=StepCache(**cache) if cache else None,
        loras=tuple(Lora(weights / lora.path, lora.weight) for lora in table.loras),
        lora_folder=weights / table.lora_folder if table.lora_folder else None,
    )


def _alias_errors(path: Path, shared: CatalogFile, models: Mapping[str, ImageModel]) -> list[str]:
    known = ", ".join(models)
    errors = [
        error_at(path, ("aliases", alias), f"{name!r} is not a model; expected one of {known}")
        for alias, name in shared.aliases.items()
        if name not in models
    ]
    errors += [
        error_at(path, ("aliases", alias), "is a model of its own") for alias in shared.aliases if alias in models
    ]
    if shared.default not in models:
        errors.append(error_at(path, ("default",), f"{shared.default!r} is not a model; expected one of {known}"))
    return errors


def _units(price: str) -> int:
    whole, _, part = price.partition(".")
    return int(whole) * UNITS_PER_CNY + int(part.ljust(4, "0"))
