"""A bundle is made, carried into a namespace without a network, verified, installed, and proven there."""

import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

from server.data_folders import REPOSITORY

NO_NETWORK = ["unshare", "--map-root-user", "--net", "--"]
LIMIT_S = 1800


def run(*command: str, folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.nightly
@pytest.mark.timeout(2 * LIMIT_S)
def test_a_bundle_serves_where_there_is_no_network(tmp_path: Path) -> None:
    _, _, label = version("torch").partition("+")  # the build that this machine's index has
    options = f"--torch {label or 'cuda'} --extras= --output {tmp_path}"
    run("make", "bundle", f"OPTIONS={options}", f"PYTHON={sys.executable}", folder=REPOSITORY)
    (archive,) = tmp_path.glob("*.tar")
    run("sha256sum", "--check", f"{archive.name}.sha256", folder=tmp_path)
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    (bundle,) = (path for path in tmp_path.iterdir() if path.is_dir())
    make = [*NO_NETWORK, "make", f"PYTHON={sys.executable}"]
    assert "files are as they were bundled" in run(*make, "install-offline", folder=bundle)
    assert not list((bundle / ".venv").glob("lib/*/site-packages/pytest"))
    assert "PROVEN: Darkroom started, drew and chatted" in run(*make, "prove-offline", folder=bundle)
    (bundle / "server/app.py").write_text("")
    changed = subprocess.run([*make, "verify"], cwd=bundle, capture_output=True, text=True, check=False)
    assert changed.returncode != 0
    assert "changed: server/app.py" in changed.stderr
