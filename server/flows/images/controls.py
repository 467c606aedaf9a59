"""Controls of a request, ControlNets, adapters and maps: whether the model takes them, and as inputs of a job."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

from pipelines.protocol.images import Control, ControlInput, ControlKind
from pipelines.protocol.messages import Capabilities, ControlledWith
from server.catalog.images import ImageModel
from server.errors import BadRequest
from server.flows.references import DecodedImage, Reference

NEEDS: dict[ControlledWith, str] = {"text": "a prompt alone", "image": "reference images", "mask": "a mask"}


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """One of the model's controls, with its image; `strength` is None for the catalog's."""

    name: str
    image: Reference
    strength: float | None = None


def offered_controls(model: ImageModel, capabilities: Capabilities | None) -> list[Control]:
    """Return the controls of the catalog file, without those that failed in warmup."""
    unsupported = capabilities.unsupported_controls if capabilities is not None else ()
    return [control for control in model.checkpoint.controls if control.name not in unsupported]


def check_controls(
    requested: Sequence[ControlRequest], way: ControlledWith, model: ImageModel, capabilities: Capabilities | None
) -> None:
    """Refuse requests that the model's controls can't serve. `way` is the input of the request beside them. Raises
    BadRequest."""
    own = model.checkpoint.own_map
    if own is not None and own.name not in [each.name for each in requested]:
        message = f"Model `{model.name}` draws from a map with every call: send it as '{own.name}' in 'controls'."
        raise BadRequest(message, param="controls", code="missing_required_parameter")
    if not requested:
        return
    offered = {control.name: control for control in offered_controls(model, capabilities)}
    if unknown := [each.name for each in requested if each.name not in offered]:
        names = f"Controls: {', '.join(offered)}." if offered else "It takes none: leave 'controls' out."
        raise _refusal(f"Model `{model.name}` has no control '{unknown[0]}'. {names}")
    chosen = [offered[each.name] for each in requested]
    by_kind = {kind: [each for each in chosen if each.kind == kind] for kind in get_args(ControlKind)}
    nets, t2i, adapters = (by_kind[kind] for kind in ("controlnet", "t2i-adapter", "ip-adapter"))
    if nets and t2i:
        raise _refusal(f"A ControlNet and a T2I-Adapter do not work together: send {nets[0].name} or {t2i[0].name}.")
    if len({control.image_encoder for control in adapters}) > 1:
        raise _refusal(f"The controls {_names(adapters)} have different image encoders: send one of them.")
    if capabilities is None:  # the checkpoint has not been loaded yet: until then the job itself fails
        return
    limits = {"ControlNet": (nets, capabilities.controlnets_at_once)}
    limits["T2I-Adapter"] = (t2i, capabilities.t2i_adapters_at_once)
    for called, (some, most) in limits.items():
        if len(some) > most:
            raise _refusal(f"Model `{model.name}` takes one {called} at a time: send one of {_names(some)}.")
    for kind, some in by_kind.items():
        if some and way not in (ways := capabilities.controlled_with(kind)):
            works = " or ".join(NEEDS[each] for each in ways) or "nothing that it draws"
            name = f"The control '{some[0].name}' of model `{model.name}`"
            raise _refusal(f"{name} does not work with {NEEDS[way]}, but with {works}.")


def control_inputs(
    requested: Iterable[ControlRequest], images: Iterable[DecodedImage], model: ImageModel
) -> tuple[ControlInput, ...]:
    """Return the controls of a job in the order of the catalog file: so the order in a request changes nothing."""
    strengths = {control.name: control.strength for control in model.checkpoint.controls}
    order = list(strengths)
    inputs = [
        ControlInput(each.name, image.image, strengths[each.name] if each.strength is None else each.strength)
        for each, image in zip(requested, images, strict=True)
    ]
    return tuple(sorted(inputs, key=lambda each: order.index(each.name)))


def _names(controls: Iterable[Control]) -> str:
    return ", ".join(control.name for control in controls)


def _refusal(message: str) -> BadRequest:
    return BadRequest(message, param="controls", code="unsupported_value")
