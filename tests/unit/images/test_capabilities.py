"""What a checkpoint can't do is refused by field, before anything is held."""

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.protocol.images import RawImage, Runtime
from pipelines.protocol.messages import Capabilities, FailedCheck
from server.accounts.ledger import BilledCall
from server.catalog.images import Catalog, ImageModel, load_catalog
from server.errors import BadRequest
from server.flows.images.request import ImageRequest, InputImages, build_job, check_loras, check_options
from server.flows.references import DecodedImage, Reference
from server.schemas.images import SamplingOptions

REPOSITORY = Path(__file__).resolve().parents[3]
ALL = Capabilities(
    text=True, references=2, mask=True, second_pass=True, negative_prompt=True, guidance=True, any_steps=True
)
IMAGE = {"references": (Reference("image[0]", "data:,"),)}
CALL = BilledCall("job", "key", "images.generations", "beta", 0)
DULL = {"sampling": SamplingOptions(negative_prompt="dull")}
MASK = {**IMAGE, "mask": Reference("mask", "data:,")}


@pytest.fixture(scope="module")
def beta() -> ImageModel:
    catalog: Catalog = load_catalog(REPOSITORY / "model_configs", REPOSITORY / "weights")
    return next(model for model in catalog.models.values() if model.checkpoint.conditioning == "native")


@pytest.mark.parametrize(
    ("lacks", "fields", "param", "message"),
    [
        ({"text": False}, {}, "image", "edits images: send 'image'"),
        ({"text": False, "references": 0}, {}, "mask", "send 'image' and 'mask'"),
        ({"text": False, "references": 0}, IMAGE, "mask", "with a mask only: send 'mask' too"),
        ({"references": 0, "mask": False}, IMAGE, "image", "takes no reference images"),
        ({"references": 1}, {"references": IMAGE["references"] * 2}, "image", "at most 1 reference image, but got 2"),
        ({"mask": False}, MASK, "mask", "takes no mask"),
        ({"negative_prompt": False}, DULL, "negative_prompt", "takes no negative prompt"),
        ({"negative_prompt_above": 100.0}, DULL, "negative_prompt", "at a guidance above 100, and this is"),
        ({"guidance": False}, {"sampling": SamplingOptions(guidance=3.0)}, "guidance", "without guidance"),
        ({"unsupported_adapters": ("a",)}, {"sampling": SamplingOptions(loras={"a": 1.0})}, "loras",
         "does not fit model"),
        ({"unsupported_adapters": ("a",), "failed_checks": (FailedCheck("the adapter a", "a LoKr adapter"),)},
         {"sampling": SamplingOptions(loras={"a": 1.0})}, "loras", r"leave it out\. The reason: a LoKr adapter\."),
        ({"any_steps": False}, {"sampling": SamplingOptions(steps=17)}, "steps", "steps only: leave 'steps' out"),
    ],
)  # fmt: skip
def test_what_a_model_cannot_do_is_refused_by_field(
    beta: ImageModel, lacks: dict[str, Any], fields: dict[str, Any], param: str, message: str
) -> None:
    request = ImageRequest(endpoint="images.generations", prompt="a boat", model=beta.name, **fields)
    check_options(request, beta, 10, ALL)
    with pytest.raises(BadRequest, match=message) as refused:
        check_options(request, beta, 10, replace(ALL, **lacks))
    assert refused.value.param == param


def test_the_guidance_that_an_answer_has_may_be_sent_back(beta: ImageModel) -> None:
    sampling = SamplingOptions(guidance=beta.checkpoint.sampling.guidance)
    request = ImageRequest(endpoint="images.generations", prompt="a boat", model=beta.name, sampling=sampling)
    check_options(request, beta, 10, replace(ALL, guidance=False))


@pytest.mark.parametrize(
    ("above", "guidance", "refused"), [(1.0, 1.0, True), (1.0, 1.1, False), (0.0, 0.0, True), (0.0, 0.5, False)]
)
def test_a_negative_prompt_that_guidance_leaves_out_is_refused(
    beta: ImageModel, above: float, guidance: float, refused: bool
) -> None:
    sampling = SamplingOptions(negative_prompt="dull", guidance=guidance)
    request = ImageRequest(endpoint="images.generations", prompt="a boat", model=beta.name, sampling=sampling)
    with pytest.raises(BadRequest) if refused else contextlib.nullcontext():
        check_options(request, beta, 10, replace(ALL, negative_prompt_above=above))


def test_an_unknown_adapter_is_refused_with_those_that_fit(beta: ImageModel, tmp_path: Path) -> None:
    for name in ("ink", "clay", "unfit"):
        (tmp_path / f"{name}.safetensors").touch()
    model = replace(beta, checkpoint=replace(beta.checkpoint, runtime=Runtime(lora_folder=tmp_path)))
    request = ImageRequest(endpoint="images.generations", prompt="x", sampling=SamplingOptions(loras={"none": 1.0}))
    for capabilities, offered in (
        (None, "clay, ink, unfit"),
        (replace(ALL, unsupported_adapters=("unfit",)), "clay, ink"),
    ):
        with pytest.raises(BadRequest, match=rf"no adapter 'none' .* Adapters: {offered}\.$"):
            check_loras(request, model, capabilities)


def test_further_references_are_shown_on_a_sheet_if_the_file_says_so(beta: ImageModel) -> None:
    one = replace(ALL, references=1)
    request = ImageRequest(endpoint="images.edits", prompt="a boat", references=IMAGE["references"] * 3)
    with pytest.raises(BadRequest, match="takes at most 1 reference image, but got 3"):
        check_options(request, beta, 10, one)
    with_sheet = replace(beta, checkpoint=replace(beta.checkpoint, sheet=True))
    check_options(request, with_sheet, 10, one)
    images = (DecodedImage(RawImage(1, 1, "RGB", bytes(3)), 1, 1),) * 3
    for capabilities, model, first in ((one, with_sheet, 0), (ALL, with_sheet, 1), (None, beta, None)):
        assert build_job(request, model, CALL, InputImages(images), 60, capabilities).sheet_from == first


def test_other_shapes_than_squares_are_refused_where_they_cannot_be_drawn(beta: ImageModel) -> None:
    square = replace(ALL, any_ratio=False)
    request = ImageRequest(endpoint="images.generations", prompt="a boat", size="16:9")
    with pytest.raises(BadRequest, match="draws squares only") as refused:
        build_job(request, beta, CALL, InputImages(), 60, square)
    assert refused.value.param == "size"
    assert build_job(replace(request, size="1:1"), beta, CALL, InputImages(), 60, square).width_px == 1024


def test_a_reference_without_a_size_is_followed_or_cut_and_the_cut_is_told(beta: ImageModel) -> None:
    request = ImageRequest(endpoint="images.edits", prompt="a boat", references=(b"x",))
    for sent, capabilities, drawn, cut_from in (
        ((1280, 800), ALL, (1280, 800), None),
        ((1500, 500), ALL, (1488, 608), "1500x500"),
        ((1280, 800), replace(ALL, any_ratio=False), (1024, 1024), "1280x800"),
        ((640, 640), replace(ALL, any_ratio=False), (640, 640), None),
    ):
        shown = DecodedImage(RawImage(1, 1, "RGB", bytes(3)), *sent)
        for size in (None, "auto"):
            job = build_job(replace(request, size=size), beta, CALL, InputImages((shown,)), 60, capabilities)
            assert ((job.width_px, job.height_px), job.metadata.get("cut_from")) == (drawn, cut_from)


def test_a_model_of_fixed_steps_redraws_in_whole_steps(beta: ImageModel) -> None:
    redrawing = replace(beta, checkpoint=replace(beta.checkpoint, conditioning="img2img"), steps=2)
    fixed = replace(ALL, any_steps=False)
    request = ImageRequest(
        endpoint="images.edits", prompt="a boat", references=(b"x",), sampling=SamplingOptions(strength=0.3)
    )
    with pytest.raises(BadRequest, match=r"use a strength of at least 0\.5") as refused:
        check_options(request, redrawing, 10, fixed)
    assert refused.value.param == "strength"
    check_options(request, redrawing, 10, ALL)
    allowed = replace(request, sampling=SamplingOptions(strength=0.5))
    check_options(allowed, redrawing, 10, fixed)
    images = (DecodedImage(RawImage(512, 512, "RGB", bytes(3 * 512**2)), 512, 512),)
    job = build_job(allowed, redrawing, CALL, InputImages(images), 60, fixed)
    assert (job.sampling.strength, job.sampling.refine_strength) == (0.5, 0.5)
    assert build_job(allowed, redrawing, CALL, InputImages(images), 60, ALL).sampling.refine_strength < 0.5


def test_a_scheduler_is_one_that_the_file_allows_and_that_has_drawn(beta: ImageModel) -> None:
    allowed = replace(beta, checkpoint=replace(beta.checkpoint, schedulers=("AScheduler", "BScheduler")))
    some = replace(ALL, unsupported_schedulers=("BScheduler",))
    for name, model, offered in (("AScheduler", beta, "none by request"), ("BScheduler", allowed, "AScheduler")):
        request = ImageRequest(endpoint="images.edits", prompt="a boat", sampling=SamplingOptions(scheduler=name))
        with pytest.raises(BadRequest, match=f"Schedulers: {offered}") as refused:
            check_options(request, model, 10, some)
        assert refused.value.param == "scheduler"
    request = ImageRequest(endpoint="images.edits", prompt="a boat", sampling=SamplingOptions(scheduler="AScheduler"))
    check_options(request, allowed, 10, some)
    assert build_job(request, allowed, CALL, InputImages(), 60, some).sampling.scheduler == "AScheduler"


def test_alpha_draws_two_references_with_the_other_starter() -> None:
    catalog = load_catalog(REPOSITORY / "model_configs", REPOSITORY / "weights")
    alpha, beta = catalog.models["alpha-image-2-hd-count"], catalog.models["beta-3-pro-image-hd-count"]
    assert alpha.drawn_with(1) is alpha
    drawn = alpha.drawn_with(2)
    assert (drawn.name, drawn.price_units, drawn.group, drawn.sizes) == (
        alpha.name,
        alpha.price_units,
        alpha.group,
        alpha.sizes,
    )
    assert replace(drawn.checkpoint, family="beta") == beta.checkpoint
    assert {drawn.steps_for(quality) for quality in ("low", "high", None)} == {beta.steps}
    assert drawn.checkpoint in catalog.checkpoints


def test_the_default_number_of_steps_may_be_named(beta: ImageModel) -> None:
    sampling = SamplingOptions(steps=beta.steps)
    request = ImageRequest(endpoint="images.generations", prompt="a boat", model=beta.name, sampling=sampling)
    check_options(request, beta, 10, replace(ALL, any_steps=False))
