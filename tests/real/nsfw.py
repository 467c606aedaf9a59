"""Converts the MobileNetV2 of nsfwjs (MIT) to a folder of transformers."""

import base64
import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

LABELS = ("Drawing", "Hentai", "Neutral", "Porn", "Sexy")
EPSILON = 1e-3
READ = "process.stdout.write(JSON.stringify(process.argv.slice(1).map(file => require(file))))"
Weights = Mapping[str, "np.ndarray[Any, Any]"]


def convert(package: Path, node: str, target: Path) -> Path:
    """Write the folder. Every tensor of the model has its place in it, and gets its shape."""
    model, *shards = _read(package / "dist" / "models" / "mobilenet_v2_mid", node)
    weights = _weights(model["weightsManifest"], b"".join(base64.b64decode(shard) for shard in shards))
    config = MobileNetV2Config(
        num_labels=len(LABELS), depth_multiplier=1.4, tf_padding=True, layer_norm_eps=EPSILON, image_size=224,
        id2label=dict(enumerate(LABELS)), label2id={label: i for i, label in enumerate(LABELS)},
    )  # fmt: skip
    network = MobileNetV2ForImageClassification(config)
    counters = {name for name in network.state_dict() if name.endswith("num_batches_tracked")}
    missing, unexpected = network.load_state_dict(dict(_tensors(model["modelTopology"]["node"], weights)), strict=False)
    assert not unexpected
    assert set(missing) <= counters
    network.save_pretrained(target)
    (target / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    return target


PREPROCESSOR = {
    "image_processor_type": "MobileNetV2ImageProcessor",
    "do_resize": True,
    "size": {"height": 224, "width": 224},
    "do_center_crop": False,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "resample": 2,
}


def _read(folder: Path, node: str) -> list[Any]:
    """The files are JavaScript whose value is the model, or a shard in base64."""
    files = [folder / "model.min.js", *sorted(folder.glob("group1-shard*.min.js"))]
    command = [node, "-e", READ, *map(str, files)]
    values: list[Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return [next(iter(value.values())) if isinstance(value, dict) and "default" in value else value for value in values]


def _weights(manifest: list[Any], data: bytes) -> Weights:
    weights, offset = {}, 0
    for entry in (entry for group in manifest for entry in group["weights"]):
        quantized = entry.get("quantization")
        dtype = np.dtype(quantized["dtype"] if quantized else entry["dtype"])
        count = int(np.prod(entry["shape"]))
        values = np.frombuffer(data, dtype, count, offset).astype(np.float32)
        offset += count * dtype.itemsize
        if quantized and "scale" in quantized:
            values = values * quantized["scale"] + quantized["min"]
        weights[entry["name"]] = values.reshape(entry["shape"])
    assert offset == len(data)
    return weights


def _tensors(nodes: list[Any], weights: Weights) -> Iterator[tuple[str, torch.Tensor]]:
    """Convolutions come in their order. Their norms are folded into them already."""
    convolutions = [node for node in nodes if node["op"] in {"_FusedConv2D", "FusedDepthwiseConv2dNative"}]
    for name, node in zip(_names(), convolutions, strict=True):
        kernel, bias = weights[node["input"][1]], weights[node["input"][2]]
        depthwise = node["op"].startswith("FusedDepth")
        kernel = np.ascontiguousarray(np.transpose(kernel, (2, 3, 0, 1) if depthwise else (3, 2, 0, 1)))
        channels = len(kernel)
        yield f"{name}.convolution.weight", torch.tensor(kernel)
        yield f"{name}.normalization.weight", torch.ones(channels)
        yield f"{name}.normalization.bias", torch.tensor(bias)
        yield f"{name}.normalization.running_mean", torch.zeros(channels)
        yield f"{name}.normalization.running_var", torch.full((channels,), 1 - EPSILON)
    last = next(node for node in nodes if node["op"] == "_FusedMatMul")
    yield "classifier.weight", torch.tensor(np.ascontiguousarray(weights[last["input"][1]].T))
    yield "classifier.bias", torch.tensor(weights[last["input"][2]])


def _names() -> Iterator[str]:
    yield from (f"mobilenet_v2.conv_stem.{part}" for part in ("first_conv", "conv_3x3", "reduce_1x1"))
    for layer in range(16):
        yield from (f"mobilenet_v2.layer.{layer}.{part}" for part in ("expand_1x1", "conv_3x3", "reduce_1x1"))
    yield "mobilenet_v2.conv_1x1"
