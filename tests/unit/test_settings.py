"""Every setting is documented."""

from pathlib import Path

from server.settings import Settings

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "settings.md").read_text()


def test_every_setting_is_in_the_settings_page() -> None:
    missing = [name for name in Settings.model_fields if f"DARKROOM_{name.upper()}" not in PAGE]
    assert missing == []


def test_every_setting_has_a_description() -> None:
    assert all(field.description for field in Settings.model_fields.values())
