"""Paths and links in the documentation lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("starters/*.md")])
CODE_FOLDERS = (
    "darkroom",
    "server",
    "pipelines",
    "starters",
    "tests",
    "benchmarks",
    "model_configs",
    "docs",
    "weights",
)
PATH = re.compile(rf"(?<![\w./-])(?:{'|'.join(CODE_FOLDERS)})/[\w./-]*\.(?:py|md|toml|png|jpg|jinja)\b")
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)[^)]*\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_and_link_leads_somewhere(page: Path) -> None:
    text = page.read_text()
    paths = {path for path in PATH.findall(text) if not (ROOT / path).exists()}
    links = {link for link in LINK.findall(text) if not (page.parent / link).exists()}
    assert (paths, links) == (set(), set())
