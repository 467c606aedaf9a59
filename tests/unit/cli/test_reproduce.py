"""What `darkroom reproduce` reads of a file, sends, and says of two images."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image, PngImagePlugin

from pipelines.images.file_comparison import Unreadable, difference, main, read_image
from pipelines.images.job_files import metadata_of
from pipelines.images.scheduling.batching import Row
from pipelines.protocol.finished_image import encode_file
from pipelines.protocol.images import CheckpointSpec, Encoding, ImageFormat
from server.cli.reproduce import check_fields, compare_files, inputs_of, outcome, request_of
from server.errors import StartError
from server.schemas.images import GenerationBody, UpscaleBody
from server.schemas.validation import validate
from tests.support.image_jobs import image_job

SEED = 2**63 - 2
METADATA: dict[str, Any] = {
    "prompt": "7", "model": "alpha", "checkpoint": "starter-alpha", "size": "64x48", "seed": SEED, "steps": 12,
    "guidance": 2.5, "scheduler": "DDIM", "loras": {"ink": 0.8}, "software": "Darkroom", "batch": "merged",
    "prompt_tokens": {"used": 3, "of": 77},
    "drawn_by": {"torch": "2.9.0", "weights": "ab", "device": "the CPU (2 threads)"},
}  # fmt: skip


def save(file: Path, colour: tuple[int, int, int] = (9, 8, 7), format_: ImageFormat = "png", **changes: Any) -> Path:
    file.write_bytes(encode_file(Image.new("RGB", (64, 48), colour), Encoding(format_), {**METADATA, **changes}))
    return file


@pytest.mark.parametrize("format_", ["png", "jpeg", "webp"])
def test_every_format_says_what_draws_it_again(tmp_path: Path, format_: ImageFormat) -> None:
    found = main([save(tmp_path / "a", format_=format_)])
    body = request_of(found, ["DDIM"])
    assert body == {
        "prompt": "7", "model": "alpha", "size": "64x48", "seed": SEED, "steps": 12, "guidance": 2.5,
        "scheduler": "DDIM", "loras": {"ink": 0.8}, "output_format": format_, "n": 1, "batch": "exact",
        "enhance": False, "response_format": "b64_json",
    }  # fmt: skip
    assert "scheduler" not in request_of(found, [])  # the model's own is no choice of a request


@pytest.mark.parametrize("format_", ["png", "jpeg", "webp"])
def test_the_quality_of_a_file_is_sent_as_the_number_that_it_takes(tmp_path: Path, format_: ImageFormat) -> None:
    """Older files have it as a text. A PNG has none: one that says so was converted."""
    spec = CheckpointSpec("alpha", Path(), None, "alpha", "img2img", 1)
    written = metadata_of(Row(image_job(spec, encoding=Encoding(format_, 80)), 0, 0.0))
    assert written.get("output_compression") == (None if format_ == "png" else 80)
    for quality in (written.get("output_compression"), "80"):
        body = request_of(main([save(tmp_path / "a", format_=format_, output_compression=quality)]), [])
        assert body.get("output_compression") == (None if format_ == "png" else 80)
        validate(GenerationBody, body, strict=True)


@pytest.mark.parametrize("format_", ["png", "jpeg", "webp"])
def test_a_prompt_in_any_script_is_sent_as_it_was(tmp_path: Path, format_: ImageFormat) -> None:
    prompt = "一艘红色的船, très près"
    assert request_of(main([save(tmp_path / "a", format_=format_, prompt=prompt)]), [])["prompt"] == prompt


@pytest.mark.parametrize("format_", ["png", "jpeg", "webp"])
@pytest.mark.parametrize(("scale", "prompt"), [(2, "a boat"), ("1K", "")])
def test_an_enlarged_image_is_enlarged_again(
    tmp_path: Path, format_: ImageFormat, scale: int | str, prompt: str
) -> None:
    found = main([save(tmp_path / "a", format_=format_, scale=scale, prompt=prompt, made_from=["1f"])])
    check_fields(found)
    body = request_of(found, ["DDIM"])
    assert body == {
        **({"prompt": prompt} if prompt else {}), "model": "alpha", "scale": scale, "seed": SEED,
        "output_format": format_, "response_format": "b64_json",
    }  # fmt: skip
    body |= inputs_of(found["metadata"], [tmp_path / "a"], None, [])
    assert validate(UpscaleBody, body, strict=True).scale == scale
    with pytest.raises(StartError, match="made from 1 image"):
        inputs_of(found["metadata"], [], None, [])


@pytest.mark.parametrize("format_", ["png", "jpeg", "webp"])
def test_what_no_request_asks_for_is_refused_by_name(tmp_path: Path, format_: ImageFormat) -> None:
    for name in ("layers", "of_a_later_version"):
        with pytest.raises(StartError, match=f"'{name}'"):
            check_fields(main([save(tmp_path / "a", format_=format_, **{name: 4})]))
    check_fields(main([save(tmp_path / "a", format_=format_, **{"date:create": "2026", "Author": "me"})]))


@pytest.mark.parametrize("format_", ["png", "jpeg", "webp"])
def test_a_prompt_that_was_cut_to_fit_is_refused_by_name(tmp_path: Path, format_: ImageFormat) -> None:
    check_fields(main([save(tmp_path / "a", format_=format_, prompt="and so on…")]))
    for name, fields in (
        ("prompt", {"prompt": "船" * 32_000}),
        ("negative_prompt", {"negative_prompt": "船" * 32_000}),
        ("prompt", dict.fromkeys(("prompt", "negative_prompt", "original_prompt"), "é" * 32_000)),
    ):
        found = main([save(tmp_path / "a", format_=format_, **fields)])
        if format_ == "png":
            check_fields(found)
            continue
        with pytest.raises(StartError, match=f"'{name}' was cut"):
            check_fields(found)


def test_an_older_image_is_drawn_by_what_its_version_took_of_the_seed(tmp_path: Path) -> None:
    """It took the lowest 32 bits, and noise of some steps from elsewhere; of another server that is not known."""
    older = {**METADATA["drawn_by"], "darkroom": "0.2.0"}
    for drawn_by, seed in ((older, SEED % 2**32), ({**older, "seeds": "64 bits"}, SEED), (METADATA["drawn_by"], SEED)):
        file = save(tmp_path / "a", drawn_by=drawn_by)
        assert request_of(main([file]), [])["seed"] == seed
    other = save(tmp_path / "b", (9, 8, 10), drawn_by={**older, "seeds": "64 bits"}, seed=SEED % 2**32)
    told, _ = outcome(main([save(tmp_path / "a", drawn_by=older, batch="exact"), other]))
    assert told[1] == "In its version, the noise of some schedulers was not of the image's seed."
    assert told[2:] == ["drawn_by.seeds: nothing -> 64 bits", f"seed: {SEED} -> {SEED % 2**32}"]


@pytest.mark.parametrize("format_", ["png", "webp"])
def test_a_checkpoint_whose_noise_is_of_no_seed_is_named_as_the_reason(tmp_path: Path, format_: ImageFormat) -> None:
    first = save(tmp_path / "a", format_=format_, batch="exact")
    other = save(tmp_path / "b", (9, 8, 90), format_=format_, batch="exact", reproducible=False)
    for pair in ([first, other], [other, first]):
        assert outcome(main(pair))[0][1] == "This checkpoint draws other noise each time, whatever the seed."
    assert outcome(main([other, other]))[1], "the same by chance is the same"


def test_a_file_of_another_program_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    Image.new("RGB", (8, 8)).save(file)
    with pytest.raises(StartError, match=r"a\.png has no metadata of Darkroom"):
        compare_files(file)
    for texts in (
        {"prompt": "{}", "workflow": "{}"},
        {"prompt": "x", "seed": "random"},
        {"prompt": "x", "seed": "1", "controls": "edges"},
    ):
        chunks = PngImagePlugin.PngInfo()
        for name, text in texts.items():
            chunks.add_itxt(name, text)
        Image.new("RGB", (8, 8)).save(file, pnginfo=chunks)
        with pytest.raises(StartError, match=r"a\.png has no metadata of Darkroom"):
            compare_files(file)
    file.write_bytes(b"words")
    with pytest.raises(Unreadable, match=r"a\.png is no image"):
        main([file])


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
            inputs_of(made, *given)
    fields = inputs_of(made, [file], file, [f"edges={file}"])
    assert fields["image"] == [fields["mask"]]
    assert fields["controls"]["edges"] == {"image": fields["mask"], "strength": 0.7}
    with pytest.raises(StartError, match="no mask"):
        inputs_of(METADATA, [], file, [])


def test_equal_pixels_are_the_same_whatever_the_files_say(tmp_path: Path) -> None:
    found = compare_files(save(tmp_path / "one"), save(tmp_path / "two", batch="exact"))
    assert outcome(found) == (["The same, bit for bit: all 3,072 pixels."], True)


def test_what_differs_is_named(tmp_path: Path) -> None:
    weights = {**METADATA["drawn_by"], "weights": "cd"}
    other = save(tmp_path / "other", (9, 8, 10), batch="exact", drawn_by=weights, adapters={"ink": "12"})
    told, same = outcome(main([save(tmp_path / "one"), other]))
    assert not same
    assert told[0] == "Not the same: 3,072 of 3,072 pixels differ, by 3 of 255 at most."
    assert "shared forward passes" in told[1]
    assert told[2:] == ["adapters: nothing -> {'ink': '12'}", "drawn_by.weights: ab -> cd"]
    older = tmp_path / "older"
    older.write_bytes(encode_file(Image.new("RGB", (64, 48)), Encoding(), {"prompt": "a", "seed": 1}))
    assert "earlier version" in outcome(main([older, other]))[0][1]
    Image.new("RGB", (64, 64)).save(tmp_path / "larger.png")
    assert difference(read_image(other), read_image(tmp_path / "larger.png")) is None
