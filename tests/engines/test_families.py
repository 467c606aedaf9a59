"""What checkpoints of many families can do, as warmup finds it, and what it says of the rest."""

from dataclasses import replace
from pathlib import Path

import diffusers
import pytest
from packaging.version import Version

from pipelines.checkpoints.errors import CheckpointError
from pipelines.images.engine import ImageEngine
from pipelines.protocol.images import CheckpointSpec, Conditioning, Control, ControlInput, Finished, SamplingDefaults
from pipelines.protocol.messages import Capabilities
from server.data_folders import REPOSITORY
from tests.engines.conftest import left_half, plain_image
from tests.engines.device import DEVICE
from tests.engines.shared_passes import difference, drawn, drawn_together, last_event
from tests.support.image_jobs import image_job
from tests.support.tiny_families import NEEDED, make_family
from tests.support.tiny_families.unets import image_variation

# text, references, mask, second pass, negative prompt, guidance, any number of steps
CAPABILITIES: dict[str, tuple[Conditioning, tuple[bool, int, bool, bool, bool, bool, bool]]] = {
    "sd15": ("img2img", (True, 1, True, True, True, True, True)),
    "sdxl": ("img2img", (True, 1, True, True, True, True, True)),
    "sd3": ("img2img", (True, 1, True, True, True, True, True)),
    "flux": ("img2img", (True, 1, True, True, False, True, True)),
    "z-image": ("img2img", (True, 1, True, True, True, True, True)),
    "klein": ("native", (True, 16, True, True, False, False, True)),
    "ernie-image": ("img2img", (True, 0, False, False, True, True, True)),
}
NIGHTLY: dict[str, tuple[Conditioning, tuple[bool, int, bool, bool, bool, bool, bool]]] = {
    "sd15-inpaint": ("img2img", (False, 0, True, True, True, True, True)),
    "instruct-pix2pix": ("native", (False, 1, False, False, True, True, True)),
    "lcm": ("img2img", (True, 1, True, True, False, True, True)),
    "sdxl-turbo": ("img2img", (True, 1, True, True, True, True, True)),
    "sdxl-inpaint": ("img2img", (False, 0, True, True, True, True, True)),
    "sdxl-refiner": ("img2img", (False, 1, True, True, True, True, True)),
    "flux-schnell": ("img2img", (True, 1, True, True, False, False, True)),
    "flux-control": ("img2img", (True, 1, True, True, False, True, True)),
    "flux-fill": ("img2img", (False, 0, True, True, False, True, True)),
    "chroma": ("img2img", (True, 1, False, True, True, True, True)),
    "lumina2": ("img2img", (True, 1, True, True, True, True, True)),
    "cogview4": ("img2img", (True, 1, True, True, True, True, True)),
    "aura-flow": ("img2img", (True, 1, True, True, True, True, True)),
    "klein-base": ("native", (True, 16, True, True, False, True, True)),
    "kontext": ("native", (True, 1, True, True, False, True, True)),
    "sana-sprint": ("img2img", (True, 1, False, True, False, True, False)),
    "sana": ("img2img", (True, 1, True, True, True, True, True)),
    "pixart": ("img2img", (True, 1, True, True, True, True, True)),
    "hidream": ("img2img", (True, 1, True, True, True, True, True)),
    "qwen-image": ("img2img", (True, 1, True, True, True, True, True)),
    "glm-image": ("native", (True, 0, False, False, False, True, True)),
    "flux2": ("native", (True, 16, False, False, False, True, True)),
    "qwen-edit": ("native", (False, 1, True, True, True, True, True)),
    "qwen-edit-plus": ("native", (False, 16, False, False, True, True, True)),
    "qwen-layered": ("native", (False, 1, False, False, True, True, True)),
    "krea2": ("img2img", (True, 0, False, False, True, True, True)),
    "ideogram4": ("img2img", (True, 0, False, False, False, True, True)),
    "longcat-image": ("img2img", (True, 0, False, False, True, True, True)),
    "ovis-image": ("img2img", (True, 0, False, False, True, True, True)),
    "nucleusmoe-image": ("img2img", (True, 0, False, False, True, True, True)),
    "hunyuan-image": ("img2img", (True, 1, True, True, True, True, True)),
    "hunyuan-image-distilled": ("img2img", (True, 1, True, True, False, True, True)),
    "kandinsky5": ("img2img", (True, 0, False, False, True, True, True)),
    "bria": ("img2img", (True, 0, False, False, True, True, True)),
    "fibo": ("img2img", (True, 0, False, False, True, True, True)),
    "prx": ("img2img", (True, 1, True, True, True, True, True)),
    "prx-pixel": ("img2img", (True, 0, False, False, True, True, True)),
    "qwen-image-21": ("native", (True, 16, False, False, True, True, True)),
    "longcat-edit": ("native", (False, 1, False, False, True, True, True)),
    "joyimage-edit": ("native", (True, 1, False, False, True, True, True)),
    "joyimage-edit-plus": ("native", (True, 16, False, False, True, True, True)),
    "kandinsky5-i2i": ("native", (False, 1, False, False, True, True, True)),
    "fibo-edit": ("native", (True, 16, False, False, True, True, True)),
    "fibo2": ("native", (True, 16, False, False, True, True, True)),
    "dreamlite": ("native", (True, 1, False, False, True, True, True)),
    "dreamlite-mobile": ("native", (True, 1, False, False, False, False, True)),
    "z-image-omni": ("native", (True, 0, False, False, True, True, True)),
    "klein-kv": ("native", (True, 16, False, False, False, False, True)),
    "omnigen": ("native", (True, 16, False, False, False, True, True)),
    "hunyuan-refiner": ("native", (False, 1, False, False, False, True, True)),
    "pixart-alpha": ("img2img", (True, 1, True, True, True, True, True)),
    "hunyuan-dit": ("img2img", (True, 1, True, True, True, True, True)),
    "cogview3": ("img2img", (True, 1, True, True, True, True, True)),
    "kolors": ("img2img", (True, 1, True, True, True, True, True)),
    "deepfloyd-if": ("img2img", (True, 1, True, True, True, True, True)),
    "latent-diffusion": ("img2img", (True, 0, False, False, False, True, True)),
    "depth2img": ("img2img", (False, 1, False, True, True, True, True)),
    "unclip": ("img2img", (True, 0, False, False, True, True, True)),
    "unclip-img2img": ("native", (False, 1, False, False, True, True, True)),
    "sdxl-pix2pix": ("native", (False, 1, False, False, True, True, True)),
    "image-variation": ("native", (False, 1, False, False, False, True, True)),
    "sd15-pag": ("img2img", (True, 1, True, True, True, True, True)),
    "sdxl-pag": ("img2img", (True, 1, True, True, True, True, True)),
    "hunyuan-dit-pag": ("img2img", (True, 1, True, True, True, True, True)),
    "kolors-pag": ("img2img", (True, 1, True, True, True, True, True)),
    "sd3-pag": ("img2img", (True, 1, True, True, True, True, True)),
    "pixart-pag": ("img2img", (True, 1, True, True, True, True, True)),
    "sana-pag": ("img2img", (True, 1, True, True, True, True, True)),
    "kandinsky3": ("img2img", (True, 1, False, True, True, True, True)),
    "kandinsky22": ("img2img", (True, 1, False, True, True, True, True)),
    "kandinsky22-inpaint": ("img2img", (False, 0, True, True, True, True, True)),
    "kandinsky21": ("img2img", (True, 1, False, True, True, True, True)),
    "kandinsky21-inpaint": ("img2img", (False, 0, True, True, True, True, True)),
    "lumina": ("img2img", (True, 1, True, True, True, True, True)),
}
SLOW = (pytest.mark.nightly, pytest.mark.timeout(1800))  # some encode every reference at a megapixel
YES_OR_NO = {True: "yes", False: "no"}
# Rows that differ in a shared pass, or a pass that can't be shared: the engine finds it at the first one
DRAWN_APART = {"hidream", "kandinsky5", "kandinsky5-i2i", "z-image-omni", "qwen-image-21"}
SELDOM_MEET = {"glm-image"}  # each image draws its tokens first, which takes longest here
WITH_ALPHA = {"qwen-image-21", "qwen-layered"}
TAKES_APART = {"qwen-layered"}
WITHOUT_PROMPT = {"image-variation"}
# The others compute a negative prompt's part of a step at a guidance above 1 only
GUIDED_ABOVE_0 = {
    "z-image",
    "z-image-omni",
    "krea2",
    "hunyuan-image",
    "dreamlite",
    *("kandinsky22", "kandinsky22-inpaint", "kandinsky21", "kandinsky21-inpaint"),
}
ONE_BY_ONE = {
    *TAKES_APART,  # the first of them draws all
    *("sd15-pag", "sdxl-pag", "sd3-pag", "pixart-pag", "sana-pag", "hunyuan-dit-pag", "kolors-pag"),
}
# Tokens of a prompt, without special ones and those of a template, by its tokenizer here
TOKENS = {
    **dict.fromkeys(("sd15", "sd15-inpaint", "instruct-pix2pix", "lcm"), 75),
    **dict.fromkeys(("sdxl", "sdxl-turbo", "sdxl-inpaint", "sdxl-refiner"), 75),
    **dict.fromkeys(("flux", "flux-schnell", "flux-control", "flux-fill", "kontext", "chroma"), 511),
    **dict.fromkeys(("z-image", "klein", "klein-base"), 493),
    **{"sd3": 255, "lumina2": 92, "cogview4": 1023, "aura-flow": 255, "sana": 298, "sana-sprint": 298},
    **{"pixart": 299, "hidream": 128, "qwen-image": 512, "glm-image": None},
    **{"flux2": 326, "qwen-edit": None, "qwen-edit-plus": None, "qwen-layered": None},
    **dict.fromkeys(("ideogram4", "qwen-image-21", "joyimage-edit-plus", "omnigen", "image-variation"), None),
    **dict.fromkeys(("kolors", "kolors-pag"), None),
    **{"krea2": 392, "ernie-image": 131072, "longcat-image": 512, "longcat-edit": 512, "ovis-image": 131},
    **{"nucleusmoe-image": 727, "hunyuan-image": 884, "hunyuan-image-distilled": 884, "hunyuan-refiner": 53},
    **{"kandinsky5": 375, "kandinsky5-i2i": 842, "bria": 127, "fibo": 3000, "fibo-edit": 3000, "fibo2": 4077},
    **{"prx": 256, "prx-pixel": 256, "joyimage-edit": 1917, "dreamlite": 60, "dreamlite-mobile": 60},
    **{"z-image-omni": 493, "klein-kv": 493, "pixart-alpha": 119, "pixart-pag": 299, "cogview3": 223},
    **{"hunyuan-dit": 255, "hunyuan-dit-pag": 255, "sd3-pag": 255, "sana-pag": 298, "deepfloyd-if": 76},
    **dict.fromkeys(("latent-diffusion", "depth2img", "unclip", "unclip-img2img", "kandinsky22"), 75),
    **dict.fromkeys(("sdxl-pix2pix", "sd15-pag", "sdxl-pag"), 75),
    **dict.fromkeys(("kandinsky21", "kandinsky21-inpaint", "kandinsky22-inpaint"), 75),
    **{"kandinsky3": 127, "lumina": 255},
}
ONE_BEFORE = {"fibo-edit": "0.41"}  # the diffusers whose class takes several references
READ_ALL = {  # in windows, or up to the longest that the class lets through
    *("sd15", "sd15-inpaint", "lcm", "sdxl", "sdxl-turbo", "sdxl-inpaint", "sdxl-refiner", "sd3", "flux"),
    *("flux-schnell", "flux-control", "flux-fill", "kontext", "chroma", "qwen-image", "qwen-edit", "qwen-edit-plus"),
    *("ovis-image", "kandinsky5", "bria", "fibo", "fibo-edit", "kolors", "kolors-pag", "depth2img", "unclip"),
    *("unclip-img2img", "sdxl-pix2pix", "sd15-pag", "sdxl-pag", "sd3-pag", "qwen-layered"),
}
DRAWN_FROM_MAPS = {"flux-control"}
FAILED_CHECKS = {
    "chroma": "a mask: AttributeError: 'FrozenDict' object has no attribute 'guidance_embeds'",
    "sana-sprint": "another number of steps: ValueError: Intermediate timesteps for SCM is not supported",
    "hidream": "a shared forward pass: its rows differ",
    "glm-image": "a reference: RuntimeError: Given groups=1",
    "instruct-pix2pix": "text: ValueError: `image` input cannot be undefined.",
}


def family_spec(name: str, folder: Path, conditioning: Conditioning) -> CheckpointSpec:
    own_map = (Control("map", "map", folder / name),) if name in DRAWN_FROM_MAPS else ()
    return CheckpointSpec(
        name=name, path=folder / name, config=None, family="alpha", conditioning=conditioning,
        max_references=16 if conditioning == "native" else 1, native_area_px=64 * 64, max_area_px=96 * 96,
        sampling=SamplingDefaults(guidance=2.0, refine_strength=0.5), controls=own_map,
    )  # fmt: skip


def documented() -> list[list[str]]:
    """The rows of the table: a name, a class, and what it does."""
    lines = (REPOSITORY / "docs" / "reference" / "families.md").read_text().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "Pipeline` |" in line]


def require(name: str) -> None:
    """Skip a family that the installed libraries do not have."""
    if name in NEEDED:
        pytest.importorskip(NEEDED[name])
    class_name = next(row[1].strip("`") for row in documented() if row[0] == name)
    if not hasattr(diffusers, class_name):
        pytest.skip(f"diffusers {diffusers.__version__} has no {class_name}")


def test_the_documentation_has_this_table() -> None:
    """`make families` writes it from what a server answered; here the engine is asked. A class without a second pass
    has its larger images scaled."""
    expected = {}
    for name, (conditioning, (from_text, references, mask, second_pass, *others)) in {
        **CAPABILITIES,
        **NIGHTLY,
    }.items():
        sheet = ", more on a sheet" if (conditioning, references) == ("native", 1) else ""
        numbers = f"{references}{sheet}, `{conditioning}`" if references else "no"
        larger = "yes" if second_pass else "scaled"
        yes_or_no = (YES_OR_NO[other] for other in others)
        expected[name] = [YES_OR_NO[from_text], numbers, YES_OR_NO[mask], larger, *yes_or_no]
    assert {name: cells[: len(expected[name])] for name, _, *cells in documented()} == expected


@pytest.mark.daily("sd15")
@pytest.mark.parametrize("name", [*CAPABILITIES, *(pytest.param(name, marks=SLOW) for name in NIGHTLY)])
async def test_warmup_finds_what_a_checkpoint_can_do(name: str, tmp_path: Path) -> None:
    require(name)
    make_family(name, tmp_path / name)
    conditioning, expected = {**CAPABILITIES, **NIGHTLY}[name]
    if name in ONE_BEFORE and Version(diffusers.__version__) < Version(ONE_BEFORE[name]):
        expected = (expected[0], 1, *expected[2:])
    spec = family_spec(name, tmp_path, conditioning)
    engine = ImageEngine(DEVICE)
    found = await engine.prepare(spec)
    above = float(name not in GUIDED_ABOVE_0) if found.negative_prompt else None
    at_once = name not in ONE_BY_ONE
    prompts = Capabilities(*expected).long_prompts if name not in READ_ALL else ("refuse", "tell", "chunk")
    assert replace(found, unit_s=None, failed_checks=()) == Capabilities(
        *expected, negative_prompt_above=above, at_once=at_once, prompt_tokens=TOKENS[name], long_prompts=prompts,
        transparent=name in WITH_ALPHA, prompt=name not in WITHOUT_PROMPT, layers=name in TAKES_APART,
    )  # fmt: skip
    assert FAILED_CHECKS.get(name, "") in "; ".join(map(str, found.failed_checks))
    inputs = {} if found.text else {"references": (plain_image(),)}
    if not (found.text or found.references):
        inputs["mask"] = left_half()
    inputs |= {"controls": (ControlInput("map", plain_image(), 1.0),)} if spec.own_map is not None else {}
    steps = 2 if found.text else 4  # a redrawn image is drawn in the last of them
    job = image_job(spec, id="wide", width_px=112, height_px=64, n=2, steps=steps, time_limit_s=900, **inputs)
    one_by_one = name in ONE_BY_ONE  # then the second does not begin before the first has ended
    event = await last_event(engine, job) if one_by_one else (await drawn_together(engine, [job]))[0]
    assert isinstance(event, Finished), event
    assert {(each.width_px, each.height_px) for each in event.images} == {(112, 64)}
    assert event.merged == (name not in DRAWN_APART | ONE_BY_ONE) or name in SELDOM_MEET
    if name in TAKES_APART:
        assert [image.seed for image in event.images] == [job.seed, job.seed]
        assert event.found["layers"] == 2
        return
    alone = [await drawn(engine, replace(job, id=f"{seed}", n=1, seed=seed)) for seed in (job.seed, job.seed + 1)]
    assert difference(event, [image for (image,) in alone]) <= 2


@pytest.mark.parametrize(("name", "wrong", "right"), [("flux", "native", "img2img"), ("klein", "img2img", "native")])
async def test_conditioning_that_does_not_suit_is_refused(
    name: str, wrong: Conditioning, right: Conditioning, tmp_path: Path
) -> None:
    make_family(name, tmp_path / name)
    with pytest.raises(CheckpointError, match=f'write conditioning = "{right}"'):
        await ImageEngine(DEVICE).prepare(family_spec(name, tmp_path, wrong))


async def test_models_of_two_passes_need_a_second_pass(tmp_path: Path) -> None:
    make_family("instruct-pix2pix", tmp_path / "instruct-pix2pix")
    with pytest.raises(CheckpointError, match="InstructPix2PixPipeline can't redraw a part of an image"):
        await ImageEngine(DEVICE).prepare(replace(family_spec("instruct-pix2pix", tmp_path, "native"), refined=True))


async def test_a_prompt_and_a_second_reference_that_change_nothing_are_told(tmp_path: Path) -> None:
    """A class for variations of one image: it takes a list of them as a batch, of which one is returned."""
    image_variation().save_pretrained(tmp_path / "variation")
    found = await ImageEngine(DEVICE).prepare(family_spec("variation", tmp_path, "native"))
    assert (found.text, found.references, found.mask, found.prompt) == (False, 1, False, False)
    told = {str(each) for each in found.failed_checks}
    assert {"a prompt: it takes none", "two references: the second changes nothing"} <= told
