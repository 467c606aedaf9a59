"""Images that are signed with the operator's certificate."""

import io
import re
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from PIL import Image

from pipelines.protocol.images import EncodedImage, Encoding, Finished, ImageFormat
from pipelines.protocol.provenance import DigitalSource
from server.backends.signing import open_signer
from server.errors import StartError
from tests.support.certificates import Private, write_certificate
from tests.support.marks import DRAWN, EDITED, c2pa_manifest

pytest.importorskip("c2pa")

END = "-----END CERTIFICATE-----\n"


def image(kind: str) -> bytes:
    file = io.BytesIO()
    Image.effect_noise((64, 48), 80).convert("RGB").save(file, kind, lossless=True)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["png", "jpeg", "webp"])
@pytest.mark.parametrize(
    ("source", "term", "actions"),
    [
        ("trainedAlgorithmicMedia", DRAWN, ["c2pa.created"]),
        ("compositeWithTrainedAlgorithmicMedia", EDITED, ["c2pa.created", "c2pa.edited"]),
    ],
)
async def test_a_signed_image_says_where_it_comes_from(
    tmp_path: Path, kind: ImageFormat, source: DigitalSource, term: str, actions: list[str]
) -> None:
    signer = open_signer(*write_certificate(tmp_path), marks=True)
    assert signer is not None
    plain = EncodedImage(image(kind), f"image/{kind}", 64, 48, 7)
    finished = await signer.signed(Finished((plain, plain), 1.0, 1.0), Encoding(kind, source=source))
    for signed in finished.images:
        state, found, problems = c2pa_manifest(signed.data, f"image/{kind}")
        assert (state, problems) == ("Valid", ["signingCredential.untrusted"])
        assert [each["action"] for each in found] == actions
        assert {each["digitalSourceType"] for each in found} == {term}
        assert len(signed.data) - len(plain.data) < 8_000
        with Image.open(io.BytesIO(signed.data)) as after, Image.open(io.BytesIO(plain.data)) as before:
            assert after.tobytes() == before.tobytes()
    changed = bytearray(finished.images[0].data)
    changed[len(plain.data) * 2 // 3 + (3_000 if kind != "webp" else 0)] ^= 1  # of the pixels
    assert c2pa_manifest(bytes(changed), f"image/{kind}")[0] == "Invalid"
    unmarked = await signer.signed(Finished((plain,), 1.0, 1.0), Encoding(kind, source=None))
    assert unmarked.images == (plain,)


@pytest.mark.parametrize(
    "key",
    [
        ec.generate_private_key(ec.SECP384R1()),
        ed25519.Ed25519PrivateKey.generate(),
        rsa.generate_private_key(65537, 2048),
    ],
)
def test_each_kind_of_key_signs(tmp_path: Path, key: Private) -> None:
    signer = open_signer(*write_certificate(tmp_path, key), marks=True)
    assert signer is not None
    signed = signer.sign(image("png"), "image/png", "trainedAlgorithmicMedia")
    assert c2pa_manifest(signed, "image/png")[0] == "Valid"


def test_without_a_certificate_nothing_is_signed() -> None:
    assert open_signer(None, None, marks=False) is None


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda chain, key: chain.write_text("no certificate"), "can't sign images"),
        (lambda chain, key: key.write_text("no key"), "can't sign images"),
        (lambda chain, key: chain.unlink(), "No such file"),
        (lambda chain, key: write_certificate(chain.parent, days=-1), "not valid at time of signing"),
        (lambda chain, key: key.write_bytes(_another_key(chain.parent)), "does not match"),
        (lambda chain, key: chain.write_text(chain.read_text().partition(END)[2]), "self-signed|match"),
    ],
)  # fmt: skip
def test_a_certificate_that_cannot_sign_is_refused_in_one_sentence(tmp_path: Path, spoil: object, said: str) -> None:
    chain, key = write_certificate(tmp_path)
    spoil(chain, key)  # type: ignore[operator]  # one of the functions above
    with pytest.raises(StartError) as refused:
        open_signer(chain, key, marks=True)
    message = str(refused.value)
    assert message.startswith("DARKROOM_C2PA_CERTIFICATE ")
    assert re.search(said, message), message
    assert "\n" not in message


def test_half_of_a_pair_and_images_without_a_mark_are_refused(tmp_path: Path) -> None:
    chain, key = write_certificate(tmp_path)
    with pytest.raises(StartError, match="set both or none"):
        open_signer(chain, None, marks=True)
    with pytest.raises(StartError, match="DARKROOM_MARK_PICTURES=true"):
        open_signer(chain, key, marks=False)


def _another_key(folder: Path) -> bytes:
    other = folder / "other"
    other.mkdir()
    return write_certificate(other)[1].read_bytes()
