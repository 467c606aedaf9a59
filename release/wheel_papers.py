"""What a security office asks for of the bundled wheels: an SBOM (CycloneDX) and the texts of their licences."""

import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from release.verify import sha256_of
from release.wheels import Wheel

LICENCE_FILE = re.compile(r"\.dist-info/(licenses/.*|[^/]*(LICEN[CS]E|COPYING|NOTICE|AUTHORS)[^/]*)$", re.IGNORECASE)


def licence_of(wheel: Wheel) -> str:
    """The licence that the wheel names: an expression, a word, or its classifiers."""
    metadata = wheel.metadata
    named = metadata["License-Expression"] or (metadata["License"] or "").strip()
    if named and "\n" not in named and len(named) <= 100:
        return str(named)
    classifiers = [line for line in metadata.get_all("Classifier", []) if line.startswith("License ::")]
    return "; ".join(line.rpartition(" :: ")[2] for line in classifiers) or "see its files"


def write_sbom(wheels: Sequence[Wheel], version: str, path: Path) -> None:
    """CycloneDX 1.6 as JSON, with the hash of each wheel."""
    bom = Bom()
    bom.metadata.component = Component(name="darkroom", version=version, type=ComponentType.APPLICATION)
    licences = LicenseFactory()
    for wheel in wheels:
        purl = PackageURL("pypi", name=wheel.name, version=str(wheel.version))
        bom.components.add(
            Component(
                name=wheel.name,
                version=str(wheel.version),
                type=ComponentType.LIBRARY,
                purl=purl,
                bom_ref=str(purl),
                hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256_of(wheel.path))],
                licenses=[licences.make_from_string(licence_of(wheel))],
            )
        )
    bom.register_dependency(bom.metadata.component, bom.components)
    JsonV1Dot6(bom).output_to_file(str(path), allow_overwrite=True, indent=2)


def write_licences(wheels: Sequence[Wheel], folder: Path) -> list[str]:
    """A table, and the licence files of each wheel. Returns the names of wheels without any."""
    rows, without = ["| package | version | licence |", "| --- | --- | --- |"], []
    for wheel in wheels:
        rows.append(f"| {wheel.name} | {wheel.version} | {licence_of(wheel)} |")
        if not _extract(wheel, folder / f"{wheel.name}-{wheel.version}"):
            without.append(wheel.name)
    folder.mkdir(exist_ok=True)
    (folder / "README.md").write_text("\n".join(["# Licences of the bundled packages", "", *rows, ""]))
    return without


def _extract(wheel: Wheel, folder: Path) -> int:
    """Returns the number of files."""
    with zipfile.ZipFile(wheel.path) as archive:
        names = [name for name in archive.namelist() if LICENCE_FILE.search(name) and not name.endswith("/")]
        for name in names:
            path = folder / name.partition(".dist-info/")[2].removeprefix("licenses/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.read(name))
    return len(names)
