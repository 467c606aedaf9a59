"""Each layer of an adapter changes the model's as its trainer meant it, in every naming that is taken; all else is
refused by name."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

from pipelines.checkpoints.errors import CheckpointError
from pipelines.images.loading.adapter_loading import adapted_components, load_adapter
from pipelines.images.loading.base_state import base_state
from pipelines.images.loading.checkpoint import Checkpoint
from pipelines.images.loading.load import load_checkpoint
from pipelines.protocol.images import CheckpointSpec, Runtime, SamplingDefaults
from pipelines.protocol.messages import AdapterFit
from tests.engines.device import DEVICE
from tests.support.tiny_adapters import (
    ALPHA,
    KOHYA,
    NAMINGS,
    PEFT,
    RANK,
    Deltas,
    Naming,
    Tensors,
    added,
    layers_of,
    naming_of,
    random_pairs,
    save,
)
from tests.support.tiny_families import make_family

FAMILIES = ("sd15", "sdxl", "sd3", "flux", "chroma", "z-image", "qwen-image", "klein")
LOKR = ("z-image", "klein")  # whose classes take it
Load = Callable[[str], Checkpoint]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """A tiny checkpoint by its family."""
    loaded: dict[str, Checkpoint] = {}

    def load(family: str) -> Checkpoint:
        if family not in loaded:
            folder = make_family(family, tmp_path_factory.mktemp("tiny") / family)
            native = family == "klein"
            loaded[family] = load_checkpoint(
                CheckpointSpec(
                    name=family, path=folder, config=None, family="alpha",
                    conditioning="native" if native else "img2img", max_references=1, native_area_px=64 * 64,
                    max_area_px=64 * 64, sampling=SamplingDefaults(guidance=2.0),
                    runtime=Runtime(lora_folder=folder, dtype="float32"),
                ),
                DEVICE,
            )  # fmt: skip
        return loaded[family]

    return load


def loaded(checkpoint: Checkpoint, file: Path) -> tuple[AdapterFit, Deltas]:
    """How much of a file fits, and what it adds to the denoiser. It is taken out again."""
    pipeline = checkpoint.pipeline()
    fit = load_adapter(pipeline, file, "tried")
    pipeline.set_adapters(["tried"], [1.0])
    deltas = added(checkpoint.denoiser)
    pipeline.delete_adapters(["tried"])
    return fit, deltas


def assert_equal(found: Deltas, expected: Deltas) -> None:
    assert found.keys() == expected.keys()
    for name, delta in expected.items():
        torch.testing.assert_close(
            found[name], delta, atol=1e-4, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("naming", NAMINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_strength_is_the_files_in_every_naming(checkpoint: Load, tmp_path: Path, family: str, naming: str) -> None:
    model = checkpoint(family)
    layers = layers_of(model.denoiser)
    tensors, deltas = random_pairs(layers, naming_of(family, naming))
    fit, found = loaded(model, save(tensors, tmp_path / "style.safetensors"))
    assert_equal(found, deltas)
    assert fit == AdapterFit("style", "LoRA", len(layers), len(layers))


@pytest.mark.parametrize("spelling", [KOHYA, PEFT])
def test_a_fused_pair_of_the_publisher_is_divided_between_layers(
    checkpoint: Load, tmp_path: Path, spelling: tuple[str, str]
) -> None:
    """Black Forest Labs' names: one pair for the three projections of attention."""
    model = checkpoint("flux")
    width = model.denoiser.inner_dim
    naming = Naming("diffusion_model.", spelling)
    fused = {"double_blocks.0.img_attn.qkv": torch.nn.Linear(width, 3 * width)}
    tensors, deltas = random_pairs(fused, naming)
    fit, found = loaded(model, save(tensors, tmp_path / "style.safetensors"))
    parts = deltas["double_blocks.0.img_attn.qkv"].chunk(3)
    assert_equal(found, {f"transformer_blocks.0.attn.to_{each}": part for each, part in zip("qkv", parts, strict=True)})
    assert fit == AdapterFit("style", "LoRA", 1, 1)


def test_layers_of_text_encoders_are_counted_too(checkpoint: Load, tmp_path: Path) -> None:
    model = checkpoint("flux")
    width = model.denoiser.inner_dim
    fused = {"double_blocks.0.img_attn.qkv": torch.nn.Linear(width, 3 * width)}
    tensors, _ = random_pairs(fused, NAMINGS["kohya"])
    clip = layers_of(model.components["text_encoder"], ("q_proj", "k_proj", "v_proj", "out_proj"))
    for prefix, encoder in (("lora_te1_text_model_", clip), ("lora_te3_", {"a": torch.nn.Linear(32, 32)})):
        tensors |= random_pairs(encoder, Naming(prefix, KOHYA, dots=False))[0]
    fit, _ = loaded(model, save(tensors, tmp_path / "style.safetensors"))
    assert fit == AdapterFit("style", "LoRA", 1 + len(clip), 2 + len(clip)), "the T5 takes none"


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("family", ["sdxl", "flux", "sd3"])
def test_the_strength_of_peft_is_in_its_config(checkpoint: Load, tmp_path: Path, family: str, beside: bool) -> None:
    model = checkpoint(family)
    layers = layers_of(model.denoiser)
    first = next(iter(layers))
    tensors, deltas = random_pairs(layers, Naming("base_model.model.", PEFT, alpha=False))
    config = {"r": RANK, "lora_alpha": 16, "alpha_pattern": {first: 8}}
    file = save(tensors, tmp_path / "adapter_model.safetensors")
    if not beside:
        with pytest.raises(CheckpointError, match=r"strength is in adapter_config\.json"):
            loaded(model, file.rename(tmp_path / "style.safetensors"))
        return
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    _, found = loaded(model, file)
    assert_equal(found, {name: delta * (8 if name == first else 16) / RANK for name, delta in deltas.items()})


@pytest.mark.parametrize("family", ["sd15", "flux"])
def test_peft_may_have_wrapped_a_pipeline(checkpoint: Load, tmp_path: Path, family: str) -> None:
    model = checkpoint(family)
    part = "unet" if family == "sd15" else "transformer"
    tensors, deltas = random_pairs(layers_of(model.denoiser), Naming(f"base_model.model.{part}.", PEFT, alpha=False))
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": RANK, "lora_alpha": 16}))
    _, found = loaded(model, save(tensors, tmp_path / "adapter_model.safetensors"))
    assert_equal(found, {name: delta * 16 / RANK for name, delta in deltas.items()})


@pytest.mark.parametrize("family", ["flux", "z-image"])
def test_a_prefix_of_whole_files_is_one_of_adapters_too(checkpoint: Load, tmp_path: Path, family: str) -> None:
    model = checkpoint(family)
    tensors, deltas = random_pairs(layers_of(model.denoiser), Naming("model.diffusion_model.", PEFT))
    _, found = loaded(model, save(tensors, tmp_path / "style.safetensors"))
    assert_equal(found, deltas)


def test_the_strength_of_diffusers_is_in_the_header(checkpoint: Load, tmp_path: Path) -> None:
    model = checkpoint("flux")
    tensors, deltas = random_pairs(layers_of(model.denoiser), NAMINGS["diffusers"])
    config = {"transformer.r": RANK, "transformer.lora_alpha": 12, "transformer.use_rslora": True}
    file = save(tensors, tmp_path / "style.safetensors", {"lora_adapter_metadata": config})
    _, found = loaded(model, file)
    assert_equal(found, {name: delta * 12 / RANK**0.5 for name, delta in deltas.items()})


def test_a_convolution_in_three_factors_is_one_in_two(checkpoint: Load, tmp_path: Path) -> None:
    model = checkpoint("sdxl")
    layers = layers_of(model.denoiser)
    tensors, deltas = random_pairs(layers, NAMINGS["kohya"])
    name = "down_blocks.0.resnets.0.conv1"
    convolution = model.denoiser.get_submodule(name)
    random = torch.Generator().manual_seed(2)
    shapes = {
        "up": (convolution.out_channels, RANK, 1, 1),
        "mid": (RANK, RANK, 3, 3),
        "down": (RANK, convolution.in_channels, 1, 1),
    }
    factors = {each: torch.randn(shape, generator=random) for each, shape in shapes.items()}
    layer = f"lora_unet_{name.replace('.', '_')}"
    tensors |= {f"{layer}.lora_{each}.weight": factor for each, factor in factors.items()}
    tensors[f"{layer}.alpha"] = torch.tensor(ALPHA)
    fit, found = loaded(model, save(tensors, tmp_path / "style.safetensors"))
    up, middle, down = (factors[each] for each in ("up", "mid", "down"))
    whole = torch.einsum("orab,rshw,sicd->oihw", up, middle, down) * ALPHA / RANK
    assert_equal(found, {**deltas, name: whole})
    assert fit.layers == fit.of == len(layers) + 1


@pytest.mark.parametrize("factored", [True, False])
@pytest.mark.parametrize("family", LOKR)
def test_lokr_is_taken_where_the_class_takes_it(checkpoint: Load, tmp_path: Path, family: str, factored: bool) -> None:
    model = checkpoint(family)
    layers = layers_of(model.denoiser)
    tensors, deltas = kronecker(layers, factored=factored)
    fit, found = loaded(model, save(tensors, tmp_path / "style.safetensors"))
    assert_equal(found, deltas)
    assert str(fit) == f"LoKr, {len(layers)} layers"


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in LOKR])
def test_lokr_is_refused_by_name_where_it_is_not(checkpoint: Load, tmp_path: Path, family: str) -> None:
    model = checkpoint(family)
    tensors, _ = kronecker(layers_of(model.denoiser), factored=False)
    with pytest.raises(CheckpointError, match=r"^a LoKr adapter: this class takes LoRA alone$"):
        loaded(model, save(tensors, tmp_path / "style.safetensors"))


def kronecker(layers: Mapping[str, torch.nn.Linear], *, factored: bool) -> tuple[Tensors, Deltas]:
    """A LoKr of ai-toolkit, whose second factor may be a pair of rank 2: only then it has a strength."""
    random = torch.Generator().manual_seed(3)
    tensors: Tensors = {}
    deltas: Deltas = {}
    for name, layer in layers.items():
        outputs, inputs = layer.weight.shape
        first, down, up = (
            torch.randn(size, generator=random) for size in ((4, 4), (2, inputs // 4), (outputs // 4, 2))
        )
        second = {"lokr_w2_a": up, "lokr_w2_b": down} if factored else {"lokr_w2": up @ down}
        parts = {"lokr_w1": first, **second, "alpha": torch.tensor(1.0)}
        tensors |= {f"diffusion_model.{name}.{part}": tensor for part, tensor in parts.items()}
        deltas[name] = torch.kron(first, up @ down) * (0.5 if factored else 1.0)
    return tensors, deltas


@pytest.mark.parametrize("family", ["sdxl", "flux", "qwen-image"])
def test_layers_that_the_model_lacks_are_counted(checkpoint: Load, tmp_path: Path, family: str) -> None:
    """As in an adapter of a larger model of the kind: most of it is enough, and is told."""
    model = checkpoint(family)
    layers = layers_of(model.denoiser)
    for naming in ("diffusers", "kohya", "bare-peft") if family != "flux" else ("diffusers", "bare-peft"):
        tensors, _ = random_pairs(layers, naming_of(family, naming))
        for absent, fits in ((1, True), (len(layers) + 1, False)):
            name, layer = next(iter(layers.items()))
            others = {name.replace(".0.", f".{20 + number}.", 1): layer for number in range(absent)}
            more, _ = random_pairs(others, naming_of(family, naming))
            file = save(tensors | more, tmp_path / "style.safetensors")
            if fits:
                fit, _ = loaded(model, file)
                assert (fit.layers, fit.of) == (len(layers), len(layers) + 1), naming
                assert str(fit) == f"LoRA, {len(layers)} of {len(layers) + 1} layers"
            else:
                with pytest.raises(CheckpointError, match=rf"{len(layers)} of its {2 * len(layers) + 1} layers"):
                    loaded(model, file)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"lora_unet_a.dora_scale": (8, 1)}, r"^a DoRA adapter \(dora_scale\)"),
        ({"transformer.transformer_blocks.0.attn.norm_q.weight": (16,)}, "replaces weights of the model \\(norm_q\\)"),
        ({"double_blocks.0.img_attn.norm.query_norm.scale": (16,)}, "replaces weights of the model \\(query_norm\\)"),
        ({"transformer.x_embedder.lora_A.weight": (4, 128), "transformer.x_embedder.lora_B.weight": (32, 4)},
         "replaces weights of the model \\(x_embedder\\): a control LoRA needs a control image"),
        ({"transformer.proj_out.lora_A.weight": (4, 32), "transformer.proj_out.lora_B.weight": (128, 4)},
         "replaces weights of the model \\(proj_out\\)"),
    ],
)  # fmt: skip
def test_what_would_be_drawn_otherwise_is_refused(
    checkpoint: Load, tmp_path: Path, more: Mapping[str, tuple[int, ...]], reason: str
) -> None:
    model = checkpoint("flux")
    tensors, _ = random_pairs(layers_of(model.denoiser), NAMINGS["diffusers"])
    tensors |= {name: torch.ones(shape) for name, shape in more.items()}
    before = base_state(adapted_components(model.pipeline()))
    with pytest.raises(CheckpointError, match=reason):
        loaded(model, save(tensors, tmp_path / "style.safetensors"))
    assert base_state(adapted_components(model.pipeline())) == before
    assert not model.pipeline().get_list_adapters()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_numbers_are_refused(checkpoint: Load, tmp_path: Path, value: float) -> None:
    model = checkpoint("sd15")
    tensors, _ = random_pairs(layers_of(model.denoiser), NAMINGS["kohya"])
    next(iter(tensors.values()))[0, 0] = value
    with pytest.raises(CheckpointError, match="weights that are not numbers"):
        loaded(model, save(tensors, tmp_path / "style.safetensors"))


def test_one_tensor_that_changes_nothing_is_left_out_and_named(checkpoint: Load, tmp_path: Path) -> None:
    model = checkpoint("flux")
    layers = layers_of(model.denoiser)
    tensors, deltas = random_pairs(layers, NAMINGS["onetrainer"])
    tensors |= {"bundle_emb.hero.clip_l": torch.ones(2, 32), "lora_transformer_norm_out.diff_b": torch.ones(32)}
    fit, found = loaded(model, save(tensors, tmp_path / "style.safetensors"))
    assert_equal(found, deltas)
    count = f"{len(layers)} of {len(layers) + 1} layers"
    assert str(fit) == f"LoRA, {count}, without 1 full-weight layers, bundle_emb"


def test_an_adapter_of_another_size_says_so(checkpoint: Load, tmp_path: Path) -> None:
    model = checkpoint("qwen-image")
    wide = {
        name: torch.nn.Linear(2 * each.in_features, each.out_features)
        for name, each in layers_of(model.denoiser).items()
    }
    tensors, _ = random_pairs(wide, NAMINGS["diffusers"])
    with pytest.raises(
        CheckpointError, match=r"of a model of another size: .* leads from 64 to 32 values, here from 32 to 32"
    ):
        loaded(model, save(tensors, tmp_path / "style.safetensors"))
