"""The files of a chat checkpoint: a transformers folder, or one .gguf file. Nothing in them is executed."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
    FineGrainedFP8Config,
)
from transformers.integrations.mistral.tokenizer import convert_tekken_tokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from pipelines.chat.model.four_bit_linear import FourBitLinear
from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.memory.chat_files import FLOAT8, GGUF, MLX, missing_packages, quantized_by
from pipelines.checkpoints.weight_file.header import WEIGHT_FILES, pickles_in, read_header
from pipelines.device.failures import require_device
from pipelines.device.memory import compute_dtype
from pipelines.device.quantizers import quantizing_config
from pipelines.device.weight_names import load_model
from pipelines.protocol.chat import ChatSpec

TEKKEN = "tekken.json"  # a tokenizer of Mistral's
OWN_TOKENIZERS = ("tokenizer.json", "tokenizer.model")
TOKENIZERS = (*OWN_TOKENIZERS, TEKKEN, "vocab.*", "*.tiktoken", "*.model")
ADAPTER = "adapter_"  # how files begin that PEFT writes
ADAPTER_CONFIG = f"{ADAPTER}config.json"
SPLIT = re.compile(rf"-\d{{5}}-of-\d{{5}}{GGUF}$")
MMPROJ = "mmproj"  # how files begin that have a model's vision encoder alone
KEEP_PACKED = {
    "gguf": "the package kernels keeps them packed on a GPU",
    "mxfp4": "the packages kernels and triton keep them packed on a GPU",
    "fp8": "the package kernels keeps them packed on a GPU that computes in fp8 (Ada, Hopper or later)",
    "mxfp8": "the package kernels keeps them packed on a GPU that computes in fp8 (Ada, Hopper or later)",
}
OWN_CLASSES = {"local_files_only": True, "trust_remote_code": False}  # classes of transformers, whatever auto_map names


def check_files(path: Path) -> None:
    """Check a checkpoint as far as that needs no loading. Raises CheckpointError."""
    if path.suffix == GGUF:
        if not path.is_file():
            raise CheckpointError(f"{path}: no such file")
        if SPLIT.search(path.name):
            raise CheckpointError(f"{path}: one of several files; join them with `llama-gguf-split --merge`")
        return
    _check_weights(path)
    if not any(file for pattern in TOKENIZERS for file in path.glob(pattern)):
        raise CheckpointError(f"{path}: no tokenizer; copy tokenizer.json and tokenizer_config.json there, too")
    if quantized_by(path) == MLX:
        remedy = "take a .gguf file, or the checkpoint that it was made from"
        raise CheckpointError(f"{path}: quantized by MLX, which computes on Macs alone; {remedy}")
    if missing := missing_packages(path):
        why = f"quantized by {quantized_by(path)}, for which packages are missing: {' '.join(missing)}"
        raise CheckpointError(f"{path}: {why}")


def _check_weights(path: Path) -> None:
    files = [file for file in sorted(path.glob(WEIGHT_FILES)) if not file.name.startswith(ADAPTER)]
    if (path / ADAPTER_CONFIG).is_file() and not files:
        raise CheckpointError(f"{path}: a LoRA adapter and no whole model; merge it into the one that it was made for")
    if not (path / "config.json").is_file():
        raise CheckpointError(f"{path}: no config.json, so this is no transformers folder")
    if not files:
        packed = min((file for file in path.glob(f"*{GGUF}") if not file.name.startswith(MMPROJ)), default=None)
        pickled = next(iter(pickles_in(path)), None)
        weights = f"only pickles such as {pickled.name}, which can run code" if pickled else "no weights"
        remedy = f"name its file: {packed.name}" if packed else "convert the checkpoint to safetensors"
        raise CheckpointError(f"{path}: {weights}; {remedy}")
    for file in files:
        read_header(file)


def open_checkpoint(spec: ChatSpec, device: torch.device) -> tuple[Any, Any, Any, list[str]]:
    """Return the processor, which only a model that sees images has, the tokenizer, the model, and notes for the
    operator. Raises CheckpointError, and whatever the library raises for broken files."""
    folder, file = (spec.path.parent, {"gguf_file": spec.path.name}) if spec.path.suffix == GGUF else (spec.path, {})
    kind = type(_config(spec.path, folder, file))
    sees = spec.vision and kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    processor = AutoProcessor.from_pretrained(folder, **OWN_CLASSES) if sees else None
    tokenizer = processor.tokenizer if processor else _tokenizer(folder, file)
    reads_text = kind in MODEL_FOR_CAUSAL_LM_MAPPING or kind not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    model_class = AutoModelForCausalLM if reads_text and not sees else AutoModelForImageTextToText
    model, notes = load_model(
        model_class,
        folder,
        "model",
        spec.path,
        trust_remote_code=False,
        **file,
        dtype=compute_dtype(spec.dtype, device),
        **_quantized(spec, device),
        **({} if device.type == "cpu" else {"device_map": device.type}),
    )
    if spec.vision and not sees:
        notes.append("without images: transformers has no class of this model that reads them")
    if not file and (folder / ADAPTER_CONFIG).is_file():
        notes.append(f"without the LoRA adapter beside it, {ADAPTER_CONFIG}: merge it into the model to chat with both")
    return processor, tokenizer, model, notes


def _tokenizer(folder: Path, file: dict[str, str]) -> Any:
    """Return the tokenizer, of the library's own kind even where Mistral's package for its files is installed: that
    has no chat template and no vocabulary to build grammars with."""
    if not file and (folder / TEKKEN).is_file() and not any((folder / name).is_file() for name in OWN_TOKENIZERS):
        return convert_tekken_tokenizer(str(folder / TEKKEN))
    return AutoTokenizer.from_pretrained(folder, **OWN_CLASSES, **file, mistral_format=False)


def _quantized(spec: ChatSpec, device: torch.device) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` that quantize the weights, or multiply out what nothing here computes
    with: without its kernels the library loads float8 weights, and fails at their first product. Raises
    CheckpointError."""
    if spec.quantize == "none":
        if spec.path.suffix == GGUF or quantized_by(spec.path) not in FLOAT8 or _computes_in_float8(device):
            return {}
        return {"quantization_config": FineGrainedFP8Config(dequantize=True)}
    if spec.path.suffix == GGUF or quantized_by(spec.path):
        raise CheckpointError(f"{spec.path}: `quantize` is of no use, since its weights are quantized already")
    return {"quantization_config": quantizing_config(transformers, spec.quantize, "quantize")}


def _computes_in_float8(device: torch.device) -> bool:
    """Return whether the library finds its kernels for float8 weights on this machine."""
    if device.type != "cuda":
        return False
    try:
        from transformers.integrations.finegrained_fp8 import load_finegrained_fp8_kernel

        load_finegrained_fp8_kernel()
    except Exception as error:  # no package, no kernel for this torch, or no network to load one from
        require_device(error, device)
        return False
    return True


def _config(path: Path, folder: Path, file: dict[str, str]) -> Any:
    try:
        return AutoConfig.from_pretrained(folder, **OWN_CLASSES, **file)
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        message = f"{path}: a model of no class that transformers has, and code of its own is not executed"
        raise CheckpointError(message) from error


def quantization_notes(path: Path, model: Any) -> Iterator[str]:
    """Yield what an operator should know of quantized weights that are not in memory as they are in the files."""
    method = "gguf" if path.suffix == GGUF else quantized_by(path)
    if method and not _is_packed(model):
        kept = sum(isinstance(layer, FourBitLinear) for layer in model.modules())
        but = f", but for {kept} layers that stay in four bits," if kept else ""
        tensors = (each for each in (*model.parameters(), *model.buffers()) if each.device.type != "meta")
        gib = sum(each.numel() * each.element_size() for each in tensors) / 2**30
        remedy = KEEP_PACKED.get(method, "nothing here keeps them packed")
        yield f"its weights, quantized by {method}, are multiplied out{but} and take {gib:.1f} GiB; {remedy}"


def _is_packed(model: Any) -> bool:
    """Return whether quantized weights stayed as they are in the files: else the library forgets how they were."""
    quantizer: Any = getattr(model, "hf_quantizer", None)
    packed = bool(getattr(quantizer, "supported", quantizer is not None))
    return packed and not getattr(quantizer.quantization_config, "dequantize", False)
