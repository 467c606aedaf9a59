"""Every rule of the interface broken once: status, code and param, no charge, never a 500."""

import base64
import io
import json
import struct
import zlib
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.support.harness import Server, assert_clean, charges

ALPHA, ALPHA_4K = "alpha-image-2-count", "alpha-image-2-4k-count"
BETA, BETA_25 = "beta-3-pro-image-count", "beta-2.5-flash-image-count"


def png(width: int = 64, height: int = 64, mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    Image.new(mode, (width, height)).save(file, "PNG")
    return file.getvalue()


def uri(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def declared_huge() -> bytes:
    """A small PNG whose header declares 100,000 x 100,000."""
    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk)) + png()[33:]


def noisy(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.effect_noise((width, height), 90).save(file, "PNG")
    return file.getvalue()


def body(**fields: Any) -> dict[str, Any]:
    return {"model": ALPHA, "prompt": "a boat", "size": "256x256", **fields}


BAD_BODIES: list[tuple[str, dict[str, Any], int, str | None, str | None]] = [
    ("no prompt", {"model": ALPHA}, 400, "missing_required_parameter", "prompt"),
    ("null prompt", body(prompt=None), 400, "missing_required_parameter", "prompt"),
    ("empty prompt", body(prompt=""), 400, "string_below_min_length", "prompt"),
    ("blank prompt", body(prompt=" \n"), 400, "string_below_min_length", "prompt"),
    ("long prompt", body(prompt="x" * 40_000), 400, "string_above_max_length", "prompt"),
    ("prompt of a wrong type", body(prompt=5), 400, "invalid_type", "prompt"),
    ("unknown model", body(model="gamma"), 404, "model_not_found", "model"),
    ("model of a wrong type", body(model=["x"]), 400, "invalid_type", "model"),
    ("n as text", body(n="2"), 400, "invalid_type", "n"),
    ("n of 0", body(n=0), 400, "integer_below_min_value", "n"),
    ("n of 11", body(n=11), 400, "integer_above_max_value", "n"),
    ("n as a fraction", body(n=1.5), 400, "invalid_type", "n"),
    ("n as a boolean", body(n=True), 400, "invalid_type", "n"),
    ("no guidance", body(negative_prompt="x", guidance=1), 400, "unsupported_parameter", "negative_prompt"),
    ("quality with beta", body(model=BETA, quality="high"), 400, "unsupported_parameter", "quality"),
    ("unknown quality", body(quality="best"), 400, "invalid_value", "quality"),
    ("size in words", body(size="large"), 400, "invalid_value", "size"),
    ("ratio not accepted", body(model=ALPHA_4K, size="1:1"), 400, "invalid_value", "size"),
    ("long ratio on alpha", body(size="8:1"), 400, "invalid_value", "size"),
    ("size of no ratio", body(size="1000x880"), 400, "invalid_value", "size"),
    ("size too large", body(size="4096x4096"), 400, "invalid_value", "size"),
    ("4K size on a 1K model", body(size="3840x2160"), 400, "invalid_value", "size"),
    ("size too small", body(size="16x16"), 400, "invalid_value", "size"),
    ("size negative", body(size="-1024x1024"), 400, "invalid_value", "size"),
    ("size of a wrong type", body(size=1024), 400, "invalid_type", "size"),
    ("response_format", body(response_format="xml"), 400, "invalid_value", "response_format"),
    ("output_format", body(output_format="gif"), 400, "invalid_value", "output_format"),
    ("compression of PNG", body(output_compression=50), 400, "unsupported_parameter", "output_compression"),
    (
        "compression over 100",
        body(output_format="jpeg", output_compression=101),
        400,
        "integer_above_max_value",
        "output_compression",
    ),
    ("transparent", body(background="transparent"), 400, "unsupported_value", "background"),
    ("partial images alone", body(partial_images=2), 400, "unsupported_parameter", "partial_images"),
    ("four partial images", body(stream=True, partial_images=4), 400, "integer_above_max_value", "partial_images"),
    ("an unsupported field of OpenAI's", body(svg={"model": "x"}), 400, "unsupported_parameter", "svg"),
    ("a seed under -1, which is random", body(seed=-2), 400, "integer_below_min_value", "seed"),
    ("steps of 0", body(steps=0), 400, "integer_below_min_value", "steps"),
    ("steps over 200", body(steps=201), 400, "integer_above_max_value", "steps"),
    ("strength over 1", body(strength=1.5), 400, "decimal_above_max_value", "strength"),
    ("strength below 0", body(strength=-0.1), 400, "decimal_below_min_value", "strength"),
    ("strength without an image", body(strength=0.5), 400, "unsupported_parameter", "strength"),
    (
        "strength of native references",
        body(model=BETA, image=[uri(png())], strength=0.5),
        400,
        "unsupported_parameter",
        "strength",
    ),
    ("guidance of a distilled model", body(model=BETA, guidance=5.0), 400, "unsupported_parameter", "guidance"),
    ("17 references", body(model=BETA, image=[uri(png())] * 17), 400, "array_above_max_length", "image"),
    ("image of a wrong type", body(image=5), 400, "invalid_type", "image"),
    ("image item of a wrong type", body(image=[5]), 400, "invalid_type", "image[0]"),
    ("not base64", body(image=["data:image/png;base64,@@@@"]), 400, "invalid_image_file", "image[0]"),
    ("not an image", body(image=[uri(b"hello")]), 400, "invalid_image_file", "image[0]"),
    ("empty image", body(image=["data:image/png;base64,"]), 400, "invalid_image_file", "image[0]"),
    ("truncated image", body(image=[uri(noisy(200, 200)[:9000])]), 400, "invalid_image_file", "image[0]"),
    ("second of two is bad", body(model=BETA, image=[uri(png()), uri(b"x")]), 400, "invalid_image_file", "image[1]"),
    ("100,000 pixels square", body(image=[uri(declared_huge())]), 413, "request_too_large", "image[0]"),
    ("a ratio no model supports", body(size="1000x50"), 400, "invalid_value", "size"),
    ("a URL with fetching off", body(image=["https://example.com/a.png"]), 400, "invalid_image_url", "image[0]"),
    ("a plain http URL", body(image=["http://example.com/a.png"]), 400, "invalid_image_url", "image[0]"),
    ("a file URL", body(image=["file:///etc/passwd"]), 400, "invalid_image_url", "image[0]"),
    (
        "a result that is not there",
        body(image=[f"http://localhost/cdn/{'0' * 32}.png"]),
        400,
        "invalid_image_url",
        "image[0]",
    ),
    ("a mask alone", body(mask=uri(png(64, 64, "L"))), 400, "invalid_value", "mask"),
]


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"), [row[1:] for row in BAD_BODIES], ids=[r[0] for r in BAD_BODIES]
)
def test_a_bad_body_is_refused_by_field(
    server: Server, fields: dict[str, Any], status: int, code: str | None, param: str | None
) -> None:
    with server.http() as client:
        answer = client.post("/v1/images/generations", json=fields)
    assert_error(answer, status, code, param)


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"42", b'"x"', b"{", b"\xff\xfe", b"null", b"[" * 100_000, b'{"model": "\\ud800"}']
)
def test_a_body_that_is_no_json_object_is_refused(server: Server, raw: bytes) -> None:
    with server.http() as client:
        answer = client.post("/v1/images/generations", content=raw, headers={"Content-Type": "application/json"})
    assert_error(answer, 400, None, None)


def test_unknown_fields_are_ignored_and_named(server: Server) -> None:
    with server.http() as client:
        answer = client.post("/v1/images/generations", json=body(guidence=3, colour="red"))
    assert answer.status_code == 200
    assert answer.headers["x-darkroom-ignored"] == "colour, guidence"


BAD_FORMS: list[tuple[str, dict[str, str], list[tuple[str, bytes]], int, str | None, str | None]] = [
    ("no image", {"prompt": "x"}, [("other", png())], 400, "missing_required_parameter", "image"),
    ("no prompt", {}, [("image", png())], 400, "missing_required_parameter", "prompt"),
    ("17 files", {"prompt": "x", "model": BETA}, [("image[]", png())] * 17, 400, "array_above_max_length", "image"),
    ("n in words", {"prompt": "x", "n": "two"}, [("image", png())], 400, "invalid_type", "n"),
    (
        "quality with beta",
        {"prompt": "x", "model": BETA, "quality": "low"},
        [("image", png())],
        400,
        "unsupported_parameter",
        "quality",
    ),
    (
        "image as text",
        {"prompt": "x", "image": "https://example.com/a.png"},
        [("other", b"")],
        400,
        "invalid_value",
        "image",
    ),
    ("a file of 60 MB", {"prompt": "x"}, [("image", png() + b"\0" * 60_000_000)], 413, "request_too_large", "image[0]"),
    (
        "mask of another size",
        {"prompt": "x"},
        [("image", png()), ("mask", png(32, 64, "RGBA"))],
        400,
        "invalid_image_file",
        "mask",
    ),
    ("a corrupt file", {"prompt": "x"}, [("image", b"\x89PNG\r\n\x1a\nnope")], 400, "invalid_image_file", "image[0]"),
]


@pytest.mark.parametrize(
    ("texts", "files", "status", "code", "param"), [r[1:] for r in BAD_FORMS], ids=[r[0] for r in BAD_FORMS]
)
def test_a_bad_form_is_refused_by_field(
    server: Server,
    texts: dict[str, str],
    files: list[tuple[str, bytes]],
    status: int,
    code: str | None,
    param: str | None,
) -> None:
    parts = [(name, ("upload", data, "application/octet-stream")) for name, data in files]
    with server.http() as client:
        answer = client.post("/v1/images/edits", data=texts, files=parts)
    assert_error(answer, status, code, param)


def test_a_json_body_at_edits_is_415(server: Server) -> None:
    with server.http() as client:
        assert_error(client.post("/v1/images/edits", json=body()), 415, "unsupported_media_type", None)


def test_a_truncated_form_is_400(server: Server) -> None:
    with server.http() as client:
        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        answer = client.post("/v1/images/edits", content=b"--x\r\nnonsense", headers=headers)
    assert answer.status_code == 400
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("header", "code"),
    [({}, None), ({"Authorization": "Bearer"}, None), ({"Authorization": "Basic abc"}, None),
     ({"Authorization": "Bearer sk-wrong"}, "invalid_api_key")],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/models", "/v1/images/generations", "/v1/images/edits"])
def test_an_invalid_key_is_401(server: Server, path: str, header: dict[str, str], code: str | None) -> None:
    method = "GET" if path == "/v1/models" else "POST"
    answer = httpx.request(method, server.base + path, headers=header, timeout=60, trust_env=False)
    assert_error(answer, 401, code, None)
    if code:
        assert "Incorrect API key provided" in answer.json()["error"]["message"]


def test_a_key_without_the_group_lists_the_models_and_cannot_call_them(server: Server) -> None:
    key = server.new_key("beta only", groups=["beta-image-per-call"])
    with server.http(key) as client:
        assert len(client.get("/v1/models").json()["data"]) == 10
        assert_error(client.post("/v1/images/generations", json=body()), 403, "group_mismatch", "model")
        assert client.post("/v1/images/generations", json=body(model=BETA_25)).status_code == 200


@pytest.mark.parametrize(
    "path", ["embeddings", "audio/speech", "audio/transcriptions", "files", "files/file-1", "assistants"]
)
def test_unsupported_families_say_so(server: Server, path: str) -> None:
    with server.http() as client:
        answer = client.post(f"/v1/{path}", json={})
    assert_error(answer, 404, "unsupported_endpoint", None)
    assert "not supported" in answer.json()["error"]["message"]


def test_unknown_urls_and_methods_have_the_same_body(server: Server) -> None:
    with server.http() as client:
        assert_error(client.get("/v1/nothing"), 404, "unknown_url", None)
        assert_error(client.get("/v1/images/generations"), 405, "method_not_allowed", None)
        assert_error(client.get("/v1/models/gamma"), 404, "model_not_found", "model")
        assert_error(client.get("/cdn/../../etc/passwd"), 404, None, None)
        assert_error(client.get(f"/cdn/{'0' * 32}.png"), 404, "result_not_found", None)


def test_nothing_above_was_charged(server: Server) -> None:
    """The whole table again, between two readings of the ledger."""
    before = charges(server)
    with server.http() as client:
        for _, fields, status, _, _ in BAD_BODIES:
            assert client.post("/v1/images/generations", json=fields).status_code == status
    assert charges(server) == before
    assert_clean(server)


def assert_error(answer: httpx.Response, status: int, code: str | None, param: str | None) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["x-request-id"].startswith("req_")
    error = json.loads(answer.text)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    if code is not None:
        assert error["code"] == code, error
    assert error["param"] == param, error
