"""Hashes of files, by their versions: a hash tells a file from any other."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from pipelines.checkpoints.folder.sums import sha256_of
from pipelines.checkpoints.folder.versions import FileVersion
from pipelines.checkpoints.weight_file.header import WEIGHT_FILES


@dataclass(slots=True)
class FileHashes:
    """The SHA-256 of files by their versions, as "sha256:" and hexadecimal digits. Used by several threads."""

    known: dict[FileVersion, str] = field(default_factory=dict)

    def find(self, version: FileVersion) -> str | None:
        """Return the hash of this version, from memory or from the disk; None if the file is another now."""
        return self.known.get(version) or self.read(version)

    def read(self, version: FileVersion) -> str | None:
        """Read the file whole, so that the page cache has it, and keep its hash if it is this version still."""
        try:
            digest = sha256_of(version.path)
        except OSError:
            return None
        if FileVersion.find(version.path) != version:
            return None
        self.known[version] = f"sha256:{digest}"
        return self.known[version]

    def of_folder(self, folder: Path) -> str:
        """Return the hash of its weights: that of one file, or of the hashes of several. Files that change meanwhile
        count as nothing."""
        versions = [FileVersion.find(file) for file in sorted(folder.glob(WEIGHT_FILES))]
        hashes = [self.read(version) or "" for version in versions if version is not None]
        if len(hashes) == 1:
            return hashes[0]
        return f"sha256:{hashlib.sha256(' '.join(hashes).encode()).hexdigest()}"
