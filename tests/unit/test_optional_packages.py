"""The server needs none of the packages that only some settings use (`[project.optional-dependencies]`)."""

import subprocess
import sys

OPTIONAL = (
    "psycopg", "obstore", "gguf", "ray", "c2pa", "authlib", "joserfc", "opentelemetry.sdk", "opentelemetry.exporter",
    "requests", "torchvision", "sentencepiece",
)  # fmt: skip
WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL!r})); "


def test_the_server_and_its_commands_are_imported_without_optional_packages() -> None:
    subprocess.run([sys.executable, "-P", "-c", f"{WITHOUT}import server.app, server.cli.app"], check=True)


def test_traces_without_their_packages_are_an_error_that_names_them() -> None:
    script = f"{WITHOUT}from server.telemetry.tracing import Tracing; Tracing('http://collector:4318')"
    failed = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True)
    assert "StartError: DARKROOM_TRACING needs more packages" in failed.stderr
