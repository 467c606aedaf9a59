"""What keeps libraries from starting is left out of them."""

import sys
from pathlib import Path

import pytest
from diffusers.utils import import_utils

from pipelines.device.offline import IMPORTED_UNASKED, leave_out_broken


@pytest.mark.parametrize("name", IMPORTED_UNASKED)
def test_a_package_that_is_broken_is_left_out_of_diffusers(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one that was built for another torch: diffusers imports it, and could not be imported either."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("raise ImportError('undefined symbol: _ZNK3c105Error4whatEv')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    for each in IMPORTED_UNASKED:
        monkeypatch.setattr(import_utils, f"_{each}_available", each == name)
    leave_out_broken()
    assert not getattr(import_utils, f"is_{name}_available")()
    assert f"{name} is installed and can't be imported, so it is left out: undefined" in capsys.readouterr().err
