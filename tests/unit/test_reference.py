"""The pages that `make reference` writes are what the code says now, and leave nothing out."""

import re

import pytest
from pydantic import BaseModel

from release.reference import FOLDER, PAGES, TABLES, attribute_docstrings
from server.settings import Settings


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_what_the_code_says(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name](), "run `make reference`"


def test_every_setting_is_in_the_settings_page() -> None:
    listed = re.findall(r"^\| `DARKROOM_(\w+)`", (FOLDER / "settings.md").read_text(), re.MULTILINE)
    assert listed == [name.upper() for name in Settings.model_fields]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table[2].__name__)
def test_every_catalog_key_is_described(table: tuple[str, str, type[BaseModel]]) -> None:
    model = table[2]
    described = attribute_docstrings(model)
    assert [name for name in model.model_fields if not described.get(name)] == []
