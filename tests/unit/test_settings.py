"""Every setting is described. The page of them is written from these descriptions (test_reference.py)."""

from release.reference import attribute_docstrings
from server.settings import Settings


def test_every_setting_has_a_description() -> None:
    assert attribute_docstrings(Settings).keys() >= Settings.model_fields.keys()
