"""`python -m starters.readme_sheet http://localhost:8080 KEY OUT.jpg [STARTER ...]`: the images of docs/starters.jpg.

Every ratio of both families, a chain of edits by instruction, image to image, and one prompt at the three qualities;
all through the HTTP routes, with OpenAI's SDK.
"""

import base64
import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from openai import OpenAI
from PIL import Image, ImageDraw, ImageFont
from rich.progress import track

ALPHA: Final = "alpha-image-2-count"
BETA: Final = "beta-3.1-flash-image-count"
STARTERS: Final = ("starter-alpha", "starter-beta")
COMMON: Final = ("1:1", "3:2", "2:3", "4:3", "3:4", "5:4", "4:5", "16:9", "9:16", "2:1", "1:2", "21:9", "9:21")
PROMPTS: Final = (
    "a red boat at sea at sunset",
    "a large blue house on the left and a green tree on the right, grass, by day",
    "a white rocket in the desert at night with a moon",
    "a yellow star and a purple heart in the snow, overcast",
    "a pink cat on the grass before hills, with a sun",
    "a white lighthouse at sea by day",
    "an orange car in the desert before mountains at sunset",
    "a red flower on the left, a yellow star in the centre and a blue car on the right, grass",
    "a black triangle in the snow at night",
    "a brown house before a city skyline at sunset, grass",
    "a green circle at sea, overcast",
    "a large orange boat on the right, at sea, with clouds",
    "a blue tree in the snow by day with a sun",
)
SEED: Final = 2  # One with which starter-beta follows the chain.
CHAIN: Final = ("make the boat blue", "add a moon", "make it snow")
WIDTH_PX, HEIGHT_PX, GAP_PX, WORDS_PX = 1800, 150, 8, 18
PAPER, INK = (250, 249, 246), (40, 42, 52)


@dataclass(frozen=True, slots=True)
class Row:
    """Images under a heading; long rows wrap."""

    heading: str
    images: Sequence[tuple[Image.Image, str]]


def rows(client: OpenAI, starters: Sequence[str]) -> Iterator[Row]:
    """The rows of these starters."""
    if "starter-alpha" in starters:
        yield Row("starter-alpha: every ratio", every_ratio(client, ALPHA, COMMON))
        yield from by_strength_and_quality(client)
    if "starter-beta" in starters:
        yield Row("starter-beta: every ratio", every_ratio(client, BETA, (*COMMON, "4:1", "1:4", "8:1", "1:8")))
        yield Row("starter-beta: three turns of one picture", list(chain(client)))


def every_ratio(client: OpenAI, model: str, ratios: Sequence[str]) -> list[tuple[Image.Image, str]]:
    prompts = [(ratio, PROMPTS[i % len(PROMPTS)]) for i, ratio in enumerate(ratios)]
    return [(generate(client, model, prompt, ratio), ratio) for ratio, prompt in track(prompts, model)]


def by_strength_and_quality(client: OpenAI) -> Iterator[Row]:
    """What only starter-alpha has: strengths, and qualities that differ."""
    prompt, start = "a large blue house on the left, snow, at night", PROMPTS[1]
    image = generate(client, ALPHA, start, "3:2")
    changed = [
        (edit(client, ALPHA, prompt, image, strength=strength), f"strength {strength}") for strength in (0.3, 0.6, 0.9)
    ]
    yield Row(f"starter-alpha: a picture as “{prompt}”", [(image, "before"), *changed])
    qualities = [
        (generate(client, ALPHA, PROMPTS[6], "3:2", quality=quality), quality) for quality in ("low", "medium", "high")
    ]
    yield Row("starter-alpha: low, medium and high quality", qualities)


def chain(client: OpenAI) -> Iterator[tuple[Image.Image, str]]:
    """An image, and the result of each further edit."""
    image = generate(client, BETA, PROMPTS[0], "3:2")
    yield image, PROMPTS[0]
    for instruction in CHAIN:
        image = edit(client, BETA, instruction, image)
        yield image, instruction


def generate(client: OpenAI, model: str, prompt: str, ratio: str, **options: str) -> Image.Image:
    body = {"size": ratio, "response_format": "b64_json", "seed": SEED, **options}
    return _image(client.images.generate(model=model, prompt=prompt, extra_body=body).data)


def edit(client: OpenAI, model: str, prompt: str, image: Image.Image, **options: float) -> Image.Image:
    """Image to image, at the image's own size."""
    file = io.BytesIO()
    image.save(file, "PNG")
    body = {"size": f"{image.width}x{image.height}", "response_format": "b64_json", "seed": SEED, **options}
    return _image(
        client.images.edit(model=model, prompt=prompt, image=("a.png", file.getvalue()), extra_body=body).data
    )


def _image(data: object) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(data[0].b64_json))).convert("RGB")  # type: ignore[index]


def sheet(drawn: Sequence[Row]) -> Image.Image:
    lines: list[tuple[int, int, Image.Image | None, str]] = []
    y = GAP_PX
    for row in drawn:
        lines.append((GAP_PX, y, None, row.heading))
        x, y = GAP_PX, y + WORDS_PX + GAP_PX
        for one, words in row.images:
            fitted = one.resize((max(1, round(one.width * HEIGHT_PX / one.height)), HEIGHT_PX))
            if x + fitted.width + GAP_PX > WIDTH_PX:
                x, y = GAP_PX, y + HEIGHT_PX + WORDS_PX + GAP_PX
            lines.append((x, y, fitted, words))
            x += max(fitted.width, 28) + GAP_PX
        y += HEIGHT_PX + WORDS_PX + 2 * GAP_PX
    canvas = Image.new("RGB", (WIDTH_PX, y), PAPER)
    pen = ImageDraw.Draw(canvas)
    for x, top, image, words in lines:
        if image is None:
            pen.text((x, top), words, fill=INK, font=ImageFont.load_default(17))
        else:
            canvas.paste(image, (x, top))
            pen.text((x, top + HEIGHT_PX + 2), words, fill=INK, font=ImageFont.load_default(13))
    return canvas


def main() -> None:
    base, key, out, *starters = sys.argv[1:]
    client = OpenAI(base_url=f"{base}/v1", api_key=key, timeout=600)
    sheet(list(rows(client, starters or STARTERS))).save(out, quality=88)


if __name__ == "__main__":
    main()
