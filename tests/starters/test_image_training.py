"""The image starters' training, with few steps: it learns, it goes on, and what it writes is an ordinary checkpoint."""

from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

from pipelines.catalog.images import load_catalog
from pipelines.catalog.plan import plan_picture
from pipelines.images.checkpoint import load_checkpoint
from pipelines.protocol.images import CheckpointSpec
from starters.architectures import TAUGHT_LAYERS, alpha_codec, beta, beta_codec, beta_transformer
from starters.training import transformer
from starters.training.__main__ import SHARES
from starters.training.averages import DRAWN_PX, averages_of, latents_of, set_to_averages
from starters.training.codecs import Cut, as_pixels, decode, encode
from starters.training.cosines import cosines_of, set_to_cosines
from starters.training.export import write_checkpoint
from starters.training.loop import Run, Schedule
from starters.training.pictures import FULL, SIZES, train_edit, train_scene
from starters.training.recipes import ON_CPU, ON_GPU, Recipe, Starter, Training
from starters.training.stages import Stage, standing_out, train_caption, unlike
from starters.training.taking_up import take_up
from starters.training.transformer import (
    MIX,
    STEPS_DRAWN,
    TransformerTraining,
    changing,
    drawn_sizes,
    each_object,
    inference_sigmas,
    set_to_pass,
    sharpened,
    shortened,
)
from starters.training.understanding import QUESTIONS, Understanding, misunderstood, shown
from starters.training.unet import as_enlarged
from starters.world.render import render
from starters.world.scene import Scene, Thing
from tests.support.harness import REPOSITORY

FEW = Recipe(
    text=Schedule(2, 1e-3),
    text_batch=4,
    stages=(Stage("half", 2, Schedule(2, 1e-3)), Stage("full", 1, Schedule(3, 1e-3))),
    decoder=Schedule(2, 1e-3),
    cut=Cut(64, 1),
)


@pytest.fixture(scope="module", params=["alpha", "beta"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CheckpointSpec:
    """A starter after a few steps of every phase."""
    starter: Starter = request.param
    folder = tmp_path_factory.mktemp("weights")
    training = Training(starter, folder / ".training", FEW)
    assert training.go_on()
    write_checkpoint(training, folder / f"starter-{starter}")
    conditioning = "img2img" if starter == "alpha" else "native"
    return CheckpointSpec(
        f"starter-{starter}", folder / f"starter-{starter}", None, starter, conditioning, max_references=1
    )


def test_what_is_written_loads_by_the_ordinary_path(checkpoint: CheckpointSpec) -> None:
    loaded = load_checkpoint(checkpoint, torch.device("cpu"))
    assert {"vae", "tokenizer", "text_encoder", "scheduler"} <= loaded.components.keys()


def test_it_is_half_precision_and_small(checkpoint: CheckpointSpec) -> None:
    files = list(checkpoint.path.rglob("*.safetensors"))
    assert sum(file.stat().st_size for file in files) < 16e6
    for file in files:
        with safe_open(file, "pt") as tensors:
            names = list(tensors.keys())
            assert {tensors.get_tensor(name).dtype for name in names} <= {torch.float16, torch.int64}


def test_its_card_says_what_was_trained(checkpoint: CheckpointSpec) -> None:
    assert "full 3 of 3 steps" in (checkpoint.path / "README.md").read_text()


def test_a_new_training_takes_up_what_a_checkpoint_has_learned(checkpoint: CheckpointSpec, tmp_path: Path) -> None:
    starter: Starter = "alpha" if checkpoint.family == "alpha" else "beta"
    training = Training(starter, tmp_path / ".training", FEW)
    take_up(training, checkpoint.path)
    write_checkpoint(training, tmp_path / "again")
    for file in checkpoint.path.rglob("*.safetensors"):
        with (
            safe_open(file, "pt") as old,
            safe_open(tmp_path / "again" / file.relative_to(checkpoint.path), "pt") as new,
        ):
            for name in old.keys():  # noqa: SIM118
                if name.startswith("model.layers.") and int(name.split(".")[2]) >= TAUGHT_LAYERS:
                    continue  # at random, and adds nothing
                assert torch.equal(new.get_tensor(name), old.get_tensor(name)), name
    assert training.go_on()
    assert "; then; " in (tmp_path / "again" / "README.md").read_text()


def small_network() -> nn.Module:
    """With a weight for each of the two optimizers."""
    torch.manual_seed(0)
    return nn.Sequential(OrderedDict(layers=nn.Sequential(nn.Linear(4, 4)), out=nn.Linear(4, 1)))


def small_loss(model: nn.Module, step: int) -> torch.Tensor:
    loss: torch.Tensor = (model(torch.full((2, 4), step / 7)) - 1).square().mean() + 0 * torch.randn(())
    return loss


def test_a_run_that_is_broken_off_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    whole = Run(tmp_path / "whole.pt", small_network(), Schedule(8, 0.1))
    assert set(whole.optimizers) == {"adam", "muon"}
    whole.train(lambda step: small_loss(whole.model, step))
    broken = Run(tmp_path / "broken.pt", small_network(), Schedule(8, 0.1))

    def stop_in_the_middle(step: int) -> torch.Tensor:
        if step == 5:
            raise KeyboardInterrupt
        return small_loss(broken.model, step)

    with pytest.raises(KeyboardInterrupt):
        broken.train(stop_in_the_middle)
    again = Run(tmp_path / "broken.pt", small_network(), Schedule(8, 0.1))
    assert again.step == 5
    again.train(lambda step: small_loss(again.model, step))
    assert again.finished
    for one, other in zip(whole.average.parameters(), again.average.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_state_of_another_version_is_refused(tmp_path: Path) -> None:
    Run(tmp_path / "old.pt", nn.Linear(4, 1), Schedule(8, 0.1)).save()
    with pytest.raises(ValueError, match="another version"):
        Run(tmp_path / "old.pt", small_network(), Schedule(8, 0.1))
    with pytest.raises(ValueError, match="another version"):
        Run(tmp_path / "old.pt", nn.Sequential(nn.Linear(4, 1)), Schedule(8, 0.1))
    with pytest.raises(ValueError, match="another version"):
        Run(tmp_path / "old.pt", nn.Linear(5, 1), Schedule(8, 0.1))


def test_the_learning_rate_falls_by_the_end_of_the_time() -> None:
    schedule = Schedule(10_000, 1.0, fall=0.5)
    assert schedule.rate_at(900) == 1.0
    assert schedule.rate_at(900, last=1000) == pytest.approx(0.2)
    assert schedule.rate_at(999, last=1000) == pytest.approx(0.02)


def test_the_encoder_makes_the_averages_that_training_reckons_with() -> None:
    codec = set_to_averages(alpha_codec())
    picture = render(train_scene(3), 512, 384)
    with torch.no_grad():
        made = encode(codec, as_pixels(picture)[None])[0] * codec.config.scaling_factor
    assert (made - averages_of(picture.reduce(DRAWN_PX))).abs().max() < 0.02
    assert made.shape == latents_of(train_scene(3), 512, 384).shape


def test_the_encoder_makes_the_cosines_that_training_reckons_with() -> None:
    codec = set_to_cosines(beta_codec())
    picture = render(train_scene(3), 512, 384)
    with torch.no_grad():
        made = encode(codec, as_pixels(picture)[None])[0]
    assert (made - cosines_of(picture.reduce(8))).abs().max() < 0.02
    assert made.shape == (32, 384 // 32, 512 // 32)


def test_noise_levels_in_training_are_those_that_drawing_visits() -> None:
    scheduler = beta().scheduler
    scheduler.set_timesteps(sigmas=np.linspace(1, 1 / 4, 4))
    torch.testing.assert_close(scheduler.sigmas[:-1], inference_sigmas(4))


def test_what_is_unlike_its_row_counts_more() -> None:
    picture = torch.zeros(1, 4, 6, 6) + torch.arange(6.0)[:, None]  # rows like a sky's
    picture[:, :, 2, 3] -= 9
    counts = standing_out(picture, far=1.0)
    assert counts[0, 0, 2, 3] == counts.max() > 5
    counts[0, 0, 2, 3] = 1
    assert torch.equal(counts, torch.ones(1, 1, 6, 6))


def test_pictures_differ_where_they_were_changed() -> None:
    before = torch.rand(1, 4, 6, 6)
    after = before.clone()
    after[:, :, 2, 3] += 0.5
    after[:, :, 4, 4] += 5
    differing = unlike(after, before, far=1.0)
    assert differing[0, 0, 2, 3] == pytest.approx(0.5)
    assert differing[0, 0, 4, 4] == 1
    assert differing.count_nonzero() == 2


def test_a_small_change_counts_as_much_as_a_large_one() -> None:
    before = torch.zeros(3, 4, 8, 8)
    after = before.clone()
    after[0] += 5  # a sky
    after[1, :, 2:4, 3:5] += 5  # a boat
    counts = changing(after, before)
    assert counts[0].sum() == pytest.approx(counts[1].sum().item())
    assert counts[1].count_nonzero() == 4
    assert not counts[2].any()


def test_a_small_object_counts_as_much_as_a_large_one() -> None:
    things = (Thing("boat", "red", "small", "left"), Thing("heart", "blue", "large", "right"))
    counts = each_object([Scene("day", "sea", "none", "none", things, "flat", 0)], columns=16, rows=12)
    assert counts.shape == (1, 1, 12, 16)
    assert counts[..., :8].sum() == pytest.approx(counts[..., 8:].sum().item()) == pytest.approx(12 * 16)
    assert counts[..., :8].max() > 2 * counts[..., 8:].max()


def test_who_cannot_tell_which_of_two_is_right_had_better_decide() -> None:
    one, other = torch.zeros(1, 1, 4), torch.ones(1, 1, 4)

    def expected(drawn: torch.Tensor) -> float:
        return float(0.7 * shortened(drawn - one) + 0.3 * shortened(drawn - other))

    assert expected(one) < expected(0.7 * one + 0.3 * other)
    assert shortened(0.01 * other).item() == pytest.approx(1e-4, rel=0.01)


def test_tiles_begin_softer_than_they_should_end() -> None:
    stripes = torch.tensor([-1.0, 1.0]).repeat_interleave(6)[None, None, None].expand(1, 4, 12, 12)
    soft = as_enlarged(stripes, 3)
    assert soft.shape == stripes.shape
    assert 0 < soft.diff(dim=3).abs().max() < 0.8 < stripes.diff(dim=3).abs().max()
    assert soft.mean() == pytest.approx(0, abs=1e-6)
    assert torch.equal(as_enlarged(stripes, 1), stripes)


@pytest.mark.parametrize("recipe", [*ON_CPU.values(), *ON_GPU.values()])
def test_recipes_can_be_followed(recipe: Recipe) -> None:
    assert recipe.cut.side_px <= min(min(size) for sizes in SIZES.values() for size in sizes)
    assert recipe.stages[-1].kind == "full"
    assert all(stage.sizes(FULL, 64, shortest=4) for stage in recipe.stages)


@pytest.mark.parametrize(("starter", "shares"), SHARES.items())
def test_limited_minutes_are_shared_by_all_phases(starter: str, shares: tuple[float, ...]) -> None:
    assert sum(shares) == pytest.approx(1)
    for recipes in (ON_CPU, ON_GPU):
        assert len(recipes["alpha" if starter == "starter-alpha" else "beta"].phases) == len(shares)


def test_an_instruction_comes_with_as_many_pictures_as_it_speaks_of() -> None:
    for number in range(60):
        assert (train_edit(number).reference is not None) == (number % 5 == 0)


def test_every_size_is_trained_as_the_server_has_it_drawn() -> None:
    model = load_catalog(REPOSITORY / "model_configs", REPOSITORY / "weights").models["beta-2.5-flash-image-count"]
    plans = [plan_picture(model.checkpoint, *size, 64) for size in FULL if min(size) > 512]
    sizes = drawn_sizes(Stage("full", 8, Schedule(1, 1e-3)))
    assert {(plan.width, plan.height) for plan in plans} <= set(sizes)
    assert all(width * height <= 1 << 20 for width, height in sizes)


def test_the_server_draws_in_the_steps_that_were_taught() -> None:
    models = load_catalog(REPOSITORY / "model_configs", REPOSITORY / "weights").models.values()
    assert {model.steps for model in models if model.checkpoint.name == "starter-beta"} == {STEPS_DRAWN}


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> TransformerTraining:
    encoder = Training("beta", tmp_path_factory.mktemp("flow"), FEW).run("text").average
    return TransformerTraining(set_to_cosines(beta_codec()).bn, encoder, Stage("full", 1, Schedule(1, 1e-3)))


@pytest.mark.parametrize("task", MIX)
def test_every_task_has_a_loss(flow: TransformerTraining, task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "tasks", {task: 1.0})
    with torch.no_grad():
        assert 0 < flow.loss(Understanding(set_to_pass(beta_transformer())), 3) < 10


@torch.no_grad()
def test_pictures_are_taught_where_the_networks_own_steps_leave_them(
    flow: TransformerTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = torch.autocast("cpu", enabled=False)
    monkeypatch.setattr(transformer, "fast_math", lambda _: exact)
    network = set_to_pass(beta_transformer())
    noise, reference, said = torch.randn(4, 128, 4, 4), torch.randn(4, 128, 4, 4), torch.randn(4, 7, 3 * 96)
    taught, sigmas = flow._under_way(network, noise.clone(), [reference], said)
    levels = inference_sigmas(4)
    torch.testing.assert_close(sigmas, levels[[0, 1, 0, 2]])
    scheduler = beta().scheduler
    scheduler.set_timesteps(sigmas=np.linspace(1, 1 / 4, 4))
    inputs = flow._inputs([noise, reference], levels[:1].expand(4), said)
    velocity = network(**inputs, return_dict=False)[0][:, :16].transpose(1, 2).reshape(noise.shape)
    after_one = scheduler.step(velocity, scheduler.timesteps[0], noise, return_dict=False)[0]
    torch.testing.assert_close(
        taught, torch.stack([noise[0], after_one[1], noise[2], noise[3] + (levels[2] - 1) * velocity[3]])
    )
    assert (taught - noise)[1::2].abs().amax((1, 2, 3)).min() > 0.1


@torch.no_grad()
def test_every_fourth_reference_is_the_networks_own_drawing_of_its_scene(
    flow: TransformerTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = TransformerTraining(flow.norm, flow.encoder, Stage("full", 8, Schedule(1, 1e-3)))
    said: list[list[str]] = []
    monkeypatch.setattr(full, "_said", lambda texts: said.append(texts) or flow._said(texts))
    scenes = [train_scene(number) for number in range(8)]
    references = full._tokens(scenes, (256, 256))
    network = beta_transformer()
    partly = full._partly_own(network, references, scenes, 40)
    assert torch.equal(partly[:6], references[:6])
    assert (partly[6:] - references[6:]).abs().amax((1, 2, 3)).min() > 0.1
    assert said == [[train_caption(scene, 11, 40 + i) for i, scene in enumerate(scenes[6:])]]
    half = TransformerTraining(flow.norm, flow.encoder, Stage("half", 8, Schedule(1, 1e-3)))
    assert torch.equal(half._partly_own(network, references, scenes, 40), references)


@torch.no_grad()
def test_tiles_of_the_transformer_begin_softer_too(flow: TransformerTraining, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer, "TILE_NOISE", 0.0)
    clean, start, sigmas = flow._tiles([train_scene(3)], (512, 512), np.random.default_rng(1))
    assert clean.shape == start.shape == (1, 128, 8, 8)
    assert sigmas.tolist() == [0]
    assert start.std() < clean.std()
    assert 0 < (start - clean).square().mean() < 0.1 * clean.var()
    monkeypatch.undo()
    same, noisy, sigmas = flow._tiles([train_scene(3)], (512, 512), np.random.default_rng(1))
    assert torch.equal(same, clean)
    assert 0 < sigmas.item() < 0.6
    assert not torch.equal(noisy, start)


def test_tokens_are_asked_what_stands_there() -> None:
    boat = Thing("boat", "red", "large", "left")
    scene = Scene("sunset", "sea", "none", "sun", (boat,), "flat", 0)
    answers = shown([[scene, scene], [scene, scene]], columns=16, rows=16)
    kinds = answers["kind"][1, :256].view(16, 16)
    there, nothing = QUESTIONS["kind"].index("boat"), QUESTIONS["kind"].index("nothing")
    picture = np.array(render(scene, 1024, 1024))
    bare = np.array(render(replace(scene, things=(replace(boat, place="right"),)), 1024, 1024))
    drawn = torch.from_numpy((picture != bare).any(2))[:, :512].view(16, 64, 8, 64).float().mean((1, 3))
    assert (drawn[kinds[:, :8] == there]).mean() > 0.5 > 0.05 > drawn[kinds[:, :8] == nothing].mean()
    assert (kinds[:, 8:] == nothing).all()
    assert torch.equal(answers["kind"][0, :256], answers["kind"][1, 256:])
    assert (answers["sky"] == QUESTIONS["sky"].index("sunset")).all()


def test_who_answers_rightly_has_understood() -> None:
    answers = shown([[train_scene(3)]], columns=8, rows=6)
    counts = [len(values) for values in QUESTIONS.values()]
    right = [nn.functional.one_hot(answers[q].clamp(min=0), n) for q, n in zip(QUESTIONS, counts, strict=True)]
    assert misunderstood(20 * torch.cat(right, dim=-1).float(), answers) < 0.01
    assert misunderstood(torch.zeros(1, 48, sum(counts)), answers) > 1


def test_what_an_edit_changes_is_asked_for_most() -> None:
    edit = next(edit for edit in map(train_edit, range(1, 100)) if edit.change == "recolour")
    after, before = (shown([[scene]], columns=8, rows=6) for scene in (edit.after, edit.before))
    counts = [len(values) for values in QUESTIONS.values()]
    as_before = [nn.functional.one_hot(before[q].clamp(min=0), n) for q, n in zip(QUESTIONS, counts, strict=True)]
    scores = 20 * torch.cat(as_before, dim=-1).float()
    assert misunderstood(scores, after, before) > 1.5 * misunderstood(scores, after) > 0


def test_attention_is_sharper_among_more_tokens() -> None:
    before, after = (Stage(kind, 1, Schedule(1, 1e-3)) for kind in ("half", "full"))
    network = sharpened(beta_transformer(), before, after)
    assert network.transformer_blocks[0].attn.norm_q.weight.mean().item() == pytest.approx(1.11, abs=0.01)
    assert network.single_transformer_blocks[0].attn.norm_k.weight.mean().item() == pytest.approx(1.11, abs=0.01)


def test_an_untrained_transformer_lets_noise_pass() -> None:
    torch.manual_seed(0)
    network, noise = set_to_pass(beta_transformer()), torch.randn(1, 16, 128)
    with torch.no_grad():
        drawn = network(
            hidden_states=noise,
            timestep=torch.ones(1),
            encoder_hidden_states=torch.randn(1, 8, 288),
            txt_ids=torch.zeros(1, 8, 4),
            img_ids=torch.cartesian_prod(*[torch.arange(n) for n in (1, 4, 4, 1)])[None],
            return_dict=False,
        )[0]
    assert (drawn - noise).abs().mean() < 0.1


@pytest.mark.parametrize(
    ("codec", "edge"), [(set_to_averages(alpha_codec()), 16), (set_to_cosines(beta_codec()), 32)], ids=["alpha", "beta"]
)
def test_an_untrained_decoder_enlarges(codec: nn.Module, edge: int) -> None:
    sky = torch.linspace(-0.6, 0.6, 256)[None, None, :, None].expand(1, 3, 256, 256)
    with torch.no_grad():
        drawn = decode(codec, encode(codec, sky))
    assert (drawn - sky)[..., edge:-edge, edge:-edge].abs().max() < 0.002
