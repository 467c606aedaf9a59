"""Every setting is described. The page of them is written from these descriptions (test_reference.py)."""

from server.settings import Settings


def test_every_setting_has_a_description() -> None:
    assert all(field.description for field in Settings.model_fields.values())
