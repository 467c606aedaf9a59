"""Loading an adapter by diffusers, so that only low-rank parts of layers that the model has reach it.

Its pipelines read many namings, and each does something else with names that it does not know: some drop them, some
widen a layer of the model or write over its norms. So the converted file is checked before the model is touched, and
its layers are counted afterwards.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from peft.tuners.tuners_utils import BaseTunerLayer

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.weight_file.adapters import AdapterTensors, classify_tensors, replaces_weights
from pipelines.device.failures import is_device_error, is_out_of_memory
from pipelines.device.memory import copy_mapped_weights
from pipelines.images.loading.adapter_files import (
    AdapterFile,
    match_layer_names,
    pair_squared_norm,
    read_adapter_file,
    squared_norm,
    with_kohya_names,
    with_peft_names,
)
from pipelines.images.loading.base_state import base_modules
from pipelines.images.loading.parts import LOAD_LOCK
from pipelines.protocol.messages import AdapterFit

LEAST_SHARE: Final = 0.5  # of an adapter's layers that the model must have
STRENGTH_TOLERANCE: Final = 0.05  # of the energy: low precision rounds it
UNSUPPORTED: Final = "it does not fit this checkpoint: "
PEFT_ALONE: Final = (
    "an adapter of peft, whose strength is in adapter_config.json: put that beside it, and call it "
    "adapter_model.safetensors, or save it by diffusers"
)
MOST_OF_AN_ERROR: Final = 200  # characters of a library's message
ADAPTED: Final = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)
Weights = Mapping[str, torch.Tensor]


def adapted_components(pipeline: Any) -> dict[str, torch.nn.Module]:
    """Return the components that a pipeline puts adapters on, the denoiser first."""
    names = getattr(pipeline, "_lora_loadable_modules", ())
    parts = {name: getattr(pipeline, name, None) for name in names}
    return {name: part for name, part in parts.items() if isinstance(part, torch.nn.Module)}


def takes_adapters(pipeline: Any) -> bool:
    """Return whether a pipeline loads adapters: Kandinsky 3's has the function, and a denoiser that takes none."""
    denoiser = next(iter(adapted_components(pipeline).values()), None)
    return hasattr(pipeline, "load_lora_weights") and hasattr(denoiser, "load_lora_adapter")


def load_adapter(pipeline: Any, path: Path, name: str, *, proved: bool = False) -> AdapterFit:
    """Load an adapter without activating it, and return how much of it fits. The strength of one that is `proved` was
    compared before. Raises CheckpointError with the reason alone, and leaves no part of it."""
    if not takes_adapters(pipeline):
        raise CheckpointError(f"{type(pipeline).__name__} takes no LoRA adapters")
    if not path.is_file():
        raise CheckpointError("there is no such file")
    file = read_adapter_file(path)
    try:
        with LOAD_LOCK:
            fit = _load(pipeline, file, path.stem, name, proved=proved)
            copy_mapped_weights(adapted_components(pipeline).values())
            return fit
    except Exception as error:  # the libraries raise anything for an adapter of another model
        pipeline.delete_adapters([name])
        if isinstance(error, CheckpointError) or is_out_of_memory(error) or is_device_error(error):
            raise
        raise CheckpointError(_reason(pipeline, file, error)) from error


def _reason(pipeline: Any, file: AdapterFile, error: Exception) -> str:
    if file.contents.kronecker and "lokr" not in inspect.getsource(type(pipeline).load_lora_weights):
        return "a LoKr adapter: this class takes LoRA alone"
    if not file.strength_known:
        return PEFT_ALONE
    return f"{UNSUPPORTED}{_last_line(error)}"


def _load(pipeline: Any, file: AdapterFile, stem: str, name: str, *, proved: bool) -> AdapterFit:
    total = file.contents.layers
    fitting = _read(pipeline, file, name, proved=proved).fitting(name)
    if fitting < LEAST_SHARE * total:
        raise CheckpointError(f"{UNSUPPORTED}{fitting} of its {total} layers are in there")
    others = (f"{count} {kind} layers" for kind, count in file.contents.others.items())
    return AdapterFit(stem, file.contents.kind, fitting, total, (*others, *file.contents.unused))


def _read(pipeline: Any, file: AdapterFile, name: str, *, proved: bool) -> "_Reading":
    """Read an adapter by the first naming of its layers of which diffusers makes something. Raises diffusers' error
    with the first naming if there is none."""
    failed: Exception | None = None
    for weights in _possible_names(file, match_layer_names(file, _layers(pipeline))):
        reading = _Reading(pipeline, weights, proved=proved)
        try:
            reading.load(name)
        except Exception as error:
            if isinstance(error, CheckpointError) or is_out_of_memory(error) or is_device_error(error):
                raise
            pipeline.delete_adapters([name])
            failed = failed or error
        else:
            if any(_adapted_layers(pipeline, name)):
                return reading
    raise failed or ValueError("no layer of it is in there")


def _possible_names(file: AdapterFile, own: Mapping[str, str]) -> Iterator[Weights]:
    """Yield the weights under the names to try: the model's own, if all layers have one; else the trainer's, and those
    with another trainer's word for the factors; then the model's own for the layers that have one."""
    if own and len(own) == file.contents.layers:
        yield with_peft_names(file, own)
        return
    yield file.loadable_weights
    yield with_kohya_names(file)
    if own:
        yield with_peft_names(file, own)


class _Reading:
    """One adapter's weights on their way into a pipeline, which converts their names (`lora_state_dict`)."""

    def __init__(self, pipeline: Any, weights: Weights, *, proved: bool) -> None:
        self._pipeline = pipeline
        self._weights = weights
        self._proved = proved
        self._contents = classify_tensors(weights)
        self.converted: AdapterTensors | None = None
        self._energy = 0.0  # of what the pipeline has made of the weights
        self._lost = 0  # pairs of which it has made nothing

    def load(self, name: str) -> None:
        """Load the adapter under this name. Raises CheckpointError, and diffusers' errors."""
        convert = self._pipeline.lora_state_dict
        self._pipeline.lora_state_dict = lambda weights, **options: self._convert(convert, weights, options)
        exact = list(_exact_buffers(self._pipeline))
        try:
            self._pipeline.load_lora_weights(dict(self._weights), adapter_name=name)
        finally:
            for module, buffer, numbers in exact:
                setattr(module, buffer, numbers)
            del self._pipeline.lora_state_dict  # the pipeline's own again

    def _convert(self, convert: Callable[..., Any], weights: Weights, options: Mapping[str, Any]) -> Any:
        """Convert the weights as diffusers does, and check the result before the model is touched. Raises
        CheckpointError."""
        result = convert(weights, **options)
        state = dict(result[0] if isinstance(result, tuple) else result)
        layers = {f"{part}.{name}": each for part, of in _layers(self._pipeline).items() for name, each in of.items()}
        contents = classify_tensors(state)
        if contents.replaced:
            raise CheckpointError(replaces_weights(contents.replaced))
        _check_shapes(state, contents, layers)
        for layer in contents.kronecker - layers.keys():  # diffusers would fuse the model's projections for some
            state = {name: weight for name, weight in state.items() if not name.startswith(f"{layer}.lokr_")}
        self.converted = classify_tensors(state)
        if not self._proved:
            self._energy = squared_norm(state, self.converted)
            self._check_conversion(lambda marks: convert(marks, **options))
        return (state, *result[1:]) if isinstance(result, tuple) else state

    def _check_conversion(self, convert: Callable[[Weights], Any]) -> None:
        """Count the layers that the conversion has dropped, and compare the strengths. Raises CheckpointError."""
        lost = _dropped_layers(self._weights, self._contents, convert)
        if lost is None:
            return
        self._lost = len(lost)
        kept = self._contents._replace(pairs={k: v for k, v in self._contents.pairs.items() if k not in lost})
        _check_strength(squared_norm(self._weights, kept), self._energy)

    def fitting(self, name: str) -> int:
        """Return how many of the file's layers are in the model now. Raises CheckpointError if their strength is
        another."""
        loaded = list(_adapted_layers(self._pipeline, name))
        if self.converted is None or not loaded:
            return 0
        found = len(loaded)
        if self.converted.pairs and not self._proved:
            strength = sum(
                pair_squared_norm(each.lora_A[name].weight.detach(), each.lora_B[name].weight.detach())
                * each.scaling[name] ** 2
                for each in loaded
                if name in each.lora_A
            )
            if found == self.converted.layers or strength > self._energy:
                _check_strength(self._energy, strength)
        given = self._contents.layers - self._lost
        return max(1, given * min(found, self.converted.layers) // self.converted.layers)


def _check_strength(expected: float, found: float) -> None:
    if abs(found - expected) > STRENGTH_TOLERANCE * max(expected, found):
        ratio = (found / expected) ** 0.5 if expected else float("inf")
        raise CheckpointError(f"its strength (alpha) would come out {ratio:.2g} times what its file says")


def _check_shapes(state: Weights, contents: AdapterTensors, layers: Mapping[str, Any]) -> None:
    """Refuse an adapter whose pairs have other inputs or outputs than the model's layers: a pipeline may widen those.
    Fewer inputs are filled up with zeros by some. Raises CheckpointError."""
    wrong = []
    known = {layer: pair for layer, pair in contents.pairs.items() if layer in layers}
    for layer, (down, up) in known.items():
        inputs, outputs = _layer_sizes(layers[layer])
        if state[down].shape[1] > inputs or state[up].shape[0] != outputs:
            wrong.append((layer.rsplit(".", 1)[-1], f"{state[down].shape[1]} to {state[up].shape[0]}", inputs, outputs))
    if not wrong:
        return
    if len(wrong) < LEAST_SHARE * len(known):
        raise CheckpointError(replaces_weights(name for name, *_ in wrong))
    name, sizes, inputs, outputs = wrong[0]
    raise CheckpointError(
        f"it is of a model of another size: {name} leads from {sizes} values, here from {inputs} to {outputs}"
    )


def _layer_sizes(layer: Any) -> tuple[int, int]:
    """Return a layer's inputs of one group, and its outputs."""
    if hasattr(layer, "in_features"):
        return layer.in_features, layer.out_features
    return layer.in_channels // layer.groups, layer.out_channels


def _layers(pipeline: Any) -> dict[str, dict[str, torch.nn.Module]]:
    """Return the layers that adapters can be put on, by component and name."""
    return {
        component: {name: each for name, each in base_modules(module) if isinstance(each, ADAPTED)}
        for component, module in adapted_components(pipeline).items()
    }


def _exact_buffers(pipeline: Any) -> Iterator[tuple[torch.nn.Module, str, torch.Tensor]]:
    """Yield the buffers of another dtype than their component's weights, by module and name, such as the frequencies of
    rotary embeddings: diffusers casts the text encoder that it puts an adapter on, and these with it."""
    for component in adapted_components(pipeline).values():
        for module in component.modules():
            for name, numbers in module.named_buffers(recurse=False):
                if numbers.is_floating_point() and numbers.dtype != component.dtype:
                    yield module, name, numbers


def _adapted_layers(pipeline: Any, name: str) -> Iterator[Any]:
    """Yield the layers that have this adapter."""
    for component in adapted_components(pipeline).values():
        for module in component.modules():
            if isinstance(module, BaseTunerLayer) and any(
                name in getattr(module, each, ()) for each in module.adapter_layer_names
            ):
                yield module


def _dropped_layers(weights: Weights, contents: AdapterTensors, convert: Callable[[Weights], Any]) -> set[str] | None:
    """Find the layers that a conversion drops. It is given pairs of rank 1, each filled with its number: a number that
    is nowhere in the result is of a dropped layer. None if it can't be told: a conversion may look for more than
    names."""
    marks: dict[str, torch.Tensor] = {}
    for number, (layer, (down, up)) in enumerate(contents.pairs.items(), 1):
        marks[down] = torch.full((1,) * weights[down].dim(), float(number))
        marks[up] = torch.zeros(weights[up].shape[0], *(1,) * (weights[up].dim() - 1))
        if f"{layer}.alpha" in weights:
            marks[f"{layer}.alpha"] = torch.tensor(1.0)
    try:
        result = convert(marks)
    except Exception:  # the weights themselves were converted: only the count is not known
        return None
    state = result[0] if isinstance(result, tuple) else result
    numbers = {
        round(float(value)) for down, _ in classify_tensors(state).pairs.values() for value in state[down].flatten()
    }
    return {layer for number, layer in enumerate(contents.pairs, 1) if number not in numbers}


def _last_line(error: Exception) -> str:
    """Return the last line of an error that has one for every layer, cut to a bound."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()
    return line if len(line) <= MOST_OF_AN_ERROR else f"{line[:MOST_OF_AN_ERROR]}..."
