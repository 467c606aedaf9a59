"""Loading checkpoints from the local disk: a diffusers folder, a denoiser alone with its base folder, or a whole
checkpoint in one .safetensors file with a folder of configs.

Diffusers loads them: safetensors only, offline, and no code from the checkpoint. The components are loaded once; the
pipelines of all tasks share the same modules.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import diffusers
import torch
from diffusers.loaders.single_file_utils import SingleFileComponentError

from pipelines.checkpoints.classes.facts import class_problems
from pipelines.checkpoints.classes.index import denoiser_name, index_file, is_left_out
from pipelines.checkpoints.classes.source import installed_pipelines
from pipelines.checkpoints.errors import CheckpointError, RefusedOption
from pipelines.checkpoints.folder.files import CheckpointFiles
from pipelines.checkpoints.inspection.beside_folders import inspect_file
from pipelines.checkpoints.inspection.suggestion import adapter_notes
from pipelines.checkpoints.memory.device_bytes import stays_float8
from pipelines.checkpoints.memory.shares import Room
from pipelines.checkpoints.weight_file.file import WeightFile
from pipelines.device.failures import clear_frames, is_device_error, is_out_of_memory
from pipelines.device.graph_capture import CAPTURES
from pipelines.device.memory import Budgets, compute_dtype, free_memory
from pipelines.device.staged_copy import move_modules
from pipelines.families.registry import family_of
from pipelines.images.denoising.merging import ForwardMerger, Sharing
from pipelines.images.denoising.noise_schedulers import apply_file_scheduler
from pipelines.images.denoising.own_noise import watch_noise
from pipelines.images.denoising.pass_graphs import PassGraphs
from pipelines.images.denoising.step_caches import StepCaches
from pipelines.images.loading import runtime_options
from pipelines.images.loading.checkpoint import Checkpoint, identity_of
from pipelines.images.loading.component_fixes import bring_position_tables, is_cast
from pipelines.images.loading.control_files import load_controls
from pipelines.images.loading.embeddings import load_embeddings
from pipelines.images.loading.needed_libraries import import_quantizers, libraries_named_by, missing_libraries_message
from pipelines.images.loading.own_parts import load_own_parts
from pipelines.images.loading.parts import LOAD_LOCK, load_parts, model_classes
from pipelines.images.loading.safety_checker import safety_note
from pipelines.images.loading.shared_parts import SharedParts, origin_of
from pipelines.images.loading.single_file_names import check_headers, check_text_encoders
from pipelines.images.loading.single_files import load_denoiser, load_whole
from pipelines.images.loading.upscalers import load_upscaler
from pipelines.images.modular import is_modular, pipeline_class_of
from pipelines.images.parallel.choice import check_attention
from pipelines.images.parallel.encoders import add_device_hooks, text_encoders
from pipelines.images.parallel.group import Group
from pipelines.images.prompts.reading import require_whole_prompts, watch
from pipelines.images.tasks import task_classes
from pipelines.protocol.images import CheckpointSpec, Runtime


def load_checkpoint(
    spec: CheckpointSpec,
    device: torch.device,
    sharing: Sharing | None = None,
    shared: SharedParts | None = None,
    room: Room | None = None,
    group: Group | None = None,
) -> Checkpoint:
    """Load a checkpoint onto the device. With `sharing`, its runs take turns, and share the denoiser's forward passes.
    `shared` has the components of checkpoints that are loaded already. `room` is what `runtime = "auto"` may fill, by
    default what there is. `group` has further devices.

    Raises CheckpointError.
    """
    if spec.conditioning == "upscale":
        return load_upscaler(spec, device, sharing)
    shared = shared or SharedParts()
    group = group or Group(device)
    room = room or Budgets.of(device).weigh(device, 0).room(device)
    refused: dict[str, str] = {}
    while True:
        chosen = runtime_options.resolve(spec, device, room, group.size, refused)
        try:
            return _load(spec, chosen, device, sharing, shared, group)
        except RefusedOption as error:
            if not (spec.runtime.auto or error.option == runtime_options.PAGE_LOCK) or error.option in refused:
                raise
            refused[error.option] = str(error)
            clear_frames(error)  # they hold what was loaded
        free_memory(device)


def _load(
    spec: CheckpointSpec,
    options: tuple[Runtime, tuple[str, ...]],
    device: torch.device,
    sharing: Sharing | None,
    shared: SharedParts,
    group: Group,
) -> Checkpoint:
    """Load a checkpoint with these options, and notes on how they were chosen. Raises CheckpointError."""
    runtime, chosen = options
    resolved = replace(spec, runtime=runtime)
    dtype = compute_dtype(runtime.dtype, device)
    files = CheckpointFiles.of(spec)
    folder = files.checked_folder
    index, name = folder.index, folder.index["_class_name"]
    pipeline_class = pipeline_class_of(index)
    if pipeline_class is None:
        raise CheckpointError(f"{index_file(folder.path)}: diffusers {diffusers.__version__} has no class {name}")
    if problem := next(class_problems(index, folder.path, installed_pipelines()), None):
        raise CheckpointError(problem)
    file_sampling, of_file = inspect_file(files, index)
    import_quantizers(folder, index)
    origin = origin_of(resolved)
    found = shared.find(resolved, origin, dtype, device)
    encoders_device = group.second_device if runtime.gpus > 1 and runtime.parallel == "encoders" else None
    pipeline, unused = _read(resolved, files, pipeline_class, device, found, encoders_device)
    denoiser = getattr(pipeline, denoiser_name(index))
    words: tuple[str, ...] = ()
    if runtime.embedding_folder is not None:
        words = load_embeddings(pipeline, runtime.embedding_folder)
    watch(pipeline.components)
    watch_noise(part for name, part in pipeline.components.items() if name not in found)
    notes = (
        apply_file_scheduler(pipeline, spec, file_sampling) + of_file + chosen + unused + words + adapter_notes(spec)
    )
    bring_position_tables(denoiser, device)
    notes += runtime_options.apply(pipeline, denoiser, runtime, device) + safety_note(pipeline.components)
    split = None
    if runtime.gpus > 1 and encoders_device is None:
        check_attention(denoiser)
        split = group.share(denoiser, runtime.parallel)
    merger = None
    if sharing is not None:
        merger = share_passes(denoiser, sharing, runtime, device, pipeline_class)
        elsewhere = [*found.values(), *([] if merger is None else [denoiser])]
        own = [part for part in pipeline.components.values() if all(part is not each for each in elsewhere)]
        _let_runs_take_turns(own, sharing, device, pipeline_class)
    require_whole_prompts(denoiser)
    shared.keep(resolved, origin, dtype, device, pipeline.components)
    step_caches = StepCaches(denoiser) if runtime.cache is not None else None
    config = {
        key: value
        for key, value in pipeline.config.items()
        if not key.startswith("_") and key not in pipeline.components
    }
    multiple = family_of(name).size_multiple(pipeline)
    tasks = task_classes(pipeline_class)
    components = dict(pipeline.components)
    with LOAD_LOCK:
        controls = load_controls(spec, pipeline_class, device, dtype)
    return Checkpoint(
        spec, pipeline_class, tasks, runtime, components, config, device, step_caches, multiple,
        notes + controls.notes, controls, merger=merger, split=split, encoders_device=encoders_device,
        identity=identity_of(components, device, runtime.gpus, dtype),
    )  # fmt: skip


def _read(
    spec: CheckpointSpec,
    files: CheckpointFiles,
    pipeline_class: type[Any],
    device: torch.device,
    found: Mapping[str, torch.nn.Module],
    encoders_device: torch.device | None,
) -> tuple[Any, tuple[str, ...]]:
    """Read a pipeline from the files directly to the device, unless the weights are offloaded; with notes on weights
    that are not needed. Raises CheckpointError."""
    index = files.index
    # A component that the index leaves out on purpose, such as a safety checker, must be passed as None.
    absent = {part: None for part, entry in index.items() if is_left_out(entry)}
    options = {
        "torch_dtype": compute_dtype(spec.runtime.dtype, device),
        "local_files_only": True,
        **absent,
        **found,
        **runtime_options.loading_options(spec.runtime, denoiser_name(index)),
    }
    try:
        with LOAD_LOCK:
            return _from_files(spec, files, pipeline_class, options, device, encoders_device)
    except CheckpointError:
        raise
    except Exception as error:  # the libraries raise anything for a broken file
        if is_out_of_memory(error) or is_device_error(error):  # not the file's fault
            raise
        if isinstance(error, SingleFileComponentError):  # it goes on with what a program could do
            raise CheckpointError(f"{spec.path}: {str(error).splitlines()[0]}") from error
        if missing := libraries_named_by(error, spec.path, files.checked_folder, index):
            raise CheckpointError(missing_libraries_message(spec.path, pipeline_class.__name__, missing)) from error
        raise CheckpointError(
            f"{spec.path} does not load as {pipeline_class.__name__}: {type(error).__name__}: {error}"
        ) from error


def _from_files(
    spec: CheckpointSpec,
    files: CheckpointFiles,
    pipeline_class: type[Any],
    options: dict[str, Any],
    device: torch.device,
    encoders_device: torch.device | None,
) -> tuple[Any, tuple[str, ...]]:
    on_device, index, folder = spec.runtime.offload == "none", files.index, files.checked_folder.path
    own, of_own = load_own_parts(spec, files, options)
    if files.has_all and files.file is not None:
        notes = check_headers(files.file, folder, dict(model_classes(pipeline_class, index)))
        pipeline, of_folder = load_whole(files, files.file, pipeline_class, options | own)
        notes += of_folder
        of_file = {name: part for name, part in pipeline.components.items() if name not in own}
        notes += check_text_encoders(files.file, of_file)
        staged = on_device and "quantization_config" not in options
        if on_device and not staged:
            pipeline.to(device)
    else:
        # weights that a library quantizes while it reads them are made on the device; others are read to the host
        staged = on_device and device.type != "cpu" and "quantization_config" not in options
        device_map = {"device_map": device.type} if on_device and device.type != "cpu" and not staged else {}
        variant = files.find_variant()
        notes = []
        if files.file is not None:
            denoiser, notes = _denoiser_of_file(spec, files, files.file, options)
            if on_device and (not staged or spec.path.suffix == ".gguf"):  # its weights are no plain tensors
                denoiser = {name: part.to(device) for name, part in denoiser.items()}
            options |= denoiser
        if on_device and not staged:
            own = {name: part.to(device) for name, part in own.items()}
        options |= own
        parts, of_parts = load_parts(folder, pipeline_class, index, variant, {**options, **device_map})
        notes += of_parts
        pipeline = pipeline_class.from_pretrained(
            folder, use_safetensors=True, variant=variant, **options, **parts, **device_map
        )
    if staged:
        _place(pipeline.components, spec.runtime, device, encoders_device)
    _to_channels_last(pipeline.components)
    if encoders_device is not None:
        for encoder in text_encoders(pipeline.components):
            add_device_hooks(device, encoder, encoders_device)
    return pipeline, (*of_own, *notes)


def _place(
    components: Mapping[str, Any], runtime: Runtime, device: torch.device, encoders_device: torch.device | None
) -> None:
    """Move components from the host to the devices. A denoiser that is quantized here, or divided over several devices,
    stays on the host until then: the device need not have room for all of its weights."""
    modules = {name: part for name, part in components.items() if isinstance(part, torch.nn.Module)}
    if runtime.quantize in runtime_options.QUANTIZED_HERE or (runtime.gpus > 1 and runtime.parallel == "tensor"):
        del modules[denoiser_name(dict(components))]
    elsewhere = [] if encoders_device is None else text_encoders(modules)
    move_modules([part for part in modules.values() if part not in elsewhere], device)
    if encoders_device is not None:
        move_modules(elsewhere, encoders_device)


def _denoiser_of_file(
    spec: CheckpointSpec, files: CheckpointFiles, file: WeightFile, options: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Load a single file's denoiser, as an argument of from_pretrained in place of its quantization; with notes. Raises
    CheckpointError."""
    name = denoiser_name(files.index)
    kind = getattr(diffusers, files.index[name][1])
    quantization = options.pop("quantization_config", None)
    config = quantization.quant_mapping[name] if quantization is not None else None
    denoiser, notes = load_denoiser(file, (files.checked_folder.path, name), kind, options["torch_dtype"], config)
    if stays_float8(files, spec.runtime):
        denoiser.enable_layerwise_casting(storage_dtype=torch.float8_e4m3fn, compute_dtype=options["torch_dtype"])
    return {name: denoiser}, notes


def _to_channels_last(components: dict[str, Any]) -> None:
    """Change the memory format of components, in place. A codec on a CPU then takes about half the time, and less
    memory."""
    for part in components.values():
        dimensions = {weight.dim() for weight in part.parameters()} if hasattr(part, "parameters") else set()
        if max(dimensions, default=0) == 4:  # of convolutions over images, not over videos
            part.to(memory_format=torch.channels_last)


def share_passes(
    denoiser: Any, sharing: Sharing, runtime: Runtime, device: torch.device, pipeline_class: type[Any]
) -> ForwardMerger | None:
    """Let runs meet in the denoiser, unless it caches steps: those caches work within a pass. Passes become graphs
    where they are repeated as they are: not where weights come and go or are elsewhere, where a call changes the
    denoiser, and with guiders, which do too."""
    if runtime.cache is not None:
        return None
    family = family_of(pipeline_class.__name__)
    stays = runtime.offload in {"none", "encoders"} and (runtime.gpus == 1 or runtime.parallel == "encoders")
    stays = stays and runtime.quantize != "float8"  # each pass makes its weights anew
    unchanged = family.at_once and not is_modular(pipeline_class) and not runtime.compile
    graphs = PassGraphs(device) if device.type in CAPTURES and stays and unchanged else None
    return ForwardMerger(denoiser, sharing, family.separate_passes, graphs)


def _let_runs_take_turns(
    components: Iterable[Any], sharing: Sharing, device: torch.device, pipeline_class: type[Any]
) -> None:
    """Let runs take turns on the device, in the components in which they do not meet. A turn starts with every forward
    pass, and with every tile that a codec encodes or decodes; on a CPU, where a tile can take as long as a whole draft,
    with every block of the codec.

    A codec that pipelines cast around its passes is left out: another run would meet it in the wrong dtype.
    """
    for part in components:
        if isinstance(part, torch.nn.Module) and not is_cast(part, pipeline_class):
            halves = [half for half in (getattr(part, "encoder", None), getattr(part, "decoder", None)) if half]
            for module in halves if hasattr(part, "decode") and halves else [part]:
                module.register_forward_pre_hook(sharing.scheduler.yield_point)
            if device.type == "cpu":
                for half in halves:
                    for block in _blocks(half):
                        block.register_forward_pre_hook(sharing.scheduler.yield_within_pass)


def _blocks(half: torch.nn.Module) -> list[torch.nn.Module]:
    """List the parts of a codec's encoder or decoder that come one after another, and the parts of these."""
    lists = (each for each in half.modules() if isinstance(each, torch.nn.ModuleList | torch.nn.Sequential))
    return [block for each in lists for block in each.children()]  # some list None
