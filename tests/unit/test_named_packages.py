"""Packages that messages and pages tell people to install: each has that name in the registry, and is what is said."""

import re
import tomllib
from collections.abc import Iterator
from itertools import chain

import pytest

from pipelines.checkpoints.folder.libraries import EXTRAS, QUANTIZERS
from pipelines.device.quantizers import LIBRARIES
from server.data_folders import REPOSITORY

# Looked up by hand, or named by transformers and diffusers in their own messages. `mslk` is there too, and is empty:
# the module of that name is in mslk-cuda.
PUBLISHED = frozenset({
    "amd-quark", "aqlm", "auto-round", "bitsandbytes", "compressed-tensors", "gptqmodel", "hqq", "huggingface-hub",
    "kernels", "mslk-cuda", "nvidia-modelopt", "open-webui", "optimum", "optimum-quanto", "sdnq", "sinq", "spqr-quant",
    "torchao", "vptq",
})  # fmt: skip
COMMAND = re.compile(r"pip3? install ((?:[^`\n\"#|;)]|\"(?=\[))+)")
OWN = re.compile(r"^(-e|\.|\./.*|darkroom)?(\[(?P<extras>[\w,-]+)\])?$")
NAME = re.compile(r"^([A-Za-z][\w.-]*?)(?:\[[\w,-]+\])?(?:[=<>~!]=.*)?$")
TAKE_A_VALUE = ("--constraint", "-c", "--extra-index-url", "--index-url")
PLACES = ("server/**/*.py", "pipelines/**/*.py", "benchmarks/**/*.py", "docs/**/*.md", "*.md", "deploy/*")


def normal(name: str) -> str:
    """As registries compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def own_packages() -> tuple[set[str], set[str]]:
    """The packages that pyproject.toml names, and its extras."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    listed = chain(project["dependencies"], *extras.values())
    return {normal(re.split(r"[\[<>=~!;]", each)[0]) for each in listed}, set(extras)


def words_of_commands() -> Iterator[tuple[str, str]]:
    """What the commands install, with the file."""
    for file in chain.from_iterable(REPOSITORY.glob(place) for place in PLACES):
        for command in COMMAND.findall(file.read_text(errors="replace")) if file.is_file() else ():
            words = [word.strip("'\".,:?") for word in command.split()]
            for before, word in zip(["", *words], words, strict=False):
                is_option = word.startswith("-") and word != "-e"
                if word and not is_option and before not in TAKE_A_VALUE and not re.search(r"[{}$*(\\]", word):
                    yield word, str(file.relative_to(REPOSITORY))


def problem_of(word: str, packages: set[str], extras: set[str]) -> str | None:
    if own := OWN.match(word):
        unknown = set(filter(None, (own["extras"] or "").split(","))) - extras
        return f"no extra {unknown}" if unknown else None
    name = NAME.match(word)
    return None if name and normal(name[1]) in packages | PUBLISHED else "no package that was looked up"


def test_commands_name_packages_that_there_are() -> None:
    packages, extras = own_packages()
    found = list(words_of_commands())
    assert len(found) > 5
    wrong = [(word, file, said) for word, file in found if (said := problem_of(word, packages, extras))]
    assert wrong == []


@pytest.mark.parametrize("table", [LIBRARIES, QUANTIZERS])
def test_libraries_of_checkpoints_are_packages_that_there_are(table: dict[str, tuple[str, ...]]) -> None:
    packages, _ = own_packages()
    assert {normal(name) for name in chain(*table.values())} - packages - PUBLISHED == set()


def test_extras_of_messages_are_extras() -> None:
    assert set(EXTRAS.values()) <= own_packages()[1]


@pytest.mark.parametrize(("word", "is_right"), [("mslk", False), (".[visoin]", False), ("mslk-cuda", True)])
def test_a_wrong_name_is_found(word: str, is_right: bool) -> None:
    assert (problem_of(word, *own_packages()) is None) is is_right
