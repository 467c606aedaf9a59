"""The console's files: vendored libraries as their packages have them, every text in Chinese, all from this server."""

import hashlib
import json
import re
from pathlib import Path

import pytest

from server.schemas.images import GenerationBody

CONSOLE = Path(__file__).resolve().parents[2] / "server" / "console"
VENDOR = CONSOLE / "vendor"
LIBRARIES = json.loads((VENDOR / "vendor.json").read_text())
SOURCES = sorted(path for path in CONSOLE.rglob("*.js") if VENDOR not in path.parents)
TEXT = re.compile(r'\b[tN]\(\s*"((?:[^"\\]|\\.)*)"')
IMPORT = re.compile(r'(?:\bfrom |\bimport |\bimport\()"([^"]+)"')


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library["file"])
def test_a_vendored_file_is_the_one_of_its_package(library: dict[str, str]) -> None:
    assert hashlib.sha256((VENDOR / library["file"]).read_bytes()).hexdigest() == library["sha256"]
    assert (VENDOR / library["licence_file"]).read_text().strip()


def test_every_vendored_file_is_listed() -> None:
    listed = {library["file"] for library in LIBRARIES} | {library["licence_file"] for library in LIBRARIES}
    listed |= {held["licence_file"] for library in LIBRARIES for held in library.get("holds", {}).values()}
    assert {path.name for path in VENDOR.iterdir()} == listed | {"vendor.json", "README.md"}


def test_every_text_is_in_chinese_too() -> None:
    used = {text for path in SOURCES for text in TEXT.findall(path.read_text())}
    chinese = json.loads((CONSOLE / "i18n" / "zh.json").read_text())
    assert (used - chinese.keys(), chinese.keys() - used) == (set(), set())
    holes = re.compile(r"\{\w+\}")
    wrong = {text for text, translated in chinese.items() if set(holes.findall(text)) != set(holes.findall(translated))}
    assert wrong == set()


def test_recall_knows_every_field_of_a_request_for_images() -> None:
    listed = re.search(r"REQUEST_FIELDS = \[(.*?)\]", (CONSOLE / "state" / "recall.js").read_text(), re.DOTALL)
    assert listed is not None
    assert sorted(re.findall(r'"(\w+)"', listed[1])) == sorted(GenerationBody.model_fields)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(CONSOLE)))
def test_modules_come_from_this_server_and_write_no_markup(path: Path) -> None:
    source = path.read_text()
    targets = {target: (path.parent / target).resolve() for target in IMPORT.findall(source)}
    missing = {name for name, file in targets.items() if not name.startswith(".") or not file.is_file()}
    assert missing == set()
    assert re.findall(r"https?://\w[\w.]*", source.replace("http://www.w3.org", "")) == []
    assert re.findall(r"innerHTML|dangerouslySetInnerHTML|\beval\(|new Function", source) == []
    assert len(source.splitlines()) <= 400
