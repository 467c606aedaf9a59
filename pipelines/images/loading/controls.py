"""ControlNets, T2I-Adapters and IP-Adapters beside a checkpoint, which requests choose by name.

A ControlNet and a T2I-Adapter are networks of their own: a pipeline of diffusers' classes for them takes one as a part,
so any runs go together. An IP-Adapter adds attention to the denoiser: it is state of the weights, so runs with other
ones wait.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from pipelines.checkpoints.folder.own_parts import UNION, ip_adapter_problem
from pipelines.checkpoints.folder.versions import FileVersion
from pipelines.device.failures import is_device_error, is_out_of_memory
from pipelines.device.memory import copy_mapped_weights
from pipelines.images.loading.file_hashes import FileHashes
from pipelines.images.loading.parts import LOAD_LOCK
from pipelines.images.tasks import UnsupportedTask
from pipelines.protocol.images import Control, ControlInput, RawImage
from pipelines.protocol.pixels import to_image

T2I = "Adapter"  # in the names of classes that take T2I-Adapters
T2I_STRENGTH = "adapter_conditioning_scale"
NETS = ("controlnet", "t2i-adapter")  # kinds of controls that are networks of their own


@dataclass(frozen=True, slots=True)
class PlainDenoiser:
    """The parts of a denoiser that an IP-Adapter replaces."""

    processors: Mapping[str, Any]
    projection: Any  # of text embeddings, in a few
    projection_kind: str | None

    @classmethod
    def of(cls, denoiser: Any) -> "PlainDenoiser":
        """Read the attention processors and the image projection of a denoiser."""
        projection = getattr(denoiser, "encoder_hid_proj", None)
        return cls(dict(denoiser.attn_processors), projection, denoiser.config.get("encoder_hid_dim_type"))

    def restore(self, denoiser: Any) -> None:
        """Restore the parts that were there before the IP-Adapters."""
        denoiser.set_attn_processor(dict(self.processors))
        denoiser.encoder_hid_proj = self.projection
        denoiser.config.encoder_hid_dim_type = self.projection_kind


@dataclass(slots=True)
class Controls:
    """The controls of one loaded checkpoint."""

    by_name: Mapping[str, Control] = field(default_factory=dict)
    nets: Mapping[Path, torch.nn.Module] = field(default_factory=dict)
    encoders: Mapping[Path, tuple[torch.nn.Module, Any]] = field(default_factory=dict)  # with their image processors
    bytes: int = 0  # on the device
    notes: tuple[str, ...] = ()  # on their files, for the operator
    hashes: FileHashes = field(default_factory=FileHashes)
    _net_hashes: Mapping[Path, str] = field(default_factory=dict)
    _active: tuple[tuple[str, FileVersion | None], ...] = ()  # IP-Adapters in the denoiser, and their files
    _plain: PlainDenoiser | None = None  # while there are some

    @property
    def modules(self) -> list[torch.nn.Module]:
        """Return the modules of all networks and image encoders."""
        return [*self.nets.values(), *(encoder for encoder, _ in self.encoders.values())]

    def of_kind(self, kinds: Sequence[str], inputs: Sequence[ControlInput]) -> list[ControlInput]:
        """Return the inputs whose controls are of these kinds."""
        return [each for each in inputs if self.by_name[each.name].kind in kinds]

    def infix(self, nets: Sequence[ControlInput]) -> str:
        """Return the part that these networks have in the names of diffusers' pipeline classes, such as "ControlNet".
        Raises UnsupportedTask for kinds that no class takes together."""
        infixes = {_infix(type(self.nets[self.by_name[each.name].path]).__name__) for each in nets}
        if len(infixes) > 1:
            kinds = "T2I-Adapters, ControlNets" if T2I in infixes else "ControlNets"
            raise UnsupportedTask(f"it takes {kinds} for several kinds of maps and those for one apart", "controls")
        return infixes.pop()

    def parts(self, nets: Sequence[ControlInput]) -> dict[str, Any]:
        """Return the components of a pipeline that draws with these networks, and with the IP-Adapters that are
        active."""
        modules = [self.nets[self.by_name[each.name].path] for each in nets]
        if len(modules) > 1 and self.infix(nets) == UNION and all(module is modules[0] for module in modules):
            modules = modules[:1]  # it takes several maps at once
        key = "adapter" if modules and self.infix(nets) == T2I else "controlnet"
        parts: dict[str, Any] = {key: modules[0] if len(modules) == 1 else modules} if modules else {}
        if self._active:
            parts["image_encoder"], parts["feature_extractor"] = self._encoder(self._active[0][0])
        return parts

    def _encoder(self, name: str) -> tuple[torch.nn.Module, Any]:
        folder = self.by_name[name].image_encoder
        if folder is None:
            raise RuntimeError(f"{name} is no IP-Adapter")
        return self.encoders[folder]

    def net_arguments(
        self,
        accepted: Mapping[str, Any],
        nets: Sequence[ControlInput],
        at_drawn_size: Callable[[RawImage], Image.Image],
    ) -> dict[str, Any]:
        """Return the arguments of a call with these networks: their maps at the size that is drawn, and their
        strengths."""
        maps = [self._as_read(at_drawn_size(each.image), each) for each in nets]
        strengths = [each.strength for each in nets]
        modes = [self.by_name[each.name].mode for each in nets]
        arguments: dict[str, list[Any]] = {
            "control_image" if "control_image" in accepted else "image": maps,
            T2I_STRENGTH if T2I_STRENGTH in accepted else "controlnet_conditioning_scale": strengths,
            **({"control_mode": modes} if any(mode is not None for mode in modes) else {}),
        }
        return arguments if len(nets) > 1 else {name: values[0] for name, values in arguments.items()}

    def _as_read(self, drawn: Image.Image, net: ControlInput) -> Image.Image:
        """Return a map in the mode that its network takes: some T2I-Adapters read levels of grey."""
        config = getattr(self.nets[self.by_name[net.name].path], "config", {})
        return drawn.convert("L") if config.get("in_channels") == 1 else drawn

    def adapter_arguments(self, accepted: Mapping[str, Any], inputs: Sequence[ControlInput]) -> dict[str, Any]:
        """Return the arguments of a call while the IP-Adapters are active. Raises UnsupportedTask if it takes none."""
        adapters = self.of_kind(("ip-adapter",), inputs)
        if not adapters:
            return {}
        if "ip_adapter_image" not in accepted:
            raise UnsupportedTask("it takes no IP-Adapter for such an image", "controls")
        return {"ip_adapter_image": [to_image(each.image) for each in adapters]}

    def read(self, inputs: Sequence[ControlInput]) -> None:
        """Read the IP-Adapters that a run will load, before it has the device."""
        for active in self._file_versions(self.of_kind(("ip-adapter",), inputs)):
            if active not in self._active and active[1] is not None:
                self.hashes.read(active[1])
                with LOAD_LOCK:  # as for adapters
                    pass

    def is_outdated(self, inputs: Sequence[ControlInput]) -> bool:
        """Return whether the file of an IP-Adapter in the denoiser has changed since it was read."""
        wanted = self._file_versions(self.of_kind(("ip-adapter",), inputs))
        return wanted != self._active and [name for name, _ in wanted] == [name for name, _ in self._active]

    def _file_versions(self, adapters: Sequence[ControlInput]) -> tuple[tuple[str, FileVersion | None], ...]:
        return tuple((each.name, FileVersion.find(self.by_name[each.name].path)) for each in adapters)

    def found(self, inputs: Sequence[ControlInput]) -> dict[str, str]:
        """Return the hashes of the controls that a run draws with, by name: those of the files as they were read."""
        versions = dict(self._active)
        found = {}
        for each in inputs:
            control = self.by_name[each.name]
            version = versions.get(each.name)
            known = self.hashes.find(version) if version is not None else self._net_hashes.get(control.path)
            if known is not None:
                found[each.name] = known
        return found

    def activate(self, pipeline: Any, denoiser: Any, inputs: Sequence[ControlInput], *, held: bool = False) -> None:
        """Load a run's IP-Adapters into the denoiser, and remove others. While it is `held`, other runs draw with those
        of these names: they stay, even if their files have changed. Raises UnsupportedTask."""
        adapters = self.of_kind(("ip-adapter",), inputs)
        wanted = self._file_versions(adapters)
        if wanted != self._active and not (held and self.is_outdated(inputs)):
            self.deactivate(denoiser)
            if wanted:
                self._plain = PlainDenoiser.of(denoiser)
                self._active = wanted
                try:
                    self._load(pipeline, denoiser, adapters)
                except Exception as error:  # the library raises anything for an adapter of another model
                    self.deactivate(denoiser)
                    if is_out_of_memory(error) or is_device_error(error):
                        raise
                    raise UnsupportedTask(f"the IP-Adapter '{wanted[0][0]}' does not fit it", "controls") from error
                if self._file_versions(adapters) != wanted:
                    self.deactivate(denoiser)
                    raise UnsupportedTask(f"the IP-Adapter '{wanted[0][0]}' is being replaced: try again", "controls")
        if wanted:
            strengths = [each.strength for each in adapters]
            pipeline.set_ip_adapter_scale(strengths if len(strengths) > 1 else strengths[0])

    def deactivate(self, denoiser: Any) -> None:
        """Remove all IP-Adapters from the denoiser."""
        if self._plain is not None:
            self._plain.restore(denoiser)
            self._plain, self._active = None, ()

    def _load(self, pipeline: Any, denoiser: Any, adapters: Sequence[ControlInput]) -> None:
        """Load IP-Adapters into the pipeline's denoiser. It looks for no image encoder if it has one."""
        encoder, processor = self._encoder(adapters[0].name)
        pipeline.register_modules(image_encoder=encoder, feature_extractor=processor)
        files = [self.by_name[each.name].path for each in adapters]
        if (problem := next(filter(None, map(ip_adapter_problem, files)), None)) is not None:
            raise ValueError(problem)  # one that was replaced since the checkpoint was loaded
        arguments: dict[str, Any] = {
            "pretrained_model_name_or_path_or_dict": [str(file.parent) for file in files],
            "subfolder": [""] * len(files),
            "weight_name": [file.name for file in files],
        }
        if len(files) == 1:  # some take one alone, and no lists
            arguments = {name: values[0] for name, values in arguments.items()}
        with LOAD_LOCK:
            pipeline.load_ip_adapter(**arguments, local_files_only=True)
        for part in (*denoiser.attn_processors.values(), getattr(denoiser, "encoder_hid_proj", None)):
            if isinstance(part, torch.nn.Module):  # a UNet's loader can't move them where layers come and go
                part.to(pipeline._execution_device, denoiser.dtype)
                copy_mapped_weights([part])


def _infix(class_name: str) -> str:
    return T2I if class_name == "T2IAdapter" else UNION if UNION in class_name else "ControlNet"


def takes_adapter(task_class: type[Any] | None) -> bool:
    """Return whether a pipeline class draws with an IP-Adapter."""
    return task_class is not None and "ip_adapter_image" in inspect.signature(task_class.__call__).parameters
