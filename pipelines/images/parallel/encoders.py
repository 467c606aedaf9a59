"""`parallel = "encoders"`: text encoders on the second device, and all else on the first. Their inputs and outputs are
small, and a prompt is encoded once (prompt_cache), so nothing waits for it.
"""

from collections.abc import Mapping
from typing import Any

import torch
from accelerate.utils import send_to_device

from pipelines.checkpoints.classes.index import is_text_encoder


def text_encoders(components: Mapping[str, Any]) -> list[torch.nn.Module]:
    """Return the components that read prompts."""
    return [part for name, part in components.items() if is_text_encoder(name) and isinstance(part, torch.nn.Module)]


def add_device_hooks(device: torch.device, encoder: torch.nn.Module, own: torch.device) -> None:
    """Make an encoder that is on the device `own` callable from `device`: hooks move its inputs to `own`, and its
    outputs to `device`."""

    def move_inputs(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return send_to_device(args, own), send_to_device(kwargs, own)

    def move_outputs(_: torch.nn.Module, args: Any, output: Any) -> Any:
        return send_to_device(output, device)

    encoder.register_forward_pre_hook(move_inputs, with_kwargs=True)
    encoder.register_forward_hook(move_outputs)


def on_device(pipeline_class: type[Any], device: torch.device) -> type[Any]:
    """Return a subclass of the pipeline's class whose device is this one: the library would take that of any
    component."""
    here = property(lambda _: device)
    return type(pipeline_class.__name__, (pipeline_class,), {"device": here, "_execution_device": here})
