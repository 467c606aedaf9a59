"""Five turns with the image tool. The images of the shipped starters must show what the turns ask for; those of
untrained ones must be generated and charged."""

import base64
import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from starters.world.checker import judge
from starters.world.claims import Claims, ThingClaim
from tests.support.harness import REPOSITORY, Server, assert_clean, charges

pytestmark = pytest.mark.nightly

TURNS = (
    ("draw a red boat at sea at sunset", Claims(sky="sunset", ground="sea", things=(ThingClaim("boat", "red"),))),
    ("make the boat blue", Claims(sky="sunset", ground="sea", things=(ThingClaim("boat", "blue"),))),
    ("now at night", Claims(sky="night", ground="sea", things=(ThingClaim("boat", "blue"),))),
    ("now by day", Claims(sky="day", ground="sea", things=(ThingClaim("boat", "blue"),))),
    ("now draw a yellow house on grass", Claims(ground="grass", things=(ThingClaim("house", "yellow"),))),
)
SEED = 8  # With each of 1 to 9, starter-beta drew all five right.


@pytest.fixture(scope="module", params=["untrained", "trained"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, weights: Path, chat_configs: Path
) -> Iterator[tuple[Server, bool]]:
    trained = request.param == "trained"
    folder = tmp_path_factory.mktemp("conversation")
    configs = chat_configs
    if trained:
        configs = folder / "model_configs"
        shutil.copytree(REPOSITORY / "model_configs", configs)
    settings = {"preload": "false"}
    running = Server(folder / "home", REPOSITORY / "weights" if trained else weights, configs, settings).start()
    yield running, trained
    running.stop()


def test_five_turns_generate_and_edit(server: tuple[Server, bool]) -> None:
    running, trained = server
    client = running.openai(timeout=900)
    size: Any = {} if trained else {"size": "256x256"}
    options: Any = {} if trained else {"max_output_tokens": 64}
    previous: str | None = None
    for number, (words, claims) in enumerate(TURNS):
        response = client.responses.create(
            model="starter-chat",
            input=words,
            previous_response_id=previous,
            tools=[{"type": "image_generation", "seed": SEED, **size}],
            tool_choice="auto" if trained else "required",
            truncation="auto",
            temperature=0,
            **options,
        )
        (call,) = [item for item in response.output if item.type == "image_generation_call"]
        assert call.status == "completed"
        image = Image.open(io.BytesIO(base64.b64decode(call.result or "")))
        if trained:
            assert judge(image, claims).obeys, f"turn {number + 1}: {words!r} as {call.revised_prompt!r}"
            assert response.output_text
        previous = response.id
    assert charges(running) == len(TURNS)
    assert_clean(running)
