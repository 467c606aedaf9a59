"""A setting that nobody can find does not exist."""

from pathlib import Path

from server.settings import Settings

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()


def test_every_setting_is_in_the_readme() -> None:
    missing = [name for name in Settings.model_fields if f"DARKROOM_{name.upper()}" not in README]
    assert missing == []


def test_every_setting_says_what_it_is_for() -> None:
    assert all(field.description for field in Settings.model_fields.values())
