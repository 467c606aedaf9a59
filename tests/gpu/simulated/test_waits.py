"""Between two steps the host waits for the device at the fence alone; what a library waits for is listed."""

from collections import Counter
from pathlib import Path

import pytest
import torch

from pipelines.images.engine import ImageEngine
from tests.engines.conftest import left_half, plain_image
from tests.engines.test_families import CAPABILITIES, NIGHTLY, family_spec
from tests.gpu.conftest import draw
from tests.simulated_gpu import device
from tests.support.image_jobs import image_job
from tests.support.tiny_families import NEED_TORCHVISION, make_family

FENCE = " catch_up"
FAMILIES = {
    name: (conditioning, able)
    for name, (conditioning, able) in {**CAPABILITIES, **NIGHTLY}.items()
    if able[-1] and name not in NEED_TORCHVISION  # any number of steps
}
ALWAYS = ("flux", "lumina2", "cogview4")
TABLES = "position_tables.py"  # two of each pass; every layer copied them before
MOST_TABLES = 4  # of a step that is two passes
PNDM = {"scheduling_pndm.py"}  # its tables are on the host, and the time of a step is on the device
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
}


@pytest.mark.parametrize(
    "name", [*ALWAYS, *(pytest.param(name, marks=pytest.mark.nightly) for name in FAMILIES if name not in ALWAYS)]
)
async def test_a_step_waits_at_its_fence_alone(name: str, tmp_path: Path) -> None:
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
