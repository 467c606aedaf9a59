"""Files whose names differ from those of the model: refused with the part, the number and an example, or noted."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from pipelines.chat.engine import ChatEngine
from pipelines.checkpoints.errors import CheckpointError
from pipelines.classify.engine import ClassifyEngine
from pipelines.images.loading.load import load_checkpoint
from pipelines.protocol.chat import ChatSpec
from pipelines.protocol.classify import ClassifierSpec
from pipelines.protocol.images import CheckpointSpec, Control
from tests.engines.device import DEVICE
from tests.engines.test_families import family_spec
from tests.engines.test_single_files import plain, quantized, single_file
from tests.support.tiny_chat_checkpoints import make_qwen
from tests.support.tiny_checkpoints import make_single_file, original_unet_name
from tests.support.tiny_classifiers import make_image_classifier, make_text_classifier
from tests.support.tiny_families import make_family
from tests.support.tiny_families.controls import make_controlnet, make_image_encoder, make_two_encoders

Weights = dict[str, torch.Tensor]
Change = Callable[[Weights], Weights]
ONE = torch.ones(4)


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            made[name] = make_family(name, tmp_path_factory.mktemp("families") / name)
        return made[name]

    return make


def lacks(count: int, example: str) -> str:
    return f"{count} {'weight is' if count == 1 else 'weights are'} not in its files, such as {example}"


def spare(count: int, example: str) -> str:
    weights = "weight of its files has" if count == 1 else "weights of its files have"
    return f"{count} {weights} no place in the model that its config describes, such as {example}"


def without(text: str) -> Change:
    return lambda weights: {name: weight for name, weight in weights.items() if text not in name}


def renamed(old: str, new: str) -> Change:
    return lambda weights: {name.replace(old, new): weight for name, weight in weights.items()}


def with_another(layer: str, number: int = 7) -> Change:
    """A layer that the config does not have, with the weights of one that it has."""
    other = f"{layer.rpartition('.')[0]}.{number}."

    def change(weights: Weights) -> Weights:
        return weights | {n.replace(f"{layer}.", other): w.clone() for n, w in weights.items() if f"{layer}." in n}

    return change


def with_these(*names: str) -> Change:
    return lambda weights: weights | dict.fromkeys(names, ONE)


def wider(text: str) -> Change:
    """A vector of twice as many numbers, as of a larger sibling of the model."""
    return lambda weights: {name: weight.repeat(2) if text in name else weight for name, weight in weights.items()}


def shaped(example: str) -> str:
    return f"1 weight of its files has another shape, such as {example}: ["


def change_file(file: Path, change: Change) -> None:
    changed = change(load_file(file))
    save_file({name: weight.contiguous().clone() for name, weight in changed.items()}, file, {"format": "pt"})


def changed(folder: Path, part: str, change: Change, to: Path) -> CheckpointSpec:
    """A copy of a folder with other weights in one of its parts."""
    shutil.copytree(folder, to / folder.name)
    change_file(next((to / folder.name / part).glob("*.safetensors")), change)
    return family_spec(folder.name, to, "img2img")


def refusal(spec: CheckpointSpec) -> str:
    with pytest.raises(CheckpointError) as raised:
        load_checkpoint(spec, DEVICE)
    return str(raised.value)


@pytest.mark.parametrize("name", ["sd15", "sdxl", "sd3", "flux", "z-image", "lumina2"])
def test_a_whole_folder_loads_without_a_note(family: Callable[[str], Path], name: str) -> None:
    assert load_checkpoint(family_spec(name, family(name).parent, "img2img"), DEVICE).notes == ()


@pytest.mark.parametrize(
    ("name", "part", "change", "says"),
    [
        ("sdxl", "text_encoder", without("layers.0.self_attn.q_proj"), lacks(2, "encoder.layers.0.self")),
        ("sdxl", "text_encoder", renamed("encoder.", "model.encoder."), lacks(32, "encoder.layers.0.")),
        ("sdxl", "text_encoder", with_another("encoder.layers.1"), spare(16, "encoder")),
        ("sdxl", "text_encoder", with_these("encoder.layers.0.mlp.fc1.weight_scale"), spare(1, "")),
        ("sdxl", "text_encoder", with_these("extra.weight"), spare(1, "extra.weight")),
        ("sdxl", "text_encoder", wider("layers.0.mlp.fc1.bias"), shaped("encoder.layers.0.mlp.fc1.bias")),
        ("sdxl", "text_encoder_2", without("q_proj"), lacks(4, "text_model.encoder.layers.0.self_attn")),
        ("sdxl", "text_encoder_2", without("text_projection"), lacks(1, "text_projection.weight")),
        ("sdxl", "unet", without("mid_block.attentions"), lacks(46, "mid_block.attentions.0.norm.bias")),
        ("sdxl", "unet", with_another("transformer_blocks.1"), spare(80, "down_blocks")),
        ("sdxl", "vae", without("decoder.mid_block"), lacks(16, "decoder.mid_block.resnets.0.conv1.bias")),
        ("sdxl", "vae", with_these("decoder.conv_in.lora_A.weight"), spare(1, "decoder")),
        ("sdxl", "vae", wider("decoder.conv_in.bias"), shaped("decoder.conv_in.bias")),
        ("flux", "transformer", wider("x_embedder.bias"), shaped("x_embedder.bias")),
        ("flux", "transformer", without("x_embedder.bias"), lacks(1, "x_embedder.bias")),
        ("flux", "transformer", with_another("single_transformer_blocks.0"), spare(14, "")),
        ("flux", "text_encoder_2", without("SelfAttention.q"), "such as encoder.block.0.layer.0.SelfAttention.q"),
        ("flux", "text_encoder_2", without("shared"), lacks(1, "shared.weight")),
        ("flux", "text_encoder_2", with_another("block.0"), "such as encoder.block.7.layer.0.SelfAttention"),
    ],
)  # fmt: skip
def test_a_part_of_a_folder_is_refused(
    family: Callable[[str], Path], tmp_path: Path, name: str, part: str, change: Change, says: str
) -> None:
    spec = changed(family(name), part, change, tmp_path)
    message = refusal(spec)
    assert message.startswith(f"{spec.path}: {part}: ")
    assert says in message


@pytest.mark.parametrize(
    ("name", "part", "change", "note"),
    [
        (
            "sdxl",
            "text_encoder",
            with_these("vision_model.encoder.layers.0.mlp.fc1.weight", "logit_scale"),
            "2 weights",
        ),
        (
            "sdxl",
            "unet",
            with_these("model_ema.decay"),
            "unet: 1 weight of its files is not needed, such as model_ema.",
        ),
        ("flux", "vae", with_these("quant_conv.weight", "post_quant_conv.weight"), "such as post_quant_conv.weight"),
        ("flux", "text_encoder_2", with_these("lm_head.weight"), "text_encoder_2: 1 weight of its files is not needed"),
        ("z-image", "transformer", with_these("norm_final.weight"), "transformer: 1 weight of its files is not needed"),
    ],
)
def test_what_is_known_to_be_left_over_is_noted(
    family: Callable[[str], Path], tmp_path: Path, name: str, part: str, change: Change, note: str
) -> None:
    (found,) = load_checkpoint(changed(family(name), part, change, tmp_path), DEVICE).notes
    assert found.startswith(f"{part}: ")
    assert note in found


@pytest.mark.parametrize(
    "change",
    [
        renamed("shared.weight", "encoder.embed_tokens.weight"),
        lambda weights: weights | {"encoder.embed_tokens.weight": weights["shared.weight"]},
        with_these("decoder.block.0.layer.0.SelfAttention.q.weight", "decoder.embed_tokens.weight"),
    ],
)
def test_published_forms_of_a_text_encoder_load_without_a_note(
    family: Callable[[str], Path], tmp_path: Path, change: Change
) -> None:
    spec = changed(family("flux"), "text_encoder_2", change, tmp_path)
    loaded, whole = (
        load_checkpoint(each, DEVICE) for each in (spec, family_spec("flux", family("flux").parent, "img2img"))
    )
    assert loaded.notes == ()
    for name, weight in whole.components["text_encoder_2"].state_dict().items():
        assert torch.equal(loaded.components["text_encoder_2"].state_dict()[name], weight), name


@pytest.mark.parametrize(
    ("lost", "listed", "says"),
    [
        ("x_embedder.bias", False, lacks(1, "x_embedder.bias")),
        ("x_embedder.bias", True, lacks(1, "x_embedder.bias")),  # the index says that it is there
        ("", False, spare(1, "single_transformer_blocks.9.norm.linear.bias")),
    ],
)
def test_shards_are_compared_whatever_their_index_says(
    family: Callable[[str], Path], tmp_path: Path, lost: str, listed: bool, says: str
) -> None:
    folder = tmp_path / "flux"
    shutil.copytree(family("flux"), folder)
    file = next((folder / "transformer").glob("*.safetensors"))
    weights = sorted(load_file(file).items())
    file.unlink()
    index: dict[str, str] = {}
    for number, half in enumerate((dict(weights[::2]), dict(weights[1::2])), 1):
        shard = f"{file.stem}-0000{number}-of-00002.safetensors"
        index |= {name: shard for name in half if listed or name != lost}
        more = {} if lost or number == 1 else {"single_transformer_blocks.9.norm.linear.bias": ONE}
        save_file({name: w for name, w in half.items() if name != lost} | more, file.with_name(shard))
    content = {"metadata": {"total_size": 1}, "weight_map": index}
    (folder / "transformer" / f"{file.name}.index.json").write_text(json.dumps(content))
    message = refusal(family_spec("flux", tmp_path, "img2img"))
    assert message == f"{folder}: transformer: {says}"


def original_names(weights: Weights) -> Weights:
    return {original_unet_name(name): weight for name, weight in weights.items()}


@pytest.mark.parametrize(
    ("save", "suffix"), [(plain, "safetensors"), (quantized(gguf.GGMLQuantizationType.Q8_0), "gguf")]
)
@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("flux", without("single_transformer_blocks.0.attn.to_q"), lacks(2, "single_transformer_blocks")),
        ("flux", with_another("single_transformer_blocks.0"), spare(14, "single_transf")),
        ("flux", with_these("extra.weight"), spare(1, "extra.weight")),
        ("z-image", with_these("layers.0.extra.weight"), spare(1, "layers.0.extra.weight")),
        ("sdxl", lambda unet: without("middle_block.1.proj_in")(original_names(unet)), lacks(2, "mid_block.att")),
        ("sdxl", lambda unet: with_these("output_blocks.9.0.b")(original_names(unet)), spare(1, "output_blocks.9.0.b")),
    ],
)  # fmt: skip
def test_a_denoiser_in_a_file_is_refused(
    family: Callable[[str], Path], tmp_path: Path, name: str, change: Change, says: str,
    save: Callable[[Weights, Path], None], suffix: str,
) -> None:  # fmt: skip
    part = "unet" if name == "sdxl" else "transformer"
    file = tmp_path / f"tuned.{suffix}"
    save(change(load_file(next((family(name) / part).glob("*.safetensors")))), file)
    message = refusal(single_file(family(name), file))
    assert message.startswith(f"{file}: {part}: ")
    assert says in message


def test_marks_in_a_denoisers_file_are_followed_and_no_weights(family: Callable[[str], Path], tmp_path: Path) -> None:
    weights = load_file(next((family("sdxl") / "unet").glob("*.safetensors")))
    for number, named in enumerate((weights, original_names(weights))):
        plain(with_these("v_pred")(named), tmp_path / f"{number}.safetensors")
        loaded = load_checkpoint(single_file(family("sdxl"), tmp_path / f"{number}.safetensors"), DEVICE)
        assert not any("not needed" in note for note in loaded.notes)
        assert loaded.pipeline().scheduler.config.prediction_type == "v_prediction"
        assert torch.equal(loaded.denoiser.get_parameter("conv_in.weight"), weights["conv_in.weight"])


@pytest.fixture
def whole(tmp_path: Path) -> CheckpointSpec:
    path, config = make_single_file(tmp_path / "whole")
    return replace(family_spec("whole", tmp_path, "img2img"), path=path, config=config)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without("middle_block.1.proj_in"), "unet: " + lacks(2, "mid_block.attentions.0.proj_in.bias")),
        (with_these("model.diffusion_model.output_blocks.9.0.bias"), "unet: " + spare(1, "output_")),
        (without("layers.0.self_attn.k_proj"), "text_encoder: " + lacks(2, "encoder.layers.0.self_attn.k_proj")),
        (with_another("text_model.encoder.layers.1"), "text_encoder: " + spare(16, "text_model")),
        (without("decoder.mid.attn_1"), "vae: " + lacks(10, "decoder.mid_block.attentions.0.group_norm.bias")),
        (with_these("first_stage_model.decoder.up.7.block.0.bias"), "vae: " + spare(1, "decoder.up")),
    ],
)  # fmt: skip
def test_a_whole_checkpoint_in_a_file_is_refused(whole: CheckpointSpec, change: Change, says: str) -> None:
    change_file(whole.path, change)
    assert refusal(whole).startswith(f"{whole.path}: {says}")


def test_a_whole_checkpoint_without_a_text_encoder_anywhere_is_refused(whole: CheckpointSpec) -> None:
    change_file(whole.path, without("cond_stage_model"))
    assert refusal(whole).startswith(f"{whole.path} has no text_encoder; {whole.config}/text_encoder: no weights")


def test_what_a_whole_file_lacks_is_compared_in_its_folder(whole: CheckpointSpec) -> None:
    prefix = "cond_stage_model.transformer."
    own = {n.removeprefix(prefix): w.clone() for n, w in load_file(whole.path).items() if n.startswith(prefix)}
    assert own
    assert whole.config is not None
    save_file(without("self_attn.q_proj")(own), whole.config / "text_encoder" / "model.safetensors", {"format": "pt"})
    change_file(whole.path, without("cond_stage_model"))
    assert "text_encoder: 4 weights are not in its files, such as" in refusal(whole)


def test_a_whole_checkpoint_in_a_file_loads_and_notes_what_is_of_no_part(whole: CheckpointSpec) -> None:
    assert load_checkpoint(whole, DEVICE).notes == ()
    change_file(whole.path, with_these("model_ema.decay", "betas", "first_stage_model.loss.logvar"))
    assert load_checkpoint(whole, DEVICE).notes == (
        "vae: 1 weight of its files is not needed, such as loss.logvar",
        "2 weights of the file are of no part, such as betas",
    )


@pytest.fixture
def controlled(family: Callable[[str], Path], tmp_path: Path) -> CheckpointSpec:
    spec = family_spec("sd15", family("sd15").parent, "img2img")
    net = make_controlnet(load_checkpoint(spec, DEVICE).denoiser, tmp_path / "edges")
    return replace(spec, controls=(Control("edges", "controlnet", net, "canny"),))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without("controlnet_mid_block"), lacks(2, "controlnet_mid_block.bias")),
        (
            with_these("task_embedding", "control_add_embedding.linear_1.weight"),
            spare(2, ""),
        ),
    ],
)
def test_a_controlnet_is_refused(controlled: CheckpointSpec, change: Change, says: str) -> None:
    net = controlled.controls[0].path
    change_file(next(net.glob("*.safetensors")), change)
    assert refusal(controlled).startswith(f"controlnets: {net}: edges: {says}")


def test_an_image_encoder_is_refused_or_noted(controlled: CheckpointSpec, tmp_path: Path) -> None:
    encoder = make_image_encoder(tmp_path / "encoder")
    adapter = Control("style", "ip-adapter", tmp_path / "style.safetensors", image_encoder=encoder)
    plain({"image_proj.proj.weight": ONE}, adapter.path)  # it is read by the first run
    assert load_checkpoint(replace(controlled, controls=(adapter,)), DEVICE).notes == ()
    change_file(next(encoder.glob("*.safetensors")), without("layers.1.self_attn.q_proj"))
    message = refusal(replace(controlled, controls=(adapter,)))
    assert f"{encoder}: image_encoder: {lacks(2, 'vision_model.encoder.layers.1.')}" in message
    both = make_two_encoders(tmp_path / "both", "CLIPModel")
    of_two = replace(controlled, controls=(replace(adapter, image_encoder=both),))
    (note,) = load_checkpoint(of_two, DEVICE).notes
    assert note.startswith("image_encoder: ")
    assert note.endswith("not needed, such as logit_scale")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without("layers.0.self_attn.q_proj"), lacks(1, "model.layers.0.self_attn.q_proj.weight")),
        (without("embed_tokens"), lacks(1, "model.embed_tokens.weight")),
        (renamed("model.", "wrapped.net."), "weights are not in its files, such as model.embed_tokens.weight"),
        (
            with_another("model.layers.1"),
            "have no place in the model that its config describes, such as model.layers.7.",
        ),
        (with_these("model.layers.0.self_attn.q_proj.weight_scale_inv"), spare(1, "model.layers.0.self_attn.q_proj.w")),
        (with_these("model.layers.0.self_attn.q_proj.bias"), spare(1, "model.layers.0.self_attn.q_proj.bias")),
    ],
)
async def test_a_chat_model_is_refused(tmp_path: Path, change: Change, says: str) -> None:
    folder = make_qwen(tmp_path / "qwen")
    change_file(folder / "model.safetensors", change)
    with pytest.raises(CheckpointError) as raised:
        await ChatEngine(DEVICE).prepare(ChatSpec("qwen", folder))
    assert str(raised.value).startswith(f"{folder}: model: ")
    assert says in str(raised.value)


async def test_a_chat_model_loads_whole_and_notes_a_tower_that_it_does_not_use(tmp_path: Path) -> None:
    folder = make_qwen(tmp_path / "qwen")
    spec = ChatSpec("qwen", folder)
    assert (await ChatEngine(DEVICE).prepare(spec)).notes == ()
    change_file(folder / "model.safetensors", with_these("model.visual.blocks.0.attn.qkv.weight", "mtp.norm.weight"))
    note = "model: 2 weights of its files are not needed, such as model.visual.blocks.0.attn.qkv.weight"
    assert (await ChatEngine(DEVICE).prepare(spec)).notes == (note,)


@pytest.mark.parametrize("make", [make_text_classifier, make_image_classifier])
async def test_a_classifier_is_refused_or_noted(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    folder = make(tmp_path / "classifier")
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    spec = ClassifierSpec("c", folder, "prompts" if make is make_text_classifier else "pictures")
    assert await ClassifyEngine(DEVICE).prepare(spec) == ()
    for change, says in (
        (without("classifier.weight"), lacks(1, "classifier.weight")),
        (
            with_another("encoder.layer.0"),
            "weights of its files have no place in the model that its config describes, such as ",
        ),
    ):
        file.write_bytes(whole)
        change_file(file, change)
        with pytest.raises(CheckpointError, match=re.escape(f"{folder}: model: ")) as raised:
            await ClassifyEngine(DEVICE).prepare(spec)
        assert says in str(raised.value)
    file.write_bytes(whole)
    change_file(file, with_these("lm_predictions.lm_head.bias"))
    note = "model: 1 weight of its files is not needed, such as lm_predictions.lm_head.bias"
    assert await ClassifyEngine(DEVICE).prepare(spec) == (note,)
