"""`make audit`: known vulnerabilities of the packages in constraints.txt.

With a file, it is OSV's export of PyPI (https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip), and nothing
is sent anywhere. Without one, pip-audit asks PyPI. Exits with 1 if a package is vulnerable, and with 2 if not all
packages could be checked: an audit that asked nobody has found nothing out.
"""

import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

CONSTRAINTS = Path(__file__).resolve().parents[1] / "constraints.txt"
PIP_AUDIT = CONSTRAINTS.parent / ".venv-supply" / "bin" / "pip-audit"


@dataclass(frozen=True)
class Finding:
    """A vulnerability of a pinned version."""

    package: str
    version: str
    id: str
    summary: str


class AuditFailed(Exception):
    """The packages could not be checked."""


def read_pins(path: Path) -> dict[str, str]:
    """The version of each package, by its canonical name."""
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    pins = [Requirement(line) for line in lines if line]
    return {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in pins}


def audit_by_file(pins: Mapping[str, str], export: Path) -> list[Finding]:
    """What an export of OSV says of the pins. Raises AuditFailed."""
    try:
        with zipfile.ZipFile(export) as archive:
            records = [json.loads(archive.read(name)) for name in archive.namelist() if name.endswith(".json")]
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise AuditFailed(f"{export} can't be read as OSV's export: {error}") from error
    if not records:
        raise AuditFailed(f"{export} has no records")
    return [finding for record in records if "withdrawn" not in record for finding in _findings(record, pins)]


def audit_by_network(path: Path) -> list[Finding]:
    """What PyPI says of the pins, by pip-audit. Raises AuditFailed."""
    options = ["--no-deps", "--disable-pip", "--progress-spinner", "off", "--format", "json"]
    command = [str(PIP_AUDIT), "--requirement", str(path), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError) as error:
        raise AuditFailed(f"pip-audit got no answer: {done.stderr.strip()[-500:]}") from error
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    if skipped or not packages:
        raise AuditFailed(
            f"{len(skipped)} of {len(packages)} packages are unknown to the index, {skipped[:3]} among them"
        )
    return [
        Finding(package["name"], package["version"], found["id"], found.get("description", "").partition("\n")[0][:100])
        for package in packages
        for found in package["vulns"]
    ]


def _findings(record: Mapping[str, Any], pins: Mapping[str, str]) -> Iterator[Finding]:
    for affected in record.get("affected", ()):
        name = canonicalize_name(affected.get("package", {}).get("name", ""))
        if (
            affected.get("package", {}).get("ecosystem") == "PyPI"
            and name in pins
            and _is_affected(affected, pins[name])
        ):
            yield Finding(name, pins[name], record["id"], str(record.get("summary", "")))


def _is_affected(affected: Mapping[str, Any], version: str) -> bool:
    if version in affected.get("versions", ()):
        return True
    ranges = (each["events"] for each in affected.get("ranges", ()) if each.get("type") == "ECOSYSTEM")
    return any(_in_range(events, Version(version)) for events in ranges)


def _in_range(events: list[Mapping[str, str]], version: Version) -> bool:
    """OSV's algorithm: the last event at or before the version decides. `last_affected` ends after its version."""
    inside = False
    for event in events:
        ((kind, value),) = event.items()
        try:
            limit = Version(value)
        except InvalidVersion:
            continue  # of a scheme that no release of today has
        if kind == "introduced" and version >= limit:
            inside = True
        elif (kind == "fixed" and version >= limit) or (kind == "last_affected" and version > limit):
            inside = False
    return inside


def main() -> None:
    try:
        if len(sys.argv) > 1:
            findings = audit_by_file(read_pins(CONSTRAINTS), Path(sys.argv[1]))
        else:
            findings = audit_by_network(CONSTRAINTS)
    except AuditFailed as error:
        sys.stderr.write(
            f"NOT AUDITED: {error}.\nThe packages were not checked. Try again with a network, or download OSV's export "
            "of PyPI elsewhere and run: make audit DATABASE=all.zip\n"
        )
        sys.exit(2)
    for finding in findings:
        sys.stdout.write(f"{finding.package} {finding.version}: {finding.id} {finding.summary}\n")
    sys.stdout.write(f"{len(read_pins(CONSTRAINTS))} packages, {len(findings)} known vulnerabilities\n")
    sys.exit(bool(findings))


if __name__ == "__main__":
    main()
