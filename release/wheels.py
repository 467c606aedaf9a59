"""Wheels for another machine: those that its Python, its processor and its GPU need, and nothing missing.

pip picks wheels for another platform, but reads conditions such as `platform_system == "Linux"` for the machine that it
runs on. So what the wheels themselves ask for is checked again for the target, and fetched until nothing is missing.
"""

import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

TORCH_PACKAGES = ("torch", "torchvision")  # their versions name the build: 2.13.0+cpu
OLDEST_GLIBC = 5  # of manylinux1
ROUNDS = 10  # of fetching what the fetched ask for


class BundleFailed(Exception):
    """Why there is no bundle, in words for the operator."""


@dataclass(frozen=True)
class Target:
    """The machine that the wheels are for. `torch` is `cuda` for the index's own build, else a label such as `cpu` or
    `cu126`; `index` is an index that has that build."""

    python: str  # such as 3.12
    machine: str  # as uname -m says
    torch: str
    glibc: str  # such as 2.31: wheels for a newer one are not taken
    index: str | None = None

    @property
    def name(self) -> str:
        return f"cp{self.python.replace('.', '')}-{self.machine}-{self.torch}"

    @property
    def environment(self) -> dict[str, str]:
        """What markers are evaluated with."""
        return {
            "implementation_name": "cpython",
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_system": "Linux",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "linux",
        }

    @property
    def pip_options(self) -> list[str]:
        """They make pip pick wheels of this target."""
        glibcs = range(int(self.glibc.removeprefix("2.")), OLDEST_GLIBC - 1, -1)
        platforms = [f"manylinux_2_{minor}_{self.machine}" for minor in glibcs]
        platforms += [f"manylinux{year}_{self.machine}" for year in ("2014", "2010", "1")] + [f"linux_{self.machine}"]
        options = ["--only-binary=:all:", "--implementation=cp", f"--python-version={self.python}"]
        options += [f"--platform={platform}" for platform in platforms]
        return options + ([f"--extra-index-url={self.index}"] if self.index else [])


@dataclass(frozen=True)
class Wheel:
    """A wheel file and what it says of itself."""

    path: Path
    metadata: Message

    @property
    def name(self) -> str:
        return canonicalize_name(self.metadata["Name"])

    @property
    def version(self) -> Version:
        return Version(self.metadata["Version"])

    @property
    def requirements(self) -> list[Requirement]:
        return [Requirement(line) for line in self.metadata.get_all("Requires-Dist", [])]


def read_wheel(path: Path) -> Wheel:
    """The name and requirements of a wheel."""
    with zipfile.ZipFile(path) as archive:
        (name,) = (name for name in archive.namelist() if name.count("/") == 1 and name.endswith(".dist-info/METADATA"))
        return Wheel(path, HeaderParser().parsestr(archive.read(name).decode()))


def read_wheels(folder: Path) -> list[Wheel]:
    return [read_wheel(path) for path in sorted(folder.glob("*.whl"))]


def project_requirements(pyproject: Path, extras: Iterable[str]) -> list[Requirement]:
    """What the server, these extras and its installation need. Raises BundleFailed for an unknown extra."""
    table = tomllib.loads(pyproject.read_text())
    project, optional = table["project"], table["project"]["optional-dependencies"]
    lines = [*table["build-system"]["requires"], *project["dependencies"]]
    for extra in extras:
        if extra not in optional:
            raise BundleFailed(f"There is no extra '{extra}'. These are there: {', '.join(optional)}.")
        lines += optional[extra]
    return [Requirement(line) for line in lines]


def unmet(needed: Sequence[Requirement], wheels: Sequence[Wheel], target: Target) -> list[Requirement]:
    """What `needed` and the wheels ask for on the target and no wheel is."""
    by_name = {wheel.name: wheel for wheel in wheels}
    missing: dict[str, Requirement] = {}
    visited: set[tuple[str, str]] = set()
    waiting = [(requirement, "") for requirement in needed]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({**target.environment, "extra": extra}):
            continue
        wheel = by_name.get(canonicalize_name(requirement.name))
        if wheel is None or not requirement.specifier.contains(wheel.version, prereleases=True):
            missing[str(requirement)] = requirement
            continue
        for wanted in ("", *requirement.extras):
            if (wheel.name, wanted) not in visited:
                visited.add((wheel.name, wanted))
                waiting += [(each, wanted) for each in wheel.requirements]
    return list(missing.values())


def torch_pins(constraints: Path, torch: str) -> list[str]:
    """Constraints that allow exactly one build of torch, whatever an index has beside it."""
    pins = (Requirement(line) for line in constraints.read_text().splitlines() if line and not line.startswith("#"))
    label = "" if torch == "cuda" else f"+{torch}"
    return [f"{pin.name}==={str(pin.specifier)[2:]}{label}" for pin in pins if pin.name in TORCH_PACKAGES]


def collect(pyproject: Path, constraints: Path, extras: Sequence[str], target: Target, folder: Path) -> list[Wheel]:
    """Fetch all wheels into the folder. Raises BundleFailed."""
    pins = folder.parent / "pins.txt"
    kept = [line for line in constraints.read_text().splitlines() if line.partition("==")[0] not in TORCH_PACKAGES]
    pins.write_text("\n".join([*kept, *torch_pins(constraints, target.torch)]) + "\n")
    needed = project_requirements(pyproject, extras)
    try:
        _download([str(requirement) for requirement in needed], pins, target, folder, [])
        for _ in range(ROUNDS):
            wheels = read_wheels(folder)
            if not (missing := unmet(needed, wheels, target)):
                return wheels
            _download([_without_marker(each) for each in missing], pins, target, folder, ["--no-deps"])
    finally:
        pins.unlink()
    raise BundleFailed(f"No wheels for {target.name} of: {', '.join(map(str, missing))}.")


def _without_marker(requirement: Requirement) -> str:
    return str(requirement).partition(";")[0].strip()


def _download(requirements: Sequence[str], pins: Path, target: Target, folder: Path, options: Sequence[str]) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += [f"--constraint={pins}", f"--dest={folder}", *target.pip_options, *options, *requirements]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        why = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr.strip()]
        raise BundleFailed(f"pip found no wheels for {target.name}:\n" + "\n".join(why))
