"""Every place that deletes files says by what it knows that they are its own: never by not knowing them."""

import ast
from pathlib import Path

from tests.support.harness import REPOSITORY

NAMES = {"unlink", "rmtree", "remove", "rmdir", "removedirs"}
OWN_NAME = "a file whose name was made here, of this process"
KNOWN = {
    "server/accounts/copies.py": "the part of a copy that is being made, and the database that a restore replaces",
    "server/backends/decoding/pool.py": "pixels, by the names that are given to them",
    "server/backends/storage.py": "files that its callers name, which the database has named",
    "server/cli/serve.py": "the home's secret of webhooks, which the cluster's replaces",
    "server/flows/catalog/files.py": "catalog files whose text the cluster has had, never one that was edited",
    "server/flows/operators/checkpoints.py": "the catalog file that an operator names",
    "server/secret_files.py": OWN_NAME,
    "pipelines/checkpoints/folder/versions.py": "a checkpoint that an operator names, and blobs that nothing links to",
    "pipelines/device/attention.py": "marks of kernels that are being tried, by the names that are given to them",
    "pipelines/images/warmup/check_records.py": "records of checks, by the names that are given to them",
    "pipelines/protocol/raw_image_file.py": OWN_NAME,
}


def deletes(file: Path) -> bool:
    tree = ast.parse(file.read_text())
    owners = {"os", "shutil"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in NAMES:
            on = node.value.id if isinstance(node.value, ast.Name) else ""
            if node.attr in {"unlink", "rmtree"} or on in owners:
                return True
    return False


def test_every_place_that_deletes_files_is_known() -> None:
    files = [file for folder in ("server", "pipelines") for file in (REPOSITORY / folder).rglob("*.py")]
    found = {str(file.relative_to(REPOSITORY)) for file in files if deletes(file)}
    cluster = "server/backends/cluster"  # which unlinks connections
    links = {f"{cluster}/{name}.py" for name in ("shared_engine", "engine_actor", "transport")}
    assert found - links == set(KNOWN)
