"""A decoded image is what a viewer shows of its file: profiles, PNG's chunks, EXIF; and hostile profiles."""

import io
import random
import struct
import zlib

import pytest
from PIL import Image, ImageChops, ImageDraw

from server.backends.decoding import pixels
from server.backends.decoding.messages import ImageError
from server.backends.decoding.pixels import decode_image, decode_mask
from tests.support.bombs import chunk, encode, with_chunks
from tests.support.icc import COLORANTS, SRGB, endless_profile, gray_profile, press_profile, rgb_profile, shown, stored

ENOUGH = 10**9


def scene() -> Image.Image:
    """Every hue from black to white, and a saturated boat on it."""
    hues = Image.linear_gradient("L").rotate(90).resize((192, 128))
    values = Image.linear_gradient("L").resize((192, 128))
    image = Image.merge("HSV", (hues, Image.new("L", hues.size, 170), values)).convert("RGB")
    draw = ImageDraw.Draw(image)
    draw.polygon([(40, 60), (150, 60), (130, 100), (60, 100)], fill=(200, 30, 30))
    draw.rectangle((90, 20, 100, 60), fill=(20, 160, 60))
    return image


SCENE = scene()
NAMES = list(COLORANTS)


def decode(data: bytes, max_area_px: int = 10**6) -> Image.Image:
    return decode_image(data, max_area_px, ENOUGH).image


def difference(one: Image.Image, other: Image.Image) -> int:
    assert one.size == other.size
    return max(ImageChops.difference(one, other).tobytes())


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("name", NAMES)
def test_an_image_with_a_profile_is_what_a_viewer_shows(name: str, kind: str) -> None:
    profile = rgb_profile(name)
    data = encode(stored(SCENE, profile), kind, icc_profile=profile, quality=95)
    assert difference(decode(data), shown(opened(data).convert("RGB"), profile)) <= 1
    assert difference(decode(data), opened(data).convert("RGB")) > 15  # so the numbers in the file are others


@pytest.mark.parametrize("name", ["Display P3", "Adobe RGB"])
def test_a_converted_scene_is_the_scene_that_was_stored(name: str) -> None:
    profile = rgb_profile(name)
    assert difference(decode(encode(stored(SCENE, profile), icc_profile=profile)), SCENE) <= 2


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
@pytest.mark.parametrize("gamma", [1.0, 1.8, 2.2])
def test_a_gray_image_with_a_profile_is_what_a_viewer_shows(gamma: float, kind: str) -> None:
    profile = gray_profile(gamma)
    data = encode(SCENE.convert("L"), kind, icc_profile=profile)
    assert difference(decode(data), shown(opened(data), profile)) == 0


def test_gray_of_16_bits_keeps_its_shadows() -> None:
    levels = Image.frombytes("I;16", (256, 1), struct.pack("<256H", *range(256)))  # the darkest 256 of 65,536
    decoded = decode(encode(levels, icc_profile=gray_profile(1.0)))
    assert len({decoded.getpixel((x, 0)) for x in range(256)}) == 7  # in 8 bits they are one


def test_a_gray_image_with_a_profile_for_rgb_follows_its_curve() -> None:
    profile = rgb_profile("linear")
    gray = SCENE.convert("L")
    assert difference(decode(encode(gray, icc_profile=profile)), shown(gray.convert("RGB"), profile)) <= 1


def test_a_cmyk_image_is_shown_by_the_profile_of_its_press() -> None:
    profile = press_profile()
    data = encode(SCENE.convert("CMYK"), "JPEG", icc_profile=profile, quality=95)
    assert difference(decode(data), shown(opened(data), profile)) <= 1
    assert difference(decode(data), opened(data).convert("RGB")) > 20


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_colours_are_converted_before_they_lie_on_white(kind: str) -> None:
    profile = rgb_profile("ProPhoto RGB")
    rgba = stored(SCENE, profile)
    rgba.putalpha(Image.linear_gradient("L").resize(SCENE.size))
    data = encode(rgba, kind, icc_profile=profile, lossless=True, exact=True)
    viewed = shown(rgba.convert("RGB"), profile)
    viewed.putalpha(rgba.getchannel("A"))
    white = Image.new("RGBA", rgba.size, "white")
    assert difference(decode(data), Image.alpha_composite(white, viewed).convert("RGB")) <= 1


def test_a_palette_and_gray_with_alpha_are_converted() -> None:
    profile = rgb_profile("ProPhoto RGB")
    paletted = stored(SCENE, profile).quantize(64)
    data = encode(paletted, icc_profile=profile)
    assert difference(decode(data), shown(paletted.convert("RGB"), profile)) <= 1
    gray = SCENE.convert("LA")
    data = encode(gray, icc_profile=gray_profile(1.0))
    assert difference(decode(data), shown(gray.getchannel("L"), gray_profile(1.0))) == 0


def test_a_profile_of_srgb_changes_no_bit() -> None:
    for kind in ("PNG", "WEBP"):
        data = encode(SCENE, kind, icc_profile=SRGB.tobytes(), lossless=True)
        assert decode(data).tobytes() == SCENE.tobytes()


@pytest.mark.parametrize("max_area_px", [10**6, 6_000])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
def test_a_large_image_is_converted_in_strips_all_the_same(
    mode: str, max_area_px: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = gray_profile(1.0) if mode == "L" else rgb_profile("linear")
    data = encode(SCENE.convert(mode), icc_profile=profile)
    whole = decode(data, max_area_px)
    monkeypatch.setattr(pixels, "STRIP_PX", 3000)
    if max_area_px == 10**6:
        assert decode(data, max_area_px).tobytes() == whole.tobytes()
        return
    monkeypatch.setattr(pixels, "SHRUNK_FIRST_PX", 1000)
    assert difference(decode(data, max_area_px).reduce(4), whole.reduce(4)) < 12


def png_with(*chunks: bytes) -> bytes:
    return with_chunks(encode(SCENE), *chunks)


def gamma_chunk(gamma: float) -> bytes:
    return chunk(b"gAMA", struct.pack(">I", round(gamma * 100_000)))


def primaries_chunk(*values: float) -> bytes:
    return chunk(b"cHRM", struct.pack(">8I", *(round(value * 100_000) for value in values)))


P3 = primaries_chunk(0.3127, 0.329, 0.68, 0.32, 0.265, 0.69, 0.15, 0.06)
ADOBE = primaries_chunk(0.3127, 0.329, 0.64, 0.33, 0.21, 0.71, 0.15, 0.06)
OF_SRGB = primaries_chunk(0.3127, 0.329, 0.64, 0.33, 0.3, 0.6, 0.15, 0.06)


@pytest.mark.parametrize(
    ("chunks", "name"),
    [
        ([gamma_chunk(1 / 2.2), P3], "Display P3"),
        ([gamma_chunk(256 / 563), ADOBE], "Adobe RGB"),
        ([gamma_chunk(1.0)], "linear"),
        ([gamma_chunk(1.0), OF_SRGB], "linear"),
        ([chunk(b"cICP", bytes((12, 4, 0, 1)))], "Display P3"),
        ([chunk(b"cICP", bytes((1, 8, 0, 1))), chunk(b"sRGB", b"\0")], "linear"),
    ],
)
def test_the_chunks_of_a_png_say_what_its_colours_are(chunks: list[bytes], name: str) -> None:
    assert difference(decode(png_with(*chunks)), shown(SCENE, rgb_profile(name))) <= 2


@pytest.mark.parametrize(
    "chunks",
    [
        [gamma_chunk(0.45455)],
        [gamma_chunk(0.45455), OF_SRGB],
        [chunk(b"sRGB", b"\0"), gamma_chunk(0.3), P3],
        [chunk(b"cICP", bytes((1, 13, 0, 1))), gamma_chunk(1.0)],
        [chunk(b"cICP", bytes((12, 13, 0, 0)))],
        [chunk(b"cICP", bytes((12, 13, 9, 1)))],
        [chunk(b"cICP", b"")],
        [gamma_chunk(0.0)],
        [gamma_chunk(1.0), primaries_chunk(0.3, 0, 0, 0, 0, 0, 0, 0)],
        [primaries_chunk(0.3127, 0.329, *[0.3, 0.3] * 3)],
    ],
)
def test_chunks_of_srgb_or_of_nothing_possible_change_no_bit(chunks: list[bytes]) -> None:
    assert decode(png_with(*chunks)).tobytes() == SCENE.tobytes()


def test_the_white_of_pq_is_where_ordinary_displays_have_it() -> None:
    """203 nits, at 58 % of the signal; half of that light is sRGB's 188."""
    levels = Image.frombytes("L", (3, 1), bytes((255, 148, 130))).convert("RGB")
    decoded = decode(with_chunks(encode(levels), chunk(b"cICP", bytes((9, 16, 0, 1)))))
    bright, white, half = (decoded.getpixel((x, 0)) for x in range(3))
    assert bright == (255, 255, 255)
    assert min(white) >= 253
    assert all(abs(level - 188) < 10 for level in half)


def camera_exif(interoperability: str | None, color_space: int) -> Image.Exif:
    exif = Image.Exif()
    details = exif.get_ifd(0x8769)
    details[0xA001] = color_space
    if interoperability is not None:
        details[0xA005] = {1: interoperability}
    return exif


@pytest.mark.parametrize(
    ("index", "color_space", "is_adobe"), [("R03", 0xFFFF, True), (None, 2, True), ("R98", 1, False)]
)
def test_a_camera_s_adobe_rgb_is_known_by_its_exif(index: str | None, color_space: int, is_adobe: bool) -> None:
    data = encode(SCENE, "JPEG", exif=camera_exif(index, color_space), quality=95)
    plain = opened(data).convert("RGB")
    assert difference(decode(data), shown(plain, rgb_profile("Adobe RGB")) if is_adobe else plain) <= 2


def broken_profiles() -> dict[str, bytes]:
    p3 = rgb_profile("Display P3")
    return {
        "empty": b"",
        "no profile": b"hello",
        "zeros": bytes(5000),
        "truncated header": p3[:100],
        "truncated tags": p3[:300],
        "no curves": p3.replace(b"TRC", b"XXX"),
        "of CMYK": press_profile(),
        "a device link": p3[:12] + b"link" + p3[16:],
        "named colours": p3[:12] + b"nmcl" + p3[16:],
        "a curve beyond the end": p3.replace(b"rTRC", b"rTRC\xff\xff\xff\xf0"),
        "a million tags": p3[:128] + struct.pack(">I", 10**6) + p3[132:],
        "20,000 operations": endless_profile(20_000),
        "every tag is the table of tags": p3[:132]
        + b"".join(p3[i : i + 4] + struct.pack(">II", 128, 112) for i in range(132, 240, 12))
        + p3[240:],
    }


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("name", broken_profiles())
def test_a_broken_profile_changes_nothing(name: str, kind: str) -> None:
    profile = broken_profiles()[name]
    data = encode(SCENE, kind, lossless=True, icc_profile=profile)
    assert decode(data).tobytes() == opened(data).convert("RGB").tobytes()


@pytest.mark.parametrize(
    "body",
    [
        b"", b"name", b"name\0", b"name\0\1" + zlib.compress(b"x"), b"name\0\0not deflated", b"a" * 500,
        b"bomb\0\0" + zlib.compress(bytes(50_000_000), 9),
        b"large\0\0" + zlib.compress(rgb_profile("Display P3") + bytes(2_000_000)),
    ],
    ids=["empty", "name alone", "no method", "other method", "not deflated", "no name's end", "bomb", "large"],
)  # fmt: skip
def test_a_png_whose_profile_can_t_be_read_is_shown_without_it(body: bytes) -> None:
    assert decode(png_with(chunk(b"iCCP", body))).tobytes() == SCENE.tobytes()


def test_a_large_profile_counts_as_memory() -> None:
    data = encode(SCENE, "JPEG", icc_profile=rgb_profile("Display P3") + bytes(3_000_000))
    with pytest.raises(pixels.TooMuchMemory) as refused:
        decode_image(data, 10**6, 15_000_000)
    assert refused.value.needed_bytes > 6 * 3_000_000


@pytest.mark.nightly
@pytest.mark.slow
def test_random_damage_to_a_profile_never_refuses_the_image() -> None:
    damage = random.Random(4)
    for profile in (rgb_profile("Adobe RGB"), press_profile()):
        image = SCENE.resize((16, 16)).convert("RGB" if profile[16:20] == b"RGB " else "CMYK")
        for _ in range(150):
            broken = bytearray(profile)
            for _ in range(damage.randint(1, 8)):
                broken[damage.randrange(len(broken))] = damage.randrange(256)
            assert decode(encode(image, "JPEG", icc_profile=bytes(broken))).size == (16, 16)


def test_a_mask_is_not_converted() -> None:
    gray = Image.linear_gradient("L").resize(SCENE.size)
    plain = decode_mask(encode(gray), SCENE.size, SCENE.size, ENOUGH).image
    for extra in ({"icc_profile": gray_profile(1.0)}, {"icc_profile": rgb_profile("linear")}):
        assert decode_mask(encode(gray, **extra), SCENE.size, SCENE.size, ENOUGH).image.tobytes() == plain.tobytes()
    with_gamma = with_chunks(encode(gray), gamma_chunk(1.0))
    assert decode_mask(with_gamma, SCENE.size, SCENE.size, ENOUGH).image.tobytes() == plain.tobytes()
    with pytest.raises(ImageError, match="nothing to paint"):
        decode_mask(encode(Image.new("L", (8, 8)), icc_profile=gray_profile(1.0)), (8, 8), (8, 8), ENOUGH)
