"""Between two steps the host waits for the device at the fence alone; what a library waits for is listed."""

from collections import Counter
from pathlib import Path

import pytest
import torch

from pipelines.images.denoising import pass_graphs
from pipelines.images.engine import ImageEngine
from pipelines.images.loading import component_fixes
from tests.engines.conftest import left_half, plain_image
from tests.engines.test_families import CAPABILITIES, DRAWN_FROM_MAPS, NIGHTLY, family_spec, require
from tests.gpu.conftest import draw
from tests.simulated_gpu import device
from tests.support.image_jobs import image_job
from tests.support.tiny_families import NEED_TORCHVISION, make_family


@pytest.fixture(autouse=True)
def no_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launch every pass: a capture waits once, to compare its bits (tests/engines/test_pass_graphs.py)."""
    monkeypatch.setattr(pass_graphs, "CAPTURED_AT", 10**9)


FENCE = " catch_up"
FAMILIES = {
    name: (conditioning, able)
    for name, (conditioning, able) in {**CAPABILITIES, **NIGHTLY}.items()
    if able[-1] and name not in {*NEED_TORCHVISION, *DRAWN_FROM_MAPS}  # any number of steps
}
ALWAYS = ("flux", "lumina2", "cogview4")
TABLES = Path(component_fixes.__file__).name  # two of each pass; every layer copied them before
MOST_TABLES = 4  # of a step that is two passes
PNDM = {"scheduling_pndm.py"}  # its tables are on the host, and the time of a step is on the device
DDIM = {"scheduling_ddim.py"}  # likewise
DDPM = {"scheduling_ddpm.py", "torch_utils.py"}  # likewise, with noise of the host's generator
NOT_SIMULATED = {"kandinsky21-inpaint", "kandinsky22-inpaint"}  # they copy a tensor with its storage
# Where the library itself waits at every step
LISTED: dict[str, set[str]] = {
    "sd15": PNDM,
    "sd15-inpaint": PNDM,
    "instruct-pix2pix": PNDM,
    "lcm": {"torch_utils.py", "scheduling_lcm.py"},  # noise of the host's generator
    "sdxl-turbo": {"torch_utils.py"},
    "chroma": {"transformer_chroma.py"},
    "aura-flow": {"pipeline_aura_flow.py"},
    "lumina2": {"transformer_lumina2.py"},  # lengths of prompts, read from the mask
    "hidream": {"transformer_hidream_image.py"},  # experts are chosen on the host
    "glm-image": {"transformer_glm_image.py"},
    "ernie-image": {"pipeline_ernie_image.py"},
    "hunyuan-image": {"transformer_hunyuanimage.py"},
    "hunyuan-image-distilled": {"transformer_hunyuanimage.py"},
    "z-image-omni": {"pipeline_z_image_omni.py", "transformer_z_image.py"},
    "hunyuan-dit": DDPM | {"pipeline_hunyuandit.py"},
    "hunyuan-dit-pag": DDPM | {"pipeline_pag_hunyuandit.py"},
    "cogview3": {"scheduling_ddim_cogvideox.py"},
    "latent-diffusion": {"unet_2d_condition.py"},
    "lumina": {"pipeline_lumina.py", "embeddings.py"},
    **dict.fromkeys(("deepfloyd-if", "kandinsky3", "kandinsky22"), DDPM),
    **dict.fromkeys(("unclip", "unclip-img2img", "kandinsky21"), DDIM),
    **dict.fromkeys(("depth2img", "image-variation", "sd15-pag"), PNDM),
}


@pytest.mark.parametrize(
    "name", [*ALWAYS, *(pytest.param(name, marks=pytest.mark.nightly) for name in FAMILIES if name not in ALWAYS)]
)
async def test_a_step_waits_at_its_fence_alone(name: str, tmp_path: Path) -> None:
    require(name)
    if name in NOT_SIMULATED:
        pytest.skip("the simulated GPU has no such storage")
    make_family(name, tmp_path / name)
    conditioning, (text, references, mask, *_) = FAMILIES[name]
    spec, engine = family_spec(name, tmp_path, conditioning), ImageEngine(torch.device("cuda"))
    inputs = {} if text else {"references": (plain_image(),)}
    inputs |= {"mask": left_half()} if mask and not text and not references else {}
    counts: dict[int, Counter[str]] = {}
    for steps in (4, 4, 8):
        device.log.take()
        await draw(engine, image_job(spec, id=f"{steps}", steps=steps, **inputs))
        counts[steps] = Counter()
        for (_, place), count in device.log.waits().items():
            counts[steps]["fence" if FENCE in place else place.partition(":")[0].rpartition("/")[2]] += count
    engine.close()
    each = {place: count / 4 for place, count in (counts[8] - counts[4]).items()}
    assert 0 < each.pop("fence") <= 2  # a step may be two passes
    assert each.pop(TABLES, 0) <= MOST_TABLES
    assert each.keys() == LISTED.get(name, set()), each


async def test_a_mask_over_a_late_start_reads_the_schedule_once(tmp_path: Path) -> None:
    make_family("sana", tmp_path / "sana")
    spec, engine = family_spec("sana", tmp_path, "img2img"), ImageEngine(torch.device("cuda"))
    read = []
    for steps in (4, 4, 8):
        device.log.take()
        await draw(engine, image_job(spec, id=f"{steps}", steps=steps, references=(plain_image(),), mask=left_half()))
        read.append(sum(count for (_, place), count in device.log.waits().items() if "late_start.py" in place))
    assert 0 < read[1] == read[2]
