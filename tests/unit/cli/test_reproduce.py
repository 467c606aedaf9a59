"""What `darkroom reproduce` reads of a file, sends, and says of two images."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from pipelines.protocol.finished_image import encode_file
from pipelines.protocol.images import Encoding, ImageFormat
from server.cli.reproduce import Drawn, _inputs, compare, read_drawn, request_of
from server.errors import StartError

SEED = 2**63 - 2
METADATA: dict[str, Any] = {
    "prompt": "7", "model": "alpha", "checkpoint": "starter-alpha", "size": "64x48", "seed": SEED, "steps": 12,
    "guidance": 2.5, "scheduler": "DDIM", "loras": {"ink": 0.8}, "software": "Darkroom", "batch": "merged",
    "prompt_tokens": {"used": 3, "of": 77},
    "drawn_by": {"torch": "2.9.0", "weights": "ab", "device": "the CPU (2 threads)"},
}  # fmt: skip


def drawn(colour: tuple[int, int, int] = (9, 8, 7), format_: ImageFormat = "png", **changes: Any) -> Drawn:
    data = encode_file(Image.new("RGB", (64, 48), colour), Encoding(format_), {**METADATA, **changes})
    return read_drawn(data, "a.png")


@pytest.mark.parametrize("format_", ["png", "jpeg", "webp"])
def test_every_format_says_what_draws_it_again(format_: ImageFormat) -> None:
    body = request_of(drawn(format_=format_), ["DDIM"])
    assert body == {
        "prompt": "7", "model": "alpha", "size": "64x48", "seed": SEED, "steps": 12, "guidance": 2.5,
        "scheduler": "DDIM", "loras": {"ink": 0.8}, "output_format": format_, "n": 1, "batch": "exact",
        "response_format": "b64_json",
    }  # fmt: skip
    assert "scheduler" not in request_of(drawn(), [])  # the model's own is no choice of a request


def test_a_file_of_another_program_is_refused_by_name(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "PNG")
    with pytest.raises(StartError, match=r"a\.png has no metadata of Darkroom"):
        read_drawn(file.getvalue(), "a.png")
    with pytest.raises(StartError, match=r"a\.png is no image"):
        read_drawn(b"words", "a.png")


def test_the_images_that_it_was_made_from_are_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "boat.png"
    Image.new("RGB", (8, 8)).save(file)
    made = {**METADATA, "made_from": ["1f"], "mask": "2f", "controls": {"edges": 0.7}}
    for given, message in (
        (([], file, ["edges=x"]), "made from 1 image"),
        (([file], None, ["edges=x"]), "made with a mask"),
        (([file], file, []), "--control edges=FILE"),
        (([file], file, [f"edges={file}", "depth=x"]), "--control depth=FILE"),
    ):
        with pytest.raises(StartError, match=message):
            _inputs(made, *given)
    fields = _inputs(made, [file], file, [f"edges={file}"])
    assert fields["image"] == [fields["mask"]]
    assert fields["controls"]["edges"] == {"image": fields["mask"], "strength": 0.7}
    with pytest.raises(StartError, match="no mask"):
        _inputs(METADATA, [], file, [])


def test_equal_pixels_are_the_same_whatever_the_files_say() -> None:
    told, same = compare(drawn(), drawn(batch="exact"))
    assert (told, same) == (["The same, bit for bit: all 3,072 pixels."], True)


def test_what_differs_is_named() -> None:
    other = drawn((9, 8, 10), batch="exact", drawn_by={**METADATA["drawn_by"], "weights": "cd"}, adapters={"ink": "12"})
    told, same = compare(drawn(), other)
    assert not same
    assert told[0] == "Not the same: 3,072 of 3,072 pixels differ, by 3 of 255 at most."
    assert "shared forward passes" in told[1]
    assert told[2:] == ["adapters: nothing -> {'ink': '12'}", "drawn_by.weights: ab -> cd"]
    older = read_drawn(
        encode_file(Image.new("RGB", (64, 48)), Encoding(), {"prompt": "a", "seed": 1, "batch": "exact"}), "old.png"
    )
    assert "earlier version" in compare(older, drawn())[0][1]
    assert json.loads(str(request_of(older, [])["seed"])) == 1
