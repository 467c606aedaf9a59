"""From a table of a catalog file to the spec of its checkpoint."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Generic, Literal, TypeVar

from pipelines.checkpoints.folder.versions import files_version, find_snapshot
from pipelines.checkpoints.work.plan import MODES, needs_two_passes
from pipelines.protocol.images import (
    UPSCALER_TILE_PX,
    CheckpointSpec,
    Control,
    Lora,
    Runtime,
    SamplingDefaults,
    StepCache,
)
from pipelines.protocol.messages import Spec
from pipelines.protocol.upstream import ImageUpstream
from server.catalog.schema import PART_KEYS, CheckpointTable, RuntimeTable, SamplingTable, UpstreamTable


def alias_of(name: str, aliases: Iterable[str]) -> str | None:
    """Return the alias that a name is: the name itself, else the longest pattern that it matches, else None."""
    known = set(aliases)
    if name in known:
        return name
    matching = [alias for alias in known if "*" in alias and fnmatchcase(name, alias)]
    return max(matching, key=lambda alias: (len(alias), alias), default=None)


ModelT = TypeVar("ModelT")


@dataclass(frozen=True, slots=True)
class ModelNames(Generic[ModelT]):
    """Models of one kind, by the names that calls have for them."""

    models: Mapping[str, ModelT] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names that a call may use, without patterns."""
        return (*self.models, *(alias for alias in self.aliases if "*" not in alias))

    def find(self, name: str | None) -> ModelT | None:
        """Return the model of a name or alias, None if there is none; the default, if there is one, when there is no
        name."""
        name = name or self.default
        if not name:
            return None
        alias = None if name in self.models else alias_of(name, self.aliases)
        return self.models.get(self.aliases[alias] if alias else name)


AnySpec = TypeVar("AnySpec", bound=Spec)


def spec_labels(facts: Mapping[AnySpec, object]) -> dict[AnySpec, str]:
    """Return a name for each spec: its own, or the one with its catalog file if what is known of several specs of this
    name differs."""
    found: dict[str, list[object]] = {}
    for spec, fact in facts.items():
        found.setdefault(spec.name, []).append(fact)
    differ = {name for name, known in found.items() if any(fact != known[0] for fact in known)}
    return {spec: f"{spec.name} ({spec.source})" if spec.name in differ else spec.name for spec in facts}


def checkpoint_spec(file: CheckpointTable, family: str, weights: Path, largest_px: int, source: str) -> CheckpointSpec:
    """Build the spec of a file, or of its [references], which `source` says. `largest_px` is the largest area of its
    models' sizes."""
    if file.upstream is not None:
        return _of_upstream(file, file.upstream, family, source)
    checkpoint, conditioning = file.checkpoint or "", file.conditioning or "native"
    path = find_snapshot(weights / checkpoint)
    base = find_snapshot(weights / file.base) if file.base else None
    config = find_snapshot(weights / file.config) if file.config else None
    runtime = _runtime(file.runtime, weights)
    named = {key: getattr(file, key) for key in PART_KEYS}
    parts = tuple((key, find_snapshot(weights / name)) for key, name in named.items() if name is not None)
    enlarges, area_px = conditioning == "upscale", file.native_area_px
    redraws = file.enlarge == "redraw" and not enlarges
    if enlarges and "native_area_px" not in file.model_fields_set:
        area_px = UPSCALER_TILE_PX
    if enlarges and runtime.dtype == "auto":
        runtime = replace(runtime, dtype="float32")  # less than that is seen in smooth areas
    spec = CheckpointSpec(
        name=checkpoint.removesuffix(".safetensors").removesuffix(".gguf"),
        path=path,
        config=config,
        family=family,
        conditioning=conditioning,
        max_references=file.max_references or MODES[conditioning].max_references,
        native_area_px=area_px,
        max_area_px=file.max_area_px,
        sampling=_sampling(file.sampling),
        runtime=runtime,
        refined=redraws and needs_two_passes(largest_px, area_px, file.max_area_px),
        base=base,
        sheet=file.sheet,
        enlarge=file.enlarge,
        schedulers=tuple(file.schedulers),
        controls=_controls(file, weights),
        parts=parts,
        source=source,
    )
    adapters = runtime.lora_folder
    return replace(
        spec,
        version=files_version(spec.paths),
        adapters_version=files_version([adapters]) if adapters is not None else "",
    )


def _of_upstream(file: CheckpointTable, table: UpstreamTable, family: str, source: str) -> CheckpointSpec:
    """Build the spec of a model that another server draws. A second pass is the other server's own: an image larger
    than `max_area_px` is scaled here."""
    conditioning = file.conditioning or "native"
    url = table.url.rstrip("/")
    return CheckpointSpec(
        name=table.model,
        path=Path(url.partition("://")[2], table.model),
        config=None,
        family=family,
        conditioning=conditioning,
        max_references=file.max_references or MODES[conditioning].max_references,
        native_area_px=file.native_area_px,
        max_area_px=file.max_area_px,
        sampling=_sampling(file.sampling),
        enlarge="resize",
        upstream=ImageUpstream(
            base_url=url,
            model=table.model,
            api_key_env=table.api_key_env,
            api=table.api,
            supports=tuple(table.supports or ()),
            guidance_field=table.guidance_field,
        ),
        source=source,
    )


def _controls(file: CheckpointTable, weights: Path) -> tuple[Control, ...]:
    """Return the controls, ControlNets first: pipelines take each kind as a list of its own."""
    if file.control_map is not None:
        path = find_snapshot(weights / (file.checkpoint or ""))
        return (Control(file.control_map, "map", path, file.control_map),)
    nets = [
        Control(each.name, "controlnet", find_snapshot(weights / each.checkpoint), each.map, each.strength, each.mode)
        for each in file.controlnets
    ]
    nets += [
        Control(each.name, "t2i-adapter", find_snapshot(weights / each.checkpoint), each.map, each.strength)
        for each in file.t2i_adapters
    ]
    adapters = [
        Control(
            each.name, "ip-adapter", weights / each.checkpoint, strength=each.strength,
            image_encoder=find_snapshot(weights / each.image_encoder),
        )
        for each in file.ip_adapters
    ]  # fmt: skip
    return (*nets, *adapters)


def _sampling(table: SamplingTable) -> SamplingDefaults:
    config = tuple(sorted(table.scheduler_config.items()))
    return SamplingDefaults(**table.model_dump() | {"scheduler_config": config})


def _runtime(table: RuntimeTable | Literal["auto"], weights: Path) -> Runtime:
    if table == "auto":
        return Runtime(auto=True)
    scalars = table.model_dump(exclude={"cache", "loras", "lora_folder", "embedding_folder"})
    cache = table.cache.model_dump() | {"mag_ratios": tuple(table.cache.mag_ratios)} if table.cache else None
    return Runtime(
        **scalars,
        cache=StepCache(**cache) if cache else None,
        loras=tuple(Lora(weights / lora.path, lora.weight) for lora in table.loras),
        lora_folder=weights / table.lora_folder if table.lora_folder else None,
        embedding_folder=weights / table.embedding_folder if table.embedding_folder else None,
    )
