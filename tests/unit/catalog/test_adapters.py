"""What is read from the headers of LoRA adapters."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from pipelines.checkpoints.weight_file.adapters import read_adapter, read_adapters

LAYER = np.zeros((8, 32), np.float16)
SQUARE = np.zeros((8, 8), np.float16)
STRENGTH = np.zeros((), np.float16)


@pytest.mark.parametrize(
    "name",
    [
        "lora_unet_a.lora_down.weight",
        "unet.a.lora_A.weight",
        "unet.a.lora.down.weight",
        "unet.a.attn1.processor.to_q_lora.down.weight",
        "text_encoder.a.q_proj.lora_linear_layer.down.weight",
        "double_blocks.a.processor.qkv_lora1.down.weight",
        "single_blocks.a.processor.proj_lora.down.weight",
    ],
)
def test_the_rank_is_that_of_most_layers(tmp_path: Path, name: str) -> None:
    downs = {name.replace("a.", "b.", 1): LAYER[:4], name: LAYER, name.replace("a.", "c.", 1): LAYER}
    ups = {tensor.replace("down", "up").replace("lora_A", "lora_B"): down.T.copy() for tensor, down in downs.items()}
    odd = {**downs, **ups, "alpha": STRENGTH}
    save_file(odd, tmp_path / "style.safetensors")
    adapter = read_adapter(tmp_path / "style.safetensors")
    assert (adapter.name, adapter.rank, adapter.layers, adapter.problem) == ("style", 8, 3, None)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"modelspec.trigger_phrase": "ink style, sketch"}, ("ink style", "sketch")),
        ({"ss_tag_frequency": json.dumps({"a": {"cat": 3, "ink": 9}, "b": {"cat": 1}})}, ("ink", "cat")),
        ({"ss_tag_frequency": "not JSON"}, ()),
        ({"ss_tag_frequency": '["list"]'}, ()),
        ({}, ()),
    ],
)
def test_trigger_words_come_from_the_trainer(tmp_path: Path, metadata: dict[str, str], words: tuple[str, ...]) -> None:
    save_file({"a.lora_A.weight": LAYER}, tmp_path / "style.safetensors", metadata)
    assert read_adapter(tmp_path / "style.safetensors").trigger_words == words


def test_what_is_no_adapter_is_said(tmp_path: Path) -> None:
    save_file({"weight": LAYER}, tmp_path / "model.safetensors")
    assert read_adapter(tmp_path / "model.safetensors").problem == "no LoRA layers are in it"
    (tmp_path / "broken.safetensors").write_bytes(b"x")
    assert "or a broken one" in (read_adapter(tmp_path / "broken.safetensors").problem or "")


def names(*layers: str, parts: Iterable[str]) -> list[str]:
    return [f"{layer}.{part}" for layer in layers for part in parts]


@pytest.mark.parametrize(
    ("tensors", "kind", "layers", "problem"),
    [
        (names("a", "b", parts=("lokr_w1", "lokr_w2_a", "lokr_w2_b", "alpha")), "LoKr", 2, None),
        (names("a", parts=("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b")), "LoHa", 1, "a LoHa adapter: "),
        (names("a", parts=("oft_blocks", "alpha")), "OFT", 1, "an OFT adapter: "),
        (names("a", parts=("oft_R.default",)), "OFT", 1, "an OFT adapter: "),
        (names("a", parts=("vera_lambda_b", "vera_lambda_d")), "VeRA", 1, "a VeRA adapter: "),
        (names("a", "b", parts=("lora_A", "lora_B", "lora_E")), "AdaLoRA", 2, "an AdaLoRA adapter: "),
        (names("a", parts=("diff", "diff_b")), "full-weight", 2, "a full-weight adapter: "),
        (names("a", parts=("lora_A.weight", "lora_B.weight", "dora_scale")), "DoRA", 1, "a DoRA adapter (dora_scale)"),
        (names("a", parts=("lora_A.weight", "lora_B.weight", "lora_magnitude_vector")), "LoRA", 1, None),
        (names("a", parts=("lora_down.weight", "lora_up.weight", "diff_b")), "LoRA", 2, None),
        (
            [*names("a", parts=("lora_A.weight", "lora_B.weight")), "blocks.0.norm_q.weight", "blocks.1.norm_q.weight"],
            "LoRA", 1, "it replaces weights of the model (norm_q): a control LoRA",
        ),
        (
            [*names("a", parts=("lora_A.weight", "lora_B.weight")), "double_blocks.0.img_attn.norm.key_norm.scale"],
            "LoRA", 1, "it replaces weights of the model (key_norm): a control LoRA",
        ),
        ([*names("a", parts=("lora_A.weight", "lora_B.weight")), "bundle_emb.x.clip_l"], "LoRA", 1, None),
    ],
)  # fmt: skip
def test_kinds_and_what_can_not_be_drawn_are_told(
    tmp_path: Path, tensors: list[str], kind: str, layers: int, problem: str | None
) -> None:
    weights = {name: STRENGTH if name.endswith(".alpha") else SQUARE for name in tensors}
    save_file(weights, tmp_path / "style.safetensors")
    adapter = read_adapter(tmp_path / "style.safetensors")
    assert (adapter.kind, adapter.layers) == (kind, layers)
    assert (adapter.problem or "").startswith(problem or "")
    assert (adapter.problem is None) == (problem is None)


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ({"a.lora_A.weight": STRENGTH, "a.lora_B.weight": STRENGTH}, "the factors of a have the shapes () and (), "),
        ({"a.lora_A.weight": LAYER, "a.lora_B.weight": LAYER}, "the factors of a have the shapes (8, 32) and (8, 32)"),
        ({"a.lora_A.weight": LAYER, "a.lora_B.weight": LAYER.T[:, :0].copy()}, "the factors of a have the shapes"),
        (
            {"a.lora_down.weight": LAYER, "a.lora_up.weight": LAYER.T.copy(), "a.alpha": LAYER[0, :2].copy()},
            "a.alpha has 2 values, and a layer has one strength",
        ),
        (
            {"a.lora_A.weight": LAYER.astype(np.int8), "a.lora_B.weight": LAYER.T.astype(np.int8)},
            "its weights are whole numbers (I8)",
        ),
    ],
)
def test_malformed_factors_are_reported(
    tmp_path: Path, tensors: dict[str, np.ndarray[tuple[int, ...], np.dtype[Any]]], problem: str
) -> None:
    save_file(tensors, tmp_path / "style.safetensors")
    assert (read_adapter(tmp_path / "style.safetensors").problem or "").startswith(problem)


def test_pickles_in_a_folder_are_listed_with_their_problem(tmp_path: Path) -> None:
    save_file({"a.lora_A.weight": LAYER, "a.lora_B.weight": LAYER.T.copy()}, tmp_path / "style.safetensors")
    (tmp_path / "old.pt").write_bytes(b"PK")
    (tmp_path / "._old.pt").write_bytes(b"")
    problems = {adapter.name: adapter.problem for adapter in read_adapters(tmp_path)}
    assert problems == {
        "style": None,
        "old": "old.pt: a pickle, which can run code, so it is not read: convert it to .safetensors",
    }
