"""`make near`: the test files that are nearest to changed files, best first.

Three signs count. A test imports the changed module, itself or through other modules: the fewer steps, the nearer. Its
path has words of the changed path. And it writes what the changed file defines (names, routes, codes of errors) and few
other tests write: this finds tests of a running server, which import nothing of it.
"""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import grimp

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("server", "pipelines", "starters", "benchmarks", "release", "tests")
STEPS = 3  # of imports, at most
CHOSEN = {True: 12, False: 5}  # of tests/unit, and of the others, which start engines and servers
DEFINED = re.compile(
    r"(?:def|class|const|function) (\w{4,})|^ {0,4}(\w{5,})(?:: [^=\n]+)? = |[\"'](/?[a-z][\w/{}.-]{5,})[\"']",
    re.MULTILINE,
)
WORD = re.compile(r"/?[A-Za-z_][\w/{}.-]{3,}")


def changed_files() -> list[str]:
    """Return the files that differ from the last commit, new ones too; if none does, those of the last commit."""
    new = ["git", "ls-files", "--others", "--exclude-standard"]
    for commands in ((["git", "diff", "--name-only", "HEAD"], new), (["git", "diff", "--name-only", "HEAD~1"],)):
        outputs = [
            subprocess.run(each, cwd=REPOSITORY, capture_output=True, text=True, check=True) for each in commands
        ]
        if found := [name for output in outputs for name in output.stdout.split()]:
            return found
    return []


def nearest(files: Iterable[str]) -> list[str]:
    """Return the test files to run after a change of these files, nearest first."""
    tests = _tests()
    spread = Counter(word for written in tests.values() for word in written)
    places = {name: _parts(name) for name in tests}
    scores, sharing = Counter[str](), Counter(part for parts in places.values() for part in parts)
    for file in files:
        if file in tests:
            scores[file] += 100
        for test, count in _steps(file).items():
            scores[test] += 4 / count**2
        defined = _defined(file) & spread.keys()
        for test, written in tests.items():
            scores[test] += sum(1 / spread[word] for word in defined & written)
            scores[test] += sum(3 / sharing[part] for part in places[test] & _parts(file))
    ranked = [test for test, score in scores.most_common() if score > 0]
    return [
        test
        for is_unit, count in CHOSEN.items()
        for test in [each for each in ranked if each.startswith("tests/unit/") == is_unit][:count]
    ]


@cache
def _tests() -> Mapping[str, set[str]]:
    """Return the words of each test file."""
    paths = (REPOSITORY / "tests").rglob("test_*.py")
    texts = {str(path.relative_to(REPOSITORY)): path.read_text() for path in paths}
    return {name: {*WORD.findall(text), *re.findall(r"\w{4,}", text)} for name, text in texts.items()}


@cache
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, cache_dir=str(REPOSITORY / ".import_linter_cache"))


def _steps(file: str) -> Mapping[str, int]:
    """Return how many imports each test file is away from a module, through the product's and the tests' own."""
    graph = _graph()
    module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    reached = {module} & graph.modules
    found = dict.fromkeys(reached, 0)
    for count in range(1, STEPS + 1):
        reached = {each for one in reached for each in graph.find_modules_that_directly_import(one)} - found.keys()
        found |= dict.fromkeys(reached, count)
    names = {each: f"{each.replace('.', '/')}.py" for each in found if each.rpartition(".")[2].startswith("test_")}
    return {name: found[each] for each, name in names.items() if found[each]}


def _parts(file: str) -> set[str]:
    """Return the words of a path."""
    return {word for word in re.split(r"[/_.]", file) if len(word) > 3 and word not in {"tests", "server", "unit"}}


def _defined(file: str) -> set[str]:
    """Return what a file defines, its name, and the texts in it that are names."""
    path = REPOSITORY / file
    text = path.read_text(errors="replace") if path.is_file() and path.stat().st_size < 1_000_000 else ""
    return {path.stem, path.name, *(word for found in DEFINED.findall(text) for word in found if word)}


if __name__ == "__main__":
    print("\n".join(nearest(sys.argv[1:] or changed_files())))
