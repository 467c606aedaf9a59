"""`make bundle`: one archive with all that a machine without a network needs. See docs/guides/offline.md.

It holds the repository at a commit with its demo checkpoints, wheels for the other machine, an SBOM, licences, other
checkpoints if they are named, and the SHA-256 sum of every file.
"""

import argparse
import json
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from pathlib import Path

from release.verify import MANIFEST, ROOT, sha256_of, write_sums
from release.wheel_papers import write_licences, write_sbom
from release.wheels import BundleFailed, Target, collect


def export(ref: str, folder: Path) -> str:
    """Unpack the repository at `ref` into the folder. Returns the commit. Raises BundleFailed."""
    try:
        commit = _git("rev-parse", "--verify", f"{ref}^{{commit}}").decode().strip()
    except subprocess.CalledProcessError as error:
        raise BundleFailed(f"There is no version '{ref}' in this repository.") from error
    with tempfile.TemporaryFile() as archive:
        archive.write(_git("archive", "--format=tar", commit))
        archive.seek(0)
        with tarfile.open(fileobj=archive) as tar:
            tar.extractall(folder, filter="data")
    return commit


def add_checkpoints(paths: list[Path], folder: Path) -> None:
    """Copy each below the bundle's weights folder. Raises BundleFailed."""
    for path in paths:
        if not path.exists():
            raise BundleFailed(f"There is no checkpoint {path}.")
        destination = folder / "weights" / path.name
        if destination.exists():
            raise BundleFailed(f"{path.name} is in the repository already.")
        copy = shutil.copytree if path.is_dir() else shutil.copy2
        copy(path, destination)


def build_site(folder: Path) -> None:
    """Build the documentation of the unpacked repository into it. Raises BundleFailed."""
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--quiet"], cwd=folder, check=False)
    if done.returncode:
        raise BundleFailed("The documentation could not be built.")


def build(arguments: argparse.Namespace) -> Path:
    """The archive. Raises BundleFailed."""
    target = Target(arguments.python, arguments.machine, arguments.torch, arguments.glibc, arguments.index)
    extras = [extra for extra in arguments.extras.split(",") if extra]
    output: Path = arguments.output
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output) as temporary:
        staging = Path(temporary) / "repository"
        commit = export(arguments.ref, staging)
        version = tomllib.loads((staging / "pyproject.toml").read_text())["project"]["version"]
        _send(f"Darkroom {version} at {commit[:12]}, for {target.name}")
        build_site(staging)
        (staging / "wheels").mkdir()
        wheels = collect(staging / "pyproject.toml", staging / "constraints.txt", extras, target, staging / "wheels")
        _send(f"{len(wheels)} wheels, {sum(wheel.path.stat().st_size for wheel in wheels) / 1e6:,.0f} MB")
        write_sbom(wheels, version, staging / "sbom.json")
        if without := write_licences(wheels, staging / "licences"):
            _send(f"Without a licence file of their own: {', '.join(without)}")
        add_checkpoints(arguments.checkpoint, staging)
        manifest = {
            "version": version,
            "commit": commit,
            "python": target.python,
            "machine": target.machine,
            "glibc": target.glibc,
            "torch": target.torch,
            "extras": extras,
            "checkpoints": [path.name for path in arguments.checkpoint],
            "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        (staging / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
        files = write_sums(staging)
        archive = output / f"darkroom-{version}-{target.name}.tar"
        with tarfile.open(archive, "w") as tar:  # wheels and weights are compressed, or can't be
            tar.add(staging, arcname=f"darkroom-{version}")
    (output / f"{archive.name}.sha256").write_text(f"{sha256_of(archive)}  {archive.name}\n")
    _send(f"{archive}: {files:,} files, {archive.stat().st_size / 1e6:,.0f} MB; its sum is in {archive.name}.sha256")
    return archive


def _git(*arguments: str) -> bytes:
    return subprocess.run([shutil.which("git") or "git", *arguments], cwd=ROOT, capture_output=True, check=True).stdout


def _send(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    here = ".".join(platform.python_version_tuple()[:2])
    parser = argparse.ArgumentParser(prog="make bundle", description=__doc__)
    parser.add_argument("--ref", default="HEAD", help="tag or commit of the repository")
    parser.add_argument("--python", default=here, help="version of Python on the other machine, such as 3.12")
    parser.add_argument("--machine", default=platform.machine(), choices=["x86_64", "aarch64"], help="its processor")
    parser.add_argument(
        "--glibc", default="2.31", help="its C library or an older one: 2.31 is of Ubuntu 20.04, Debian 11"
    )
    parser.add_argument("--torch", default="cuda", help="cuda, or the label of another build: cpu, cu126")
    parser.add_argument("--index", help="address of a package index that has that build")
    parser.add_argument("--extras", default="vision,postgres,gguf,tracing", help="extras of pyproject.toml, by commas")
    parser.add_argument("--checkpoint", type=Path, action="append", default=[], help="a checkpoint to carry along")
    parser.add_argument("--output", type=Path, default=ROOT / "build", help="folder of the archive")
    try:
        build(parser.parse_args())
    except BundleFailed as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
