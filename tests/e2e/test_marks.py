"""Every file that a client gets says that a model made it, in each format and on each way, and nothing of the caller's
own provenance data is in it."""

import base64
import io
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.support.certificates import write_certificate
from tests.support.harness import MakeServer, Server, assert_clean
from tests.support.marks import DRAWN, EDITED, c2pa_manifest, xmp_source

BODY: dict[str, Any] = {"prompt": "a star", "size": "256x256", "steps": 2, "model": "alpha-image-2-count", "seed": 7}
KINDS = ("png", "jpeg", "webp")
CAMERA = """<?xpacket begin="" id="W5M0MpCehiHzreSzNTczkc9d"?><x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF
 xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description rdf:about=""
 xmlns:Iptc4xmpExt="http://iptc.org/std/Iptc4xmpExt/2008-02-29/" xmlns:photoshop="http://ns.adobe.com/photoshop/1.0/"
 Iptc4xmpExt:DigitalSourceType="http://cv.iptc.org/newscodes/digitalsourcetype/digitalCapture"
 photoshop:Credit="caller of a test"/></rdf:RDF></x:xmpmeta><?xpacket end="w"?>"""


@pytest.fixture
def server(tiny_server: Server) -> Server:
    return tiny_server


def photo(kind: str = "jpeg") -> bytes:
    """A caller's file, with provenance data of its own."""
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x013B] = "caller of a test"  # Artist
    image = Image.effect_noise((256, 256), 90).convert("RGB")
    image.save(file, kind, exif=exif, xmp=CAMERA.encode())
    return file.getvalue()


def mask() -> bytes:
    file = io.BytesIO()
    image = Image.new("RGBA", (256, 256), "black")
    image.paste((0, 0, 0, 0), (64, 64, 192, 192))
    image.save(file, "PNG")
    return file.getvalue()


def drawn(server: Server, **changes: Any) -> bytes:
    """The file of the answer, which is the file of its URL."""
    with server.http() as client:
        answer = client.post("/v1/images/generations", json=BODY | changes)
        assert answer.status_code == 200, answer.text
        (item,) = answer.json()["data"]
        data = base64.b64decode(item["b64_json"])
        assert client.get(item["url"]).content == data
    return data


def edited(server: Server, reference: bytes, **changes: Any) -> bytes:
    files = {"image": ("a", reference, "image/jpeg"), **({"mask": ("m", mask(), "image/png")} if changes else {})}
    with server.http() as client:
        answer = client.post("/v1/images/edits", data={"prompt": "a star", "model": BODY["model"]}, files=files)
        assert answer.status_code == 200, answer.text
        return base64.b64decode(answer.json()["data"][0]["b64_json"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_drawn_image_is_marked(server: Server, kind: str) -> None:
    data = drawn(server, output_format=kind)
    assert xmp_source(data) == DRAWN
    with Image.open(io.BytesIO(data)) as image:
        assert (image.format, image.size) == (kind.upper(), (256, 256))
        image.load()
        if kind == "png":
            assert image.info["prompt"] == "a star"


@pytest.mark.parametrize("kind", KINDS)
def test_previews_are_marked(server: Server, kind: str) -> None:
    body = BODY | {"output_format": kind, "stream": True, "partial_images": 2, "steps": 6}
    with server.http() as client, client.stream("POST", "/v1/images/generations", json=body) as answer:
        events = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]
    previews = [base64.b64decode(each["b64_json"]) for each in events if each["type"].endswith("partial_image")]
    assert previews
    assert {xmp_source(each) for each in previews} == {DRAWN}


@pytest.mark.parametrize("kind", KINDS)
def test_an_edit_is_marked_as_one_and_has_nothing_of_the_callers_data(server: Server, kind: str) -> None:
    for data in (edited(server, photo(kind)), edited(server, photo(kind), mask=True)):
        assert xmp_source(data) == EDITED
        assert b"digitalCapture" not in data
        assert b"caller of a test" not in data


def test_a_request_cannot_choose_or_leave_out_the_mark(server: Server) -> None:
    wanted = {"source": None, "digital_source_type": "digitalCapture", "mark_pictures": False, "metadata": {"xmp": "x"}}
    assert xmp_source(drawn(server, **wanted)) == DRAWN


@pytest.mark.nightly
def test_an_operator_switches_marks_off(make_server: MakeServer) -> None:
    plain = make_server(mark_pictures="false")
    for kind in KINDS:
        assert xmp_source(drawn(plain, output_format=kind)) is None


@pytest.mark.nightly
def test_an_operators_certificate_signs_drawn_and_edited_images(make_server: MakeServer, tmp_path: Path) -> None:
    pytest.importorskip("c2pa")
    chain, key = write_certificate(tmp_path)
    signing = make_server(c2pa_certificate=str(chain), c2pa_key=str(key))
    for kind in KINDS:
        data = drawn(signing, output_format=kind)
        state, actions, problems = c2pa_manifest(data, f"image/{kind}")
        assert (state, problems) == ("Valid", ["signingCredential.untrusted"])
        assert [(each["action"], each["digitalSourceType"]) for each in actions] == [("c2pa.created", DRAWN)]
        assert xmp_source(data) == DRAWN
    state, actions, _ = c2pa_manifest(edited(signing, drawn(signing)), "image/png")
    assert (state, actions[0]["digitalSourceType"]) == ("Valid", EDITED)
    assert_clean(signing)


def test_a_certificate_that_cannot_sign_ends_the_start_with_one_sentence(
    tmp_path: Path, tiny: tuple[Path, Path]
) -> None:
    pytest.importorskip("c2pa")
    chain, key = write_certificate(tmp_path)
    key.write_text("no key")
    server = Server(tmp_path / "home", *tiny, {"c2pa_certificate": str(chain), "c2pa_key": str(key)})
    server.start(wait=False)
    assert server.process is not None
    try:
        assert server.process.wait(60) != 0
    except subprocess.TimeoutExpired:
        server.kill()
        raise
    assert "DARKROOM_C2PA_CERTIFICATE and DARKROOM_C2PA_KEY can't sign images" in server.log
    assert "Traceback" not in server.log
