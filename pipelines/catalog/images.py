"""model_configs/: strict TOML in, frozen specs out.

Every *.toml but the reserved ones describes one checkpoint and the model names it serves. Errors are collected, and
each names the file, the key and what would be right, so that a broken catalog is mended in one go.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipelines.catalog.chat import ChatCatalog, read_chat
from pipelines.catalog.plan import takes_two_passes
from pipelines.catalog.schema import CatalogFile, CheckpointFile, Presets, RuntimeTable, file_faults
from pipelines.catalog.sizes import SizeRules, Tier
from pipelines.catalog.toml import fault_at, read_toml
from pipelines.protocol.images import CheckpointSpec, Lora, Runtime, Sampling, StepCache

RESERVED = ("catalog.toml", "presets.toml", "chat.toml")
UNITS_PER_CNY = 10_000
EXTREME_RATIOS = ("4:1", "1:4", "8:1", "1:8")
CREATED = 1_760_000_000  # the date of the interface; OpenAI's model objects must have one


class CatalogError(Exception):
    """Why the catalog is refused, one line a fault."""


@dataclass(frozen=True, slots=True)
class ImageModel:
    """A name that callers may use. The price is in 1/10000 CNY a call."""

    name: str
    tier: Tier
    price: int
    group: str
    sizes: SizeRules
    checkpoint: CheckpointSpec
    quality: Mapping[str, int] | None  # steps by quality; None where quality is not accepted
    default_quality: str | None
    steps: int  # when nothing is asked
    source: Path  # the catalog file that says all this
    created: int = CREATED
    owned_by: str = "darkroom"

    @property
    def ratios(self) -> tuple[str, ...]:
        """The ratios it accepts."""
        return tuple(self.sizes.presets)

    def resolved_quality(self, asked: str | None) -> str | None:
        """The concrete quality of a call; None for a model that has none."""
        return self.default_quality if asked in {None, "auto"} else asked

    def steps_for(self, asked: str | None) -> int:
        """Denoising steps of a quality."""
        quality = self.resolved_quality(asked)
        return self.quality[quality] if self.quality and quality else self.steps


@dataclass(frozen=True, slots=True)
class Catalog:
    """Every model, and the names that stand for one. `chat` is its other half."""

    models: Mapping[str, ImageModel]
    aliases: Mapping[str, str]
    default: str
    chat: ChatCatalog = field(default_factory=ChatCatalog)

    @property
    def groups(self) -> frozenset[str]:
        """Every group that some model asks for."""
        image_groups = {model.group for model in self.models.values()}
        return frozenset(image_groups | {model.group for model in self.chat.models.values()})

    @property
    def checkpoints(self) -> tuple[CheckpointSpec, ...]:
        """Each image checkpoint once."""
        return tuple(dict.fromkeys(model.checkpoint for model in self.models.values()))

    def with_checkpoint(self, source: Path, checkpoint: str, weights: Path) -> "Catalog":
        """The catalog as if `source`, one of its files, named this checkpoint."""
        models = {
            name: replace(model, checkpoint=_exchanged(model.checkpoint, checkpoint, weights))
            if model.source == source
            else model
            for name, model in self.models.items()
        }
        return replace(self, models=models)

    def find(self, name: str | None) -> ImageModel | None:
        """By name or alias; the default when there is no name."""
        wanted = name or self.default
        return self.models.get(self.aliases.get(wanted, wanted))


def load_catalog(configs: Path, weights: Path) -> Catalog:
    """The catalog in a folder, checkpoint paths starting at `weights`. Raises CatalogError with every fault found."""
    if not configs.is_dir():
        raise CatalogError(f"{configs}: there is no such folder; DARKROOM_MODEL_CONFIGS names the catalog")
    faults: list[str] = []
    shared = read_toml(configs / "catalog.toml", CatalogFile, faults)
    presets = _read_presets(configs / "presets.toml", faults)
    files = {
        path: read_toml(path, CheckpointFile, faults)
        for path in sorted(configs.glob("*.toml"))
        if path.name not in RESERVED
    }
    if shared is None or faults:
        raise CatalogError("\n".join(faults))
    models: dict[str, ImageModel] = {}
    for path, file in files.items():
        if file is not None:
            _add_models(models, path, file, shared, presets, weights, faults)
    faults += _dangling(configs / "catalog.toml", shared, models)
    chat = read_chat(configs / "chat.toml", weights, models, faults)
    if faults:
        raise CatalogError("\n".join(faults))
    return Catalog(models, shared.aliases, shared.default, chat)


def tier_of_name(name: str) -> Tier:
    """The interface's naming rule."""
    if "4k-count" in name:
        return "4K"
    return "2K" if "hd-count" in name else "1K"


def _read_presets(path: Path, faults: list[str]) -> dict[str, dict[str, tuple[int, int]]]:
    table = read_toml(path, Presets, faults)
    return table.model_dump(by_alias=True) if table else {}


def _add_models(
    models: dict[str, ImageModel],
    path: Path,
    file: CheckpointFile,
    shared: CatalogFile,
    presets: Mapping[str, Mapping[str, tuple[int, int]]],
    weights: Path,
    faults: list[str],
) -> None:
    faults += [fault_at(path, (key,), said) for key, said in file_faults(file, shared)]
    spec = _checkpoint(file, weights, presets)
    steps = file.steps or 0
    if file.quality is not None:
        steps = getattr(file.quality, file.quality.default).steps
    for index, model in enumerate(file.models):
        known = presets[model.tier]
        ratios = model.ratios or [ratio for ratio in known if ratio not in EXTREME_RATIOS]
        if unknown := [ratio for ratio in ratios if ratio not in known]:
            said = f"{unknown[0]!r} is not in presets.toml, which has {', '.join(known)}"
            faults.append(fault_at(path, ("models", index, "ratios"), said))
            continue
        if model.tier != tier_of_name(model.name):
            rule = "a name with hd-count is 2K, with 4k-count 4K, any other 1K"
            expected = tier_of_name(model.name)
            said = f"got {model.tier!r}, expected {expected!r} for {model.name!r} ({rule})"
            faults.append(fault_at(path, ("models", index, "tier"), said))
        if model.name in models:
            faults.append(fault_at(path, ("models", index, "name"), f"{model.name!r} is served by another file too"))
        models[model.name] = ImageModel(
            name=model.name,
            tier=model.tier,
            price=_units(model.price),
            group=shared.groups.get(file.family, ""),
            sizes=SizeRules(model.name, model.tier, {ratio: known[ratio] for ratio in ratios}),
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
        max_references=file.max_references or (16 if file.conditioning == "native" else 1),
        native_area_px=file.native_area_px,
        max_area_px=file.max_area_px,
        sampling=Sampling(**file.sampling.model_dump()),
        runtime=_runtime(file.runtime, weights),
        refined=takes_two_passes(max(areas), file.native_area_px, file.max_area_px),
        version=files_version(path),
    )


def _exchanged(spec: CheckpointSpec, checkpoint: str, weights: Path) -> CheckpointSpec:
    path = weights / checkpoint
    return replace(spec, name=checkpoint.removesuffix(".safetensors"), path=path, version=files_version(path))


def files_version(path: Path) -> int:
    """When a checkpoint's files last changed, in ns; 0 where there are none."""
    files = path.rglob("*") if path.is_dir() else [path]
    return max((file.stat().st_mtime_ns for file in files if file.is_file()), default=0)


def _runtime(table: RuntimeTable, weights: Path) -> Runtime:
    plain = table.model_dump(exclude={"cache", "loras", "lora_folder"})
    cache = table.cache.model_dump() | {"mag_ratios": tuple(table.cache.mag_ratios)} if table.cache else None
    return Runtime(
        **plain,
        cache=StepCache(**cache) if cache else None,
        loras=tuple(Lora(weights / lora.path, lora.weight) for lora in table.loras),
        lora_folder=weights / table.lora_folder if table.lora_folder else None,
    )


def _dangling(path: Path, shared: CatalogFile, models: Mapping[str, ImageModel]) -> list[str]:
    known = ", ".join(models)
    found = [
        fault_at(path, ("aliases", alias), f"{name!r} is not a model; expected one of {known}")
        for alias, name in shared.aliases.items()
        if name not in models
    ]
    found += [
        fault_at(path, ("aliases", alias), "is a model of its own") for alias in shared.aliases if alias in models
    ]
    if shared.default not in models:
        found.append(fault_at(path, ("default",), f"{shared.default!r} is not a model; expected one of {known}"))
    return found


def _units(price: str) -> int:
    whole, _, part = price.partition(".")
    return int(whole) * UNITS_PER_CNY + int(part.ljust(4, "0"))
