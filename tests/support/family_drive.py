"""One family of tiny checkpoints through a running server, as an operator and a client meet it: added, reloaded, drawn
in every way that its model announces, refused in every way that it does not, swapped in, undone and removed.

A fault is a 500, a spoiled image, a refusal that names no field, or a capability that is announced and refused.
"""

import base64
import io
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import openai
from PIL import Image

from tests.support.harness import CALL_LIMIT_S, START_LIMIT_S, Server, charges

Pixels = npt.NDArray[np.int16]
WIDE: Final = (896, 512)  # 16:9 in 1K
LARGE: Final = (1376, 1376)  # the smallest square in 2K
AREA_PX: Final = 384 * 384
HOST: Final = "alpha-image-2-count"  # the model that swaps put other checkpoints into
PROMPT: Final = "a red house"
ONE, TWO = 1, 2
# By what families may lack, the request for it; its 400 names that field
LACKING: Final[Mapping[str, dict[str, Any]]] = {
    "guidance": {"guidance": 2.3},  # no checkpoint's own
    "negative_prompt": {"negative_prompt": "blurred", "guidance": 2.3},
    "steps": {"steps": 7},
}
WRONG: Final[tuple[tuple[dict[str, Any], str], ...]] = (
    ({"size": "1000x1001"}, "size"),
    ({"size": "9:1"}, "size"),
    ({"steps": 0}, "steps"),
    ({"guidance": "much"}, "guidance"),
    ({"negative_prompt": "blurred", "guidance": 0}, "negative_prompt"),  # there is nothing to guide away from
    ({"loras": {"nobody": 1.0}}, "loras"),
    ({"scheduler": "NoScheduler"}, "scheduler"),
    ({"controls": {"edges": "data:image/png;base64,"}}, "controls"),
    ({"image": ["data:,"] * 17}, "image"),
    ({"seed": -2}, "seed"),
)


class Refused(NamedTuple):
    """An answer without an image."""

    status: int
    param: str | None
    message: str


@dataclass
class Driven:
    """What a family did. `cells` is its row of docs/reference/families.md, by column; `faults` is what must not be."""

    name: str
    class_name: str = ""
    cells: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    add_s: float = 0.0
    reload_s: float = 0.0
    first_image_s: float = 0.0
    images: dict[str, Pixels] = field(default_factory=dict)  # by what they show, to look at


def drive(server: Server, name: str, class_name: str) -> Driven:
    """Drive the checkpoint in the weights folder `name`. The server has a model HOST that a swap may change."""
    family = _Family(server, Driven(name, class_name))
    try:
        family.add()
        family.draw_everything()
        family.refuse_everything()
        family.swap_in_and_undo()
    except _ServerError as error:
        family.fault(str(error))
    finally:
        family.remove()
    return family.driven


class _ServerError(Exception):
    """An operator's request that failed, after which there is nothing to drive."""


class _Family:
    def __init__(self, server: Server, driven: Driven) -> None:
        self.server = server
        self.driven = driven
        self.model = driven.name
        self.supports: set[str] = set()
        self.card: dict[str, Any] = {}
        self.size = WIDE
        self.client = server.openai(timeout=CALL_LIMIT_S)

    def fault(self, text: str) -> None:
        self.driven.faults.append(text)

    # As an operator

    def add(self) -> None:
        began = time.monotonic()
        body = {"checkpoint": self.model, "name": self.model, "family": "alpha", "price": "0.10"}
        self._operator("checkpoints/add", {**body, "tiers": ["1K", "2K"]})
        self.driven.add_s = time.monotonic() - began
        self._draw_small()
        began = time.monotonic()
        self._operator("reload", {})
        self.driven.reload_s = time.monotonic() - began
        self.server.wait_ready()
        self._read_card()
        native_px = max(384, int(self._catalog_value("native_area_px") ** 0.5))
        self.size = (47 * native_px // 1024 * 16, 46 * native_px // 1024 * 16)  # odd multiples of 16 for some

    def _draw_small(self) -> None:
        """Set another native area, as an operator may: a megapixel takes minutes on a CPU and shows no more, and in a
        few pixels each larger image is hundreds of tiles."""
        file = self.server.configs / f"{self.model}.toml"
        most_px = max(AREA_PX, self._catalog_value("max_area_px"))
        lines = [
            f"native_area_px = {AREA_PX}"
            if line.startswith("native_area_px")
            else f"max_area_px = {most_px}"
            if line.startswith("max_area_px")
            else line
            for line in file.read_text().splitlines()
        ]
        file.write_text("\n".join(lines) + "\n")

    def remove(self) -> None:
        try:
            self._operator("checkpoints/remove", {"model": self.model})
            self._operator("reload", {})
        except _ServerError as error:
            self.fault(str(error))

    def swap_in_and_undo(self) -> None:
        change = self._operator("swap", {"model": HOST, "checkpoint": self.model})
        inputs = self._inputs() | {"model": HOST}
        drawn = self.draw("swapped in", **inputs)
        self._operator("undo", {})
        self.driven.cells["swap"] = "yes" if isinstance(drawn, list) and change["saved"] else "no"

    def _operator(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        with self.server.http(self.server.admin_key) as http:
            answer = http.post(f"/admin/{path}", json=body, timeout=START_LIMIT_S)
        if answer.status_code != 200:
            raise _ServerError(f"/admin/{path}: {answer.status_code} {answer.text[:300]}")
        result: dict[str, Any] = answer.json()
        return result

    def _read_card(self) -> None:
        with self.server.http() as http:
            self.card = http.get(f"/v1/models/{self.model}").json()
        self.supports = set(self.card["supports"])

    def _catalog_value(self, key: str) -> int:
        text = (self.server.configs / f"{self.model}.toml").read_text()
        return int(next(line for line in text.splitlines() if line.startswith(key)).split()[2])

    @contextmanager
    def _with_line(self, line: str) -> Iterator[None]:
        """The catalog file with another line, as an operator writes it by hand."""
        file = self.server.configs / f"{self.model}.toml"
        text = file.read_text()
        file.write_text(text.replace("\n[sampling]", f"{line}\n\n[sampling]"))
        self._operator("reload", {})
        yield
        file.write_text(text)
        self._operator("reload", {})

    # As a client

    def draw_everything(self) -> None:
        cells = self.driven.cells
        began = time.monotonic()
        text = self.draw("text", seed=1)
        self._announced("text", text, {"image", "mask"})
        cells["from text"] = _yes(text)
        inputs = self._inputs()
        first = text if isinstance(text, list) else self.draw("first", **inputs)
        self.driven.first_image_s = time.monotonic() - began + self.driven.add_s + self.driven.reload_s
        if not isinstance(first, list):
            self.fault(f"draws nothing at all: {first}")
            return
        self._draw_sizes(inputs)
        self._draw_two(inputs, first)
        self._draw_references()
        self._draw_with_mask()
        before = first
        for name, request in LACKING.items():
            drawn = self.draw(name, **inputs, fields=request)
            self._announced(name, drawn, {name})
            cells[name] = _yes(drawn)
            if name != "steps" and isinstance(drawn, list) and not _difference(drawn[0], before[0]):
                self.fault(f"{name} changes nothing")
            before = drawn if name == "guidance" and isinstance(drawn, list) else first
        self._draw_previews(inputs)

    def _inputs(self) -> dict[str, Any]:
        """The smallest request that it draws."""
        if "text" in self.supports:
            return {"seed": 1}
        alone = isinstance(self.draw("a reference", references=1, seed=1), list)
        return {"seed": 1, "references": 1, "mask": not alone}

    def _draw_sizes(self, inputs: dict[str, Any]) -> None:
        self.draw("16:9", **(inputs | {"size": WIDE}))
        large = self.draw("2K", **(inputs | {"size": LARGE, "model": f"{self.model}-hd-count"}))
        scaled = "enlarge" in (self.server.configs / f"{self.model}.toml").read_text()
        self.driven.cells["2K"] = "no" if not isinstance(large, list) else "scaled" if scaled else "yes"
        if not isinstance(large, list):
            self.fault(f"no 2K: {large}")

    def _draw_two(self, inputs: dict[str, Any], first: list[Pixels]) -> None:
        both = self.draw("two at once", **(inputs | {"n": 2}))
        if "layers" in self.supports:
            self.driven.cells["n = 2"] = "layers" if isinstance(both, list) else "no"
            return
        alone = [self.draw("alone", **(inputs | {"seed": seed})) for seed in (1, 2)]
        if not isinstance(both, list) or not all(isinstance(each, list) for each in alone):
            self.fault("no two at once")
            return
        apart = max(_difference(one, other[0]) for one, other in zip(both, alone, strict=True))
        self.driven.cells["n = 2"] = "exact" if not apart else f"±{apart}"
        if apart > 2:
            self.fault(f"two at once are {apart} of 255 apart from each alone")
        if not _difference(*both):
            self.fault("two at once are the same image")

    def _draw_references(self) -> None:
        one = self.draw("a reference", references=ONE, seed=1)
        two = self.draw("two references", references=TWO, seed=1)
        needs_mask = isinstance(one, Refused) and one.param == "mask"
        limit = 0 if needs_mask else self.card["max_references"]
        self.driven.cells["references"] = f"{limit}, `{self._conditioning()}`" if limit else "no"
        for count, drawn in ((ONE, one), (TWO, two)):
            if isinstance(drawn, list) != (limit >= count):
                self.fault(f"max_references is {limit}, and {count}: {drawn if isinstance(drawn, Refused) else 200}")
            if isinstance(drawn, Refused) and drawn.param not in {"image", "mask"}:
                self.fault(f"{count} references: {drawn}")
        if isinstance(one, list):
            other = self.draw("another reference", references=ONE, first=2, seed=1)
            if not isinstance(other, list) or not _difference(one[0], other[0]):
                self.fault("the reference changes nothing")
        if isinstance(two, list):
            other = self.draw("another second reference", references=TWO, second=3, seed=1)
            if not isinstance(other, list) or not _difference(two[0], other[0]):
                self.fault("the second reference changes nothing")
        elif limit == ONE and self._conditioning() == "native":
            with self._with_line("sheet = true"):
                sheet = self.draw("three references on a sheet", references=3, seed=1)
            if not isinstance(sheet, list):
                self.fault(f"three references on a sheet: {sheet}")
            self.driven.cells["references"] = "1, more on a sheet, `native`"

    @property
    def _has_own_map(self) -> bool:
        """Whether each call needs one, which `checkpoints add` calls so."""
        return any(control["kind"] == "map" for control in self.card.get("controls", ()))

    def _conditioning(self) -> str:
        text = (self.server.configs / f"{self.model}.toml").read_text()
        return text.split('conditioning = "')[1].split('"')[0]

    def _draw_with_mask(self) -> None:
        drawn = self.draw("a mask", references=1, mask=True, seed=1)
        self._announced("mask", drawn, {"mask"})
        self.driven.cells["mask"] = _yes(drawn)
        if isinstance(drawn, list):
            kept = _reference(self.size, 1)[:, self.size[0] // 2 :]
            if _difference(drawn[0][:, self.size[0] // 2 :], kept):
                self.fault("what the mask leaves out has changed")

    def _draw_previews(self, inputs: dict[str, Any]) -> None:
        """Two of them where it takes so many steps; a stream ends with the image."""
        body = self._body(**(inputs | {"steps": 8}))
        seen: list[str] = []
        try:
            stream = self.client.images.generate(prompt=PROMPT, stream=True, partial_images=2, extra_body=body)
            seen = [event.type for event in stream]
        except openai.APIError as error:
            self.fault(f"a stream: {error}")
        wanted = 3 if "steps" in self.supports else 2  # SANA-Sprint's two steps have room for one preview
        wanted = 1 if "layers" in self.supports else wanted  # of layers there are none
        if len(seen) != wanted or seen[-1] != "image_generation.completed":
            self.fault(f"a stream with previews had the events {seen}")
        self.driven.cells["previews"] = str(len(seen) - 1)

    def refuse_everything(self) -> None:
        inputs = self._inputs()
        for request, param in WRONG:
            before = charges(self.server)
            answer = self._call(self._body(**inputs) | request)
            if not isinstance(answer, Refused) or answer.status != 400 or not str(answer.param).startswith(param):
                self.fault(f"{request}: expected a 400 that names {param}, got {str(answer)[:200]}")
            if charges(self.server) != before:
                self.fault(f"{request}: charged")

    def draw(self, what: str, *, size: tuple[int, int] | None = None, **request: Any) -> list[Pixels] | Refused:
        """A call, whose images are looked at, and whose charge is."""
        before = charges(self.server)
        size = size or self.size
        answer = self._call(self._body(size=size, **request))
        charged = charges(self.server) - before
        if isinstance(answer, Refused):
            if answer.status >= 500 or answer.param is None:
                self.fault(f"{what}: {answer}")
            if charged:
                self.fault(f"{what}: {answer.status} and charged")
            return answer
        if charged != 1:
            self.fault(f"{what}: {charged} charges for an image")
        for image in answer:
            if problem := _spoiled(image, size):
                self.fault(f"{what}: {problem}")
        self.driven.images.setdefault(what, answer[0])
        return answer

    def _body(
        self,
        *,
        size: Any = None,
        references: int = 0,
        first: int = 1,
        second: int = 2,
        mask: bool = False,
        fields: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        size = size or self.size
        shown = [first, second, 3][:references]
        if "steps" in self.supports:
            more.setdefault("steps", 4 if shown else 2)  # an image that is redrawn takes part of them
        else:
            more.pop("steps", None)
        return {
            "model": self.model,
            "prompt": PROMPT,
            "size": size if isinstance(size, str) else f"{size[0]}x{size[1]}",
            "response_format": "b64_json",
            **({"image": [_data_uri(_reference(self.size, number)) for number in shown]} if shown else {}),
            **({"mask": _data_uri(_left_half(self.size))} if mask else {}),
            **({"controls": {"map": _data_uri(_reference(self.size, 3))}} if self._has_own_map else {}),
            **more,
            **(fields or {}),
        }

    def _call(self, body: dict[str, Any]) -> list[Pixels] | Refused:
        try:
            answer = self.client.post("/images/generations", body=body, cast_to=dict)  # type: ignore[type-var]
        except openai.APIStatusError as error:
            detail = error.body if isinstance(error.body, dict) else {}
            return Refused(error.status_code, detail.get("param"), str(detail.get("message", error))[:300])
        return [_pixels(item["b64_json"]) for item in answer["data"]]

    def _announced(self, name: str, answer: list[Pixels] | Refused, params: set[str]) -> None:
        """What /v1/models lists is drawn; what it does not list is a 400 that names one of these fields."""
        drawn = isinstance(answer, list)
        if drawn != (name in self.supports):
            self.fault(f"{name} is{'' if name in self.supports else ' not'} announced: {200 if drawn else answer}")
        if isinstance(answer, Refused) and answer.param not in params:
            self.fault(f"{name}: expected a 400 that names one of {params}, got {answer}")


def _yes(answer: list[Pixels] | Refused) -> str:
    return "yes" if isinstance(answer, list) else "no"


def _pixels(data: str) -> Pixels:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")).astype(np.int16)


def _difference(one: Pixels, other: Pixels) -> int:
    """The largest of any channel, of 255."""
    return int(np.abs(one - other).max())


def _spoiled(image: Pixels, size: tuple[int, int]) -> str | None:
    """What is wrong with an image that random weights draw: another size, padding, or one colour."""
    height, width, _ = image.shape
    if (width, height) != size:
        return f"{width}x{height} where {size[0]}x{size[1]} was asked"
    edges = (image[0], image[-1], image[:, 0], image[:, -1])
    if image.std() < 1 or any(edge.max() < 4 for edge in edges):
        return "spoiled: one colour, or a black edge"
    return None


def _reference(size: tuple[int, int], number: int) -> Pixels:
    """An image that differs from the others in every part."""
    across, down = np.meshgrid(np.linspace(0, 1, size[0]), np.linspace(0, 1, size[1]))
    wave = 0.5 + 0.5 * np.sin(6.3 * (number * across + down))
    return (np.stack([across, down, wave], axis=-1) * 255 / number).astype(np.int16)


def _left_half(size: tuple[int, int]) -> Pixels:
    mask = np.zeros((size[1], size[0]), np.int16)
    mask[:, : size[0] // 2] = 255
    return mask


def _data_uri(pixels: Pixels) -> str:
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
