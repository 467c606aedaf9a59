"""Bodies and answers of the checkpoint manager's routes."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pipelines.checkpoints.inspection.findings import Inspection
from pipelines.checkpoints.inspection.hints import read_name_hints
from pipelines.checkpoints.inspection.suggestion import Suggestion
from pipelines.checkpoints.weight_file.adapters import Adapter
from pipelines.protocol.messages import Capabilities
from server.catalog.sizes import Tier
from server.schemas.base import Answer, Listed
from server.schemas.validation import AMOUNT

MAX_CELLS = 96
Path = Annotated[str, Field(min_length=1)]
Prompt = Annotated[str, Field(min_length=1, max_length=32_000)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class InspectRequest(BaseModel):
    """POST /admin/checkpoints/inspect. Paths are as catalog files have them; `loras` are adapters that every image is
    to use."""

    checkpoint: Path
    base: Path | None = None
    config: Path | None = None
    loras: Annotated[list[Path], Field(max_length=8)] = []


class AddRequest(InspectRequest):
    """POST /admin/checkpoints/add."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)] | None = None
    family: str | None = None
    tiers: Annotated[list[Tier], Field(min_length=1)] = ["1K"]
    price: Annotated[str, Field(pattern=AMOUNT)] | None = None
    runtime: Literal["auto", "plain"] = "auto"


class VerifyRequest(BaseModel):
    """POST /admin/checkpoints/verify."""

    checkpoint: Path


class RemoveRequest(BaseModel):
    """POST /admin/checkpoints/remove."""

    model: str = Field(min_length=1)
    delete_files: bool = False


class ProofSampling(BaseModel):
    """Sampling of a candidate, in place of its catalog file's."""

    model_config = ConfigDict(extra="forbid")

    steps: Annotated[int, Field(ge=1, le=200)] | None = None
    guidance: Annotated[float, Field(ge=0, le=50)] | None = None
    negative_prompt: Annotated[str, Field(max_length=32_000)] | None = None
    scheduler: str | None = None
    shift: Annotated[float, Field(gt=0)] | None = None


class ProofCandidate(BaseModel):
    """A served model's name, or a checkpoint's path."""

    name: str = Field(min_length=1)
    sampling: ProofSampling = ProofSampling()


class ProofAxis(BaseModel):
    """At most one of these: the values that are drawn side by side."""

    model_config = ConfigDict(extra="forbid")

    steps: Annotated[list[Annotated[int, Field(ge=1, le=200)]], Field(min_length=1)] | None = None
    guidance: Annotated[list[Annotated[float, Field(ge=0, le=50)]], Field(min_length=1)] | None = None
    scheduler: Annotated[list[str], Field(min_length=1)] | None = None
    shift: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _one(cls, values: Any) -> Any:
        if isinstance(values, dict) and (len(values) > 1 or not values.keys() <= cls.model_fields.keys()):
            raise ValueError(f"expected one of {', '.join(cls.model_fields)}")
        return values


class ProofRequest(BaseModel):
    """POST /admin/checkpoints/proof."""

    candidates: Annotated[list[ProofCandidate], Field(min_length=1, max_length=12)]
    prompts: Annotated[list[Prompt], Field(min_length=1, max_length=24)]
    seeds: Annotated[list[Seed], Field(min_length=1, max_length=24)] = [1]
    axis: ProofAxis = ProofAxis()
    size: Annotated[str, Field(pattern=r"^[0-9]{2,4}x[0-9]{2,4}$")] = "1024x1024"
    cell_px: Annotated[int, Field(ge=64, le=1024)] = 320


class GridFailure(Answer):
    """The error of a comparison grid, as it would be answered."""

    message: str
    code: str | None
    param: str | None


class GridState(Listed):
    """A comparison grid: `drawn` of `total` images are there. Its sheet is at `/sheet` below it when it has
    succeeded."""

    object: Literal["checkpoint.comparison"] = "checkpoint.comparison"
    operator: str
    state: Literal["running", "succeeded", "failed", "cancelled"]
    drawn: int
    total: int
    created_at: float
    error: GridFailure | None


class PartReport(Answer):
    """A component of a checkpoint, by the headers of its files."""

    name: str
    class_name: str
    weights: int
    bytes: int
    dtypes: list[str]


class SuggestedValue(Answer):
    """A value for the catalog file, and where it was found."""

    value: float
    found: str


class SuggestedNoise(Answer):
    """`scheduler` and `scheduler_config` for [sampling] of the catalog file, and the mark in the checkpoint's file or
    name that asks for them. Null and empty where the checkpoint's own do."""

    scheduler: str | None
    scheduler_config: dict[str, bool | int | float | str]
    found: str


class CheckpointFindings(Answer):
    """A checkpoint's class, parts and capabilities. With `problems` it can't be served. `supports` are the capabilities
    that its classes announce."""

    object: Literal["checkpoint.report"] = "checkpoint.report"
    path: str
    base: str | None
    config: str | None
    class_name: str | None
    parts: list[PartReport]
    variants: list[str]
    problems: list[str]
    needs: list[str]
    supports: list[str]
    second_pass: bool
    conditioning: str
    bytes_in_bfloat16: int
    bytes_in_float32: int
    suggested: dict[str, SuggestedValue]
    noise: SuggestedNoise
    notes: list[str]


class NewCheckpoint(Answer):
    """The catalog file that was written. It is served after a reload."""

    object: Literal["checkpoint.added"] = "checkpoint.added"
    file: str
    text: str
    models: list[str]
    manifest: str | None
    needs: list[str]
    loading: str | None


class CheckedFile(Answer):
    """A file against the manifest."""

    file: str
    state: Literal["unchanged", "changed", "missing", "new"]


class Verification(Answer):
    """Whether all files are as they were when the checkpoint was added."""

    object: Literal["checkpoint.verification"] = "checkpoint.verification"
    unchanged: bool
    files: list[CheckedFile]


class Removal(Answer):
    """The files that were deleted. A reload takes the models away."""

    object: Literal["checkpoint.removed"] = "checkpoint.removed"
    deleted: list[str]


class AdapterCard(Answer):
    """An adapter that requests may name. `fits` is null where the server has not tried it; `fitting_layers` are those
    of its `layers` that the model has, and `reason` names the part that does not fit, or the part of the file that
    changes nothing. `few_steps` is how its name says that it was distilled: a request that names it sends its own
    `steps` and `guidance`."""

    model: str
    name: str
    kind: str
    bytes: int
    rank: int | None
    layers: int
    trigger_words: list[str]
    problem: str | None
    fits: bool | None
    fitting_layers: int | None
    reason: str | None
    few_steps: str | None


class AdapterList(Answer):
    """GET /admin/checkpoints/adapters."""

    object: Literal["list"] = "list"
    data: list[AdapterCard]


class CheckpointCard(Answer):
    """A checkpoint on the disk or in the catalog. `last_used` is the latest charge of its models, in Unix seconds."""

    name: str
    bytes: int
    models: list[str]
    state: str
    detail: str
    verifiable: bool
    last_used: float | None


class CheckpointList(Answer):
    """GET /admin/checkpoints."""

    object: Literal["list"] = "list"
    data: list[CheckpointCard]


def adapter_card(model: str, adapter: Adapter, capabilities: Capabilities | None = None) -> AdapterCard:
    """Describe an adapter as the route and the command show it; `capabilities` are those that the server has found of
    the model."""
    fits, failed_checks = (
        (capabilities.adapter_fits, capabilities.failed_checks) if capabilities is not None else ((), ())
    )
    fit = next((each for each in fits if each.name == adapter.name), None)
    unsupported = next((each.why for each in failed_checks if each.what == f"the adapter {adapter.name}"), None)
    return AdapterCard.describe(
        adapter,
        model=model,
        fits=False if unsupported else True if fit else None,
        fitting_layers=fit.layers if fit else None,
        reason=str(fit) if fit and not fit.is_whole else unsupported,
        few_steps=read_name_hints(adapter.name).few_steps,
    )


def report_of(inspection: Inspection, suggestion: Suggestion) -> CheckpointFindings:
    """Report an inspection with its suggestion, as the route and the command show it."""
    capabilities, enlarges = inspection.capabilities, inspection.conditioning == "upscale"
    found = {
        "steps": suggestion.steps,
        "guidance": suggestion.guidance,
        "native_area_px": suggestion.native_area_px,
        "max_area_px": suggestion.max_area_px,
    }
    return CheckpointFindings.describe(
        inspection,
        path=str(inspection.path),
        base=str(inspection.base) if inspection.base else None,
        config=str(inspection.config) if inspection.config else None,
        supports=["upscale"] if enlarges else capabilities.names if capabilities is not None else [],
        second_pass=capabilities is not None and capabilities.second_pass and not enlarges,
        bytes_in_bfloat16=inspection.device_bytes(2),
        bytes_in_float32=inspection.device_bytes(4),
        suggested={name: SuggestedValue.describe(value) for name, value in found.items()},
        noise=SuggestedNoise(
            scheduler=suggestion.noise.scheduler,
            scheduler_config=dict(suggestion.noise.config),
            found=suggestion.noise.found,
        ),
    )
