"""The report of a checkpoint, from the findings in its files."""

from pipelines.checkpoints.inspection.findings import Inspection
from pipelines.checkpoints.inspection.suggestion import Suggestion
from pipelines.checkpoints.weight_file.adapters import Adapter
from pipelines.protocol.messages import Capabilities
from server.schemas.checkpoints import AdapterCard, CheckpointFindings, PartReport, SuggestedNoise, SuggestedValue


def adapter_card(model: str, adapter: Adapter, capabilities: Capabilities | None = None) -> AdapterCard:
    """Describe an adapter as the route and the command show it; `capabilities` are those that the server has found of
    the model."""
    fits, failed_checks = (
        (capabilities.adapter_fits, capabilities.failed_checks) if capabilities is not None else ((), ())
    )
    fit = next((each for each in fits if each.name == adapter.name), None)
    unsupported = next((each.why for each in failed_checks if each.what == f"the adapter {adapter.name}"), None)
    return AdapterCard(
        model=model,
        name=adapter.name,
        kind=adapter.kind,
        bytes=adapter.bytes,
        rank=adapter.rank,
        layers=adapter.layers,
        trigger_words=list(adapter.trigger_words),
        problem=adapter.problem,
        fits=False if unsupported else True if fit else None,
        fitting_layers=fit.layers if fit else None,
        reason=str(fit) if fit and not fit.is_whole else unsupported,
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
    return CheckpointFindings(
        path=str(inspection.path),
        base=str(inspection.base) if inspection.base else None,
        config=str(inspection.config) if inspection.config else None,
        class_name=inspection.class_name,
        parts=[
            PartReport(
                name=part.name,
                class_name=part.class_name,
                weights=part.weights,
                bytes=part.bytes,
                dtypes=list(part.dtypes),
            )
            for part in inspection.parts
        ],
        variants=list(inspection.variants),
        problems=list(inspection.problems),
        needs=list(inspection.needs),
        supports=["upscale"] if enlarges else capabilities.names if capabilities is not None else [],
        second_pass=capabilities is not None and capabilities.second_pass and not enlarges,
        conditioning=inspection.conditioning,
        bytes_in_bfloat16=inspection.device_bytes(2),
        bytes_in_float32=inspection.device_bytes(4),
        suggested={name: SuggestedValue(value=value.value, found=value.found) for name, value in found.items()},
        noise=SuggestedNoise(
            scheduler=suggestion.noise.scheduler,
            scheduler_config=dict(suggestion.noise.config),
            found=suggestion.noise.found,
        ),
        notes=list(inspection.notes),
    )
