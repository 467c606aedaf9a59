"""Chat checkpoints as people download them: with code beside, quantized, as a .gguf file, with or without vision."""

import base64
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipelines.chat.engine import ChatEngine
from pipelines.chat.loading.checkpoint import load_chat
from pipelines.checkpoints.errors import CheckpointError
from pipelines.protocol.chat import ChatFinished, ChatSpec
from pipelines.protocol.images import Quantize
from tests.engines.chat_jobs import Job, run, text
from tests.engines.device import DEVICE


@pytest.fixture
def folder(tmp_path: Path, chat_spec: Callable[..., ChatSpec]) -> Path:
    return shutil.copytree(chat_spec("qwen").path, tmp_path / "copy")


def set_config(folder: Path, **values: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def test_code_beside_a_class_of_the_library_is_not_executed(folder: Path, tmp_path: Path) -> None:
    ran = f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n"
    for name in ("configuration_own.py", "modeling_own.py", "tokenization_own.py", "sample_finetune.py"):
        (folder / name).write_text(ran)
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(ran)
    names = {"AutoConfig": "configuration_own.C", "AutoModelForCausalLM": "modeling_own.M"}
    set_config(folder, auto_map=names)
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    tokenizer["auto_map"] = {"AutoTokenizer": [None, "tokenization_own.T"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (folder / "._model.safetensors").write_bytes(b"\x00\x05\x16\x07Mac OS X")
    assert load_chat(ChatSpec("copy", folder), DEVICE).batching.unbatched_reason is None
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("has_weights", [False, True])
def test_an_adapter_beside_a_whole_model_changes_nothing_and_is_named(folder: Path, has_weights: bool) -> None:
    tokens = torch.arange(1, 9, device=DEVICE)[None]
    expected = load_chat(ChatSpec("copy", folder), DEVICE).model(tokens).logits
    adapter = {"peft_type": "LORA", "r": 4, "target_modules": ["q_proj"], "base_model_name_or_path": "org/base"}
    (folder / "adapter_config.json").write_text(json.dumps(adapter))
    if has_weights:
        name = "base_model.model.model.layers.0.self_attn.q_proj"
        weights = {f"{name}.lora_A.weight": torch.ones(4, 64), f"{name}.lora_B.weight": torch.ones(64, 4)}
        save_file(weights, folder / "adapter_model.safetensors")
    checkpoint = load_chat(ChatSpec("copy", folder), DEVICE)
    assert torch.equal(checkpoint.model(tokens).logits, expected)
    assert any("without the LoRA adapter beside it" in note for note in checkpoint.found.notes)


def test_a_model_that_is_code_alone_is_refused(folder: Path) -> None:
    (folder / "configuration_own.py").write_text("raise SystemExit")
    set_config(folder, model_type="own", auto_map={"AutoConfig": "configuration_own.C"})
    with pytest.raises(CheckpointError, match="no class that transformers has, and code of its own is not executed"):
        load_chat(ChatSpec("copy", folder), DEVICE)


@pytest.mark.parametrize(
    ("config", "packages"),
    [
        ({"quant_method": "awq", "bits": 4}, "gptqmodel"),
        ({"quant_method": "gptq", "bits": 4}, "optimum gptqmodel"),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "compressed-tensors"),
        ({"quant_method": "quanto"}, "optimum-quanto"),
        ({"load_in_4bit": True}, "bitsandbytes"),
    ],
)
def test_quantized_weights_name_the_packages_that_are_missing(
    folder: Path, config: dict[str, object], packages: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.checkpoints.folder.libraries.is_installed", lambda _: False)
    set_config(folder, quantization_config=config)
    with pytest.raises(CheckpointError, match=f"for which packages are missing: {packages}$"):
        load_chat(ChatSpec("copy", folder), DEVICE)


@pytest.mark.parametrize(
    ("quantize", "packages"), [("int8", "torchao"), ("int4", "torchao mslk-cuda"), ("nf4", "bitsandbytes")]
)
def test_quantizing_names_the_packages_that_are_missing(
    folder: Path, quantize: Quantize, packages: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("torchao", "torchao.quantization", "mslk", "bitsandbytes"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(CheckpointError, match=f"quantize: .* needs .*: .* -m pip install .* {packages}$"):
        load_chat(ChatSpec("copy", folder, quantize=quantize), DEVICE)


@pytest.mark.parametrize("key", ["quantization", "quantization_config"])
def test_weights_that_only_macs_compute_with_are_refused_by_that_name(folder: Path, key: str) -> None:
    set_config(folder, **{key: {"group_size": 64, "bits": 4}})
    with pytest.raises(CheckpointError, match=r"quantized by MLX, .* take a \.gguf file"):
        load_chat(ChatSpec("copy", folder), DEVICE)


def test_one_of_several_packed_files_is_refused_and_a_chats_own_file_is_named(folder: Path) -> None:
    part = folder / "copy-Q4_K-00001-of-00002.gguf"
    part.write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match="one of several files; join them"):
        load_chat(ChatSpec("copy", part), DEVICE)
    part.rename(folder / "copy-Q4_K.gguf")
    (folder / "mmproj-copy.gguf").write_bytes(b"GGUF")
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no weights; name its file: copy-Q4_K\.gguf"):
        load_chat(ChatSpec("copy", folder), DEVICE)


def test_weights_that_nothing_here_computes_with_packed_say_what_they_take(folder: Path) -> None:
    """fp8 in blocks, as DeepSeek, Qwen and MiniMax publish it, where there is no GPU for it, or not the kernels."""
    weights, block = {}, 128
    for name, weight in load_file(folder / "model.safetensors").items():
        weights[name] = weight
        if "_proj" in name:
            scale = float(weight.abs().max()) / 400
            weights[name] = (weight / scale).to(torch.float8_e4m3fn)
            weights[f"{name}_scale_inv"] = torch.full([-(-size // block) for size in weight.shape], scale)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    set_config(folder, quantization_config={"quant_method": "fp8", "weight_block_size": [block, block]})
    for device in (torch.device("cpu"), DEVICE):
        notes = load_chat(ChatSpec("copy", folder), device).found.notes
        assert [note for note in notes if "by fp8, are multiplied out and take 0.0 GiB; the package kernels" in note]


def test_weights_that_are_quantized_already_are_not_quantized_again(folder: Path) -> None:
    set_config(folder, quantization_config={"quant_method": "fp8"})
    with pytest.raises(CheckpointError, match="quantized already"):
        load_chat(ChatSpec("copy", folder, quantize="int8"), DEVICE)


def test_a_tokenizer_of_mistrals_own_kind_is_read(folder: Path) -> None:
    """tekken.json alone has the tokens; the template is beside it, as its makers publish it."""
    known = json.loads((folder / "tokenizer.json").read_text())
    own = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"]
    marks = [*own, *(token["content"] for token in known["added_tokens"])]
    pieces = [bytes([byte]) for byte in range(256)] + [b"th", b"the"]
    (folder / "tekken.json").write_text(json.dumps({
        "config": {
            "pattern": "[^ ]+| ", "default_vocab_size": len(marks) + len(pieces),
            "default_num_special_tokens": len(marks), "version": "v3",
        },
        "vocab": [
            {"rank": i, "token_bytes": base64.b64encode(piece).decode(), "token_str": None}
            for i, piece in enumerate(pieces)
        ],
        "special_tokens": [{"rank": i, "token_str": mark, "is_control": True} for i, mark in enumerate(marks)],
    }))  # fmt: skip
    for file in folder.glob("tokenizer*"):
        file.unlink()
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    with pytest.raises(CheckpointError, match="no chat template; put the one that"):
        load_chat(ChatSpec("copy", folder), DEVICE)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}[INST]{{ m.content }}[/INST]{% endfor %}")
    checkpoint = load_chat(ChatSpec("copy", folder), DEVICE)
    said = "the naïve café"
    tokens = checkpoint.tokenizer.encode(f"[INST]{said}[/INST]", add_special_tokens=False)
    assert tokens[0] == marks.index("[INST]")
    assert tokens[1] == len(marks) + pieces.index(b"the")
    assert b"".join(map(checkpoint.tokens.bytes_of, tokens[1:-1])).decode() == said
    assert marks.index("</s>") in checkpoint.tokens.eos_ids


def test_a_vision_model_without_the_files_that_prepare_images_chats(
    chat_spec: Callable[..., ChatSpec], tmp_path: Path
) -> None:
    folder = shutil.copytree(chat_spec("llava").path, tmp_path / "copy")
    checkpoint = load_chat(ChatSpec("copy", folder), DEVICE)
    assert checkpoint.processor is None
    assert checkpoint.batching.unbatched_reason is None
    assert not checkpoint.found.vision


async def test_chats_of_a_vision_model_without_images_share_a_batch(
    chat_engine: ChatEngine, chat_job: Job, chat_spec: Callable[..., ChatSpec]
) -> None:
    sees, blind = chat_spec("llava", vision=True), chat_spec("llava")
    checkpoint = await chat_engine.load(sees)
    assert checkpoint.found.vision
    assert "answers to chats with images one at a time" in checkpoint.found.notes
    events = await run(chat_engine, chat_job("Hello there", checkpoint=sees))
    assert isinstance(events[-1], ChatFinished)
    assert list(chat_engine._device_loop._sequential) == []
    template = checkpoint.processor.chat_template
    other = await chat_engine.load(blind)
    assert template
    assert other.processor is None
    assert text(events)
