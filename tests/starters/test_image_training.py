"""The image starters' recipe with a few steps: it trains, resumes, exports, and the result loads as any checkpoint."""

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

from pipelines.images.loading.load import load_checkpoint
from pipelines.protocol.images import CheckpointSpec
from server.catalog.images import load_catalog
from starters.architectures import TRAINED_LAYERS, alpha_codec, beta, beta_codec, beta_transformer
from starters.training.average_codec import REDUCTION, average_latents, init_average_codec
from starters.training.dataset import train_scene
from starters.training.dct_codec import dct_latents, init_dct_codec
from starters.training.decoders import CropConfig, as_pixels, encode
from starters.training.export import write_checkpoint
from starters.training.loop import Run, Schedule
from starters.training.recipes import Recipe, Starter, Training
from starters.training.stages import Stage
from starters.training.token_checks import ProbedTransformer
from starters.training.transformer import (
    INFERENCE_STEPS,
    TASK_MIX,
    TransformerTraining,
    inference_sigmas,
    init_identity,
)
from starters.training.warm_start import warm_start
from starters.world.render import render
from tests.support.harness import REPOSITORY

pytestmark = pytest.mark.nightly

SHORT = Recipe(
    text=Schedule(2, 1e-3),
    text_batch=4,
    stages=(Stage("half", 2, Schedule(2, 1e-3)), Stage("full", 1, Schedule(3, 1e-3))),
    decoder=Schedule(2, 1e-3),
    crop=CropConfig(64, 1),
)


@pytest.fixture(scope="module", params=["alpha", "beta"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CheckpointSpec:
    """A starter after a few steps of every phase."""
    starter: Starter = request.param
    folder = tmp_path_factory.mktemp("weights")
    training = Training(starter, folder / ".training", SHORT)
    assert training.train()
    write_checkpoint(training, folder / f"starter-{starter}")
    conditioning = "img2img" if starter == "alpha" else "native"
    return CheckpointSpec(
        f"starter-{starter}", folder / f"starter-{starter}", None, starter, conditioning, max_references=1
    )


def tensors_of(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    for file in sorted(folder.rglob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                yield f"{file.parent.name}/{name}", tensors.get_tensor(name)


def test_what_is_written_loads_by_the_ordinary_path(checkpoint: CheckpointSpec) -> None:
    loaded = load_checkpoint(checkpoint, torch.device("cpu"))
    assert {"vae", "tokenizer", "text_encoder", "scheduler"} <= loaded.components.keys()


def test_it_is_half_precision_and_small_and_its_card_tells_the_steps(checkpoint: CheckpointSpec) -> None:
    assert sum(file.stat().st_size for file in checkpoint.path.rglob("*.safetensors")) < 16e6
    assert {tensor.dtype for _, tensor in tensors_of(checkpoint.path)} <= {torch.float16, torch.int64}
    assert "full 3 of 3 steps" in (checkpoint.path / "README.md").read_text()


def test_a_warm_start_begins_with_the_checkpoints_weights(checkpoint: CheckpointSpec, tmp_path: Path) -> None:
    training = Training("alpha" if checkpoint.family == "alpha" else "beta", tmp_path / ".training", SHORT)
    warm_start(training, checkpoint.path)
    write_checkpoint(training, tmp_path / "again")
    again = dict(tensors_of(tmp_path / "again"))
    for name, tensor in tensors_of(checkpoint.path):
        part, _, rest = name.partition("/")
        if part == "text_encoder" and rest.startswith("model.layers.") and int(rest.split(".")[2]) >= TRAINED_LAYERS:
            continue  # random, and adds nothing
        assert torch.equal(again[name], tensor), name
    assert "; then; " in (tmp_path / "again" / "README.md").read_text()


def small_network() -> nn.Module:
    """With a weight for each of the two optimizers."""
    torch.manual_seed(0)
    return nn.Sequential(OrderedDict(layers=nn.Sequential(nn.Linear(4, 4)), out=nn.Linear(4, 1)))


def small_loss(model: nn.Module, step: int) -> torch.Tensor:
    loss: torch.Tensor = (model(torch.full((2, 4), step / 7)) - 1).square().mean() + 0 * torch.randn(())
    return loss


def test_an_interrupted_run_resumes_exactly(tmp_path: Path) -> None:
    uninterrupted = Run(tmp_path / "uninterrupted.pt", small_network(), Schedule(8, 0.1))
    assert set(uninterrupted.optimizers) == {"adam", "muon"}
    uninterrupted.train(lambda step: small_loss(uninterrupted.model, step))
    interrupted = Run(tmp_path / "interrupted.pt", small_network(), Schedule(8, 0.1))

    def stop_in_the_middle(step: int) -> torch.Tensor:
        if step == 5:
            raise KeyboardInterrupt
        return small_loss(interrupted.model, step)

    with pytest.raises(KeyboardInterrupt):
        interrupted.train(stop_in_the_middle)
    resumed = Run(tmp_path / "interrupted.pt", small_network(), Schedule(8, 0.1))
    assert resumed.step == 5
    resumed.train(lambda step: small_loss(resumed.model, step))
    assert resumed.finished
    for one, other in zip(uninterrupted.average.parameters(), resumed.average.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_state_of_another_version_is_refused(tmp_path: Path) -> None:
    Run(tmp_path / "old.pt", nn.Linear(4, 1), Schedule(8, 0.1)).save()
    with pytest.raises(ValueError, match="another version"):
        Run(tmp_path / "old.pt", small_network(), Schedule(8, 0.1))
    with pytest.raises(ValueError, match="another version"):
        Run(tmp_path / "old.pt", nn.Linear(5, 1), Schedule(8, 0.1))


@torch.no_grad()
def test_the_encoders_make_the_latents_that_generators_are_trained_on() -> None:
    image = render(train_scene(3), 512, 384)
    pixels, reduced = as_pixels(image)[None], image.reduce(REDUCTION)
    codec = init_average_codec(alpha_codec())
    assert (encode(codec, pixels)[0] * codec.config.scaling_factor - average_latents(reduced)).abs().max() < 0.02
    assert (encode(init_dct_codec(beta_codec()), pixels)[0] - dct_latents(reduced)).abs().max() < 0.02


def test_noise_levels_in_training_are_those_of_inference() -> None:
    models = load_catalog(REPOSITORY / "model_configs", REPOSITORY / "weights").models.values()
    assert {model.steps for model in models if model.checkpoint.name == "starter-beta"} == {INFERENCE_STEPS}
    scheduler = beta().scheduler
    scheduler.set_timesteps(sigmas=np.linspace(1, 1 / INFERENCE_STEPS, INFERENCE_STEPS))
    torch.testing.assert_close(scheduler.sigmas[:-1], inference_sigmas(INFERENCE_STEPS))


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> TransformerTraining:
    encoder = Training("beta", tmp_path_factory.mktemp("flow"), SHORT).run("text").average
    return TransformerTraining(init_dct_codec(beta_codec()).bn, encoder, Stage("full", 1, Schedule(1, 1e-3)))


@pytest.mark.parametrize("task", TASK_MIX)
def test_every_task_has_a_loss(flow: TransformerTraining, task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "tasks", {task: 1.0})
    with torch.no_grad():
        assert 0 < flow.loss(ProbedTransformer(init_identity(beta_transformer())), 3) < 10
