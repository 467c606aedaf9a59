"""Files that are replaced under their names in a running server, with dates older than all others: the next reload
draws and answers with them, and one without a change loads nothing."""

import base64
import io
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openai
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from pipelines.images.loading.load import load_checkpoint
from pipelines.protocol.images import CheckpointSpec
from tests.support.harness import Server, assert_clean
from tests.support.tiny_adapters import layers_of, naming_of, random_pairs, save
from tests.support.tiny_chat_checkpoints import make_qwen
from tests.support.tiny_classifiers import make_text_classifier
from tests.support.tiny_families import make_family
from tests.support.tiny_families.controls import make_image_encoder, make_ip_adapter
from tests.support.tiny_server import IMAGES, write_tiny_catalog

pytestmark = pytest.mark.nightly  # test_catalog_updates.py has one of them

MODEL, CHAT = "alpha-image-2-count", "starter-chat"
OLD_NS = 10**18  # 2001
MINE = f"""{IMAGES}
[runtime]
loras = [{{path = "always.safetensors"}}]
[[ip_adapters]]
name = "style"
checkpoint = "style.safetensors"
image_encoder = "encoder"
"""
POLICY = """
[[classifiers]]
reads      = "prompts"
checkpoint = "blades"
[classifiers.labels.blade]
policy    = "no-blades"
category  = "violence"
threshold = 0.5
"""
Tensors = dict[str, torch.Tensor]


def halved(tensors: Tensors) -> Tensors:
    return {name: weight * 0.5 if weight.is_floating_point() else weight for name, weight in tensors.items()}


def never_a_blade(tensors: Tensors) -> Tensors:
    return {**tensors, "classifier.bias": torch.tensor([0.0, -1000.0])}


def replace_file(file: Path, change: Callable[[Tensors], Tensors] = halved, *, rename: bool = True) -> None:
    """Put other weights of an old date in the file's place, or over it as `cp -p` does."""
    part = file.with_name(f".{file.name}")
    save_file(change(load_file(file)), part, {"format": "pt"})
    os.utime(part, ns=(OLD_NS, OLD_NS))
    if rename:
        part.replace(file)
    else:
        shutil.copyfile(part, file)
        shutil.copystat(part, file)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a checkpoint whose U-Net is a link to a folder elsewhere."""
    own = tmp_path_factory.mktemp("replaced")
    weights, configs = own / "weights", own / "configs"
    make_family("sd15", weights / "tiny")
    spec = CheckpointSpec("tiny", weights / "tiny", None, "alpha", "img2img", 1)
    denoiser = load_checkpoint(spec, torch.device("cpu")).denoiser
    save(random_pairs(layers_of(denoiser), naming_of("sd15", "diffusers"))[0], weights / "always.safetensors")
    make_ip_adapter(denoiser, weights / "style.safetensors")
    make_image_encoder(weights / "encoder")
    make_qwen(weights / "tiny-qwen")
    make_text_classifier(weights / "blades")
    (weights / "tiny" / "unet").rename(own / "shared-unet")
    (weights / "tiny" / "unet").symlink_to(own / "shared-unet")
    configs.mkdir()
    write_tiny_catalog(configs, chat=True)
    (configs / "tiny.toml").write_text(MINE)
    (own / "policy.toml").write_text(POLICY)
    settings = {"device": "cpu", "moderation": str(own / "policy.toml")}
    running = Server(own / "home", weights, configs, settings).start()
    yield running
    running.kill()


def draw(server: Server, prompt: str = "a boat", **fields: Any) -> npt.NDArray[np.float64]:
    answer = server.openai().images.generate(
        model=MODEL, prompt=prompt, size="256x256", quality="low", response_format="b64_json",
        extra_body={"seed": 4, **fields},
    )  # fmt: skip
    assert answer.data
    image = Image.open(io.BytesIO(base64.b64decode(answer.data[0].b64_json or "")))
    return np.asarray(image.convert("RGB")).astype(float)


def reload(server: Server) -> str:
    done = server.darkroom("reload")
    assert done.returncode == 0, done.stderr
    return done.stdout


STYLE = Image.linear_gradient("L").resize((64, 64)).convert("RGB")


def styled() -> Mapping[str, Any]:
    STYLE.save(file := io.BytesIO(), "PNG")
    return {"controls": {"style": f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"}}


@pytest.mark.parametrize(
    ("name", "fields", "rename"),
    [
        ("tiny/unet/diffusion_pytorch_model.safetensors", {}, True),
        ("tiny/unet/diffusion_pytorch_model.safetensors", {}, False),
        ("always.safetensors", {}, False),
        ("encoder/model.safetensors", styled(), True),
    ],
)
def test_the_next_reload_draws_with_a_file_of_an_older_date(
    server: Server, name: str, fields: Mapping[str, Any], *, rename: bool
) -> None:
    (server.weights / "tiny" / "README.md").write_text("newer than the weights")
    before = draw(server, **fields)
    assert "No model has changed" in reload(server)
    assert (draw(server, **fields) == before).all()
    replace_file(server.weights / name, rename=rename)
    assert MODEL in reload(server)
    assert (draw(server, **fields) != before).any()
    assert "No model has changed" in reload(server)
    assert_clean(server)


def test_the_next_reload_answers_with_a_chat_checkpoint_of_an_older_date(server: Server) -> None:
    def answer() -> list[float]:
        said = server.openai().chat.completions.create(
            model=CHAT, messages=[{"role": "user", "content": "hello"}], max_tokens=4, temperature=0, logprobs=True
        )
        assert said.choices[0].logprobs is not None
        return [each.logprob for each in said.choices[0].logprobs.content or ()]

    before = answer()
    replace_file(server.weights / "tiny-qwen" / "model.safetensors")
    assert CHAT in reload(server)
    assert answer() != before
    assert "No model has changed" in reload(server)


def test_the_next_reload_of_the_policy_judges_with_a_classifier_of_an_older_date(server: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="no-blades"):
        draw(server, prompt="a knife")
    replace_file(server.weights / "blades" / "model.safetensors", never_a_blade)
    assert server.darkroom("policy", "reload").returncode == 0
    draw(server, prompt="a knife")
