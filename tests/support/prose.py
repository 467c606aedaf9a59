"""What prose names (documentation, docstrings, comments), and what the code has: names, files, commands, routes.

Text is read by regular expressions and not parsed, since all of it is read in each run of the tests.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import typer

from server.cli.app import app
from server.data_folders import REPOSITORY

FOLDERS = ("server", "pipelines", "starters", "tests", "benchmarks", "release", "model_configs", "docs", "deploy")
EXAMPLES = "tests/unit/test_names_in_prose.py"  # has names that are no names
CODE = re.compile(r"\.(py|m?js|toml|json|ya?ml|jinja|sh|cpp|h|html|conf|service|sbatch|cuda)$|/?(Makefile|Caddyfile)$")
NOT_OURS = (
    "server/site",
    "docs/reference/api",
    "server/console/vendor",
    "tests/node/node_modules",
    "tests/e2e/home_of",
)
WORD = re.compile(r"[\w.-]+")
PYTHON = re.compile(r'"""[\s\S]*?"""|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|#[^\n]*')
QUOTED = re.compile(r"(?<!`)`([^`]+)`(?!`)")
FENCE = re.compile(r"^ *```(\w*)[^\n]*\n([\s\S]*?)^ *```", re.MULTILINE)
NOT_PROSE = re.compile(r"`[^`]*`|https?://\S+|\S+[=:({\[\]]\S+|\w+=")  # and code without backticks
RAISES = re.compile(r"Raises? ((?:[^.]|\.\w)*)")
MAP = re.compile(r"(?:^- |; )(\w+(?:, \w+)*)/?: ", re.MULTILINE)  # of a package's modules, in its docstring
IN_EXAMPLE = {
    "sh": re.compile(r"^(?:\S*/)?(darkroom [^#|>&\n\\]*[^#|>&\n\\ ]|make [a-z-]+)", re.MULTILINE),
    "toml": re.compile(r"^(\w+ = |\[+[\w.]+\]+)", re.MULTILINE),
}
LEFT_OUT = re.compile(rf"{FENCE.pattern}|^<!-- .* writes this -->$[\s\S]*?^<!-- end", re.MULTILINE)  # results, too
SNAKE = re.compile(r"(?<![\w./<{*-])_?[a-zA-Z][a-z0-9]*(?:_[a-z0-9]+)+(?![\w/*<{-]|\.\.)|(?<![\w.-])[A-Za-z_]\w+(?=\()")
DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*(?:\(\))?")
PATH = re.compile(r"[\w./<>*-]+\.(?:py|md|toml|jinja|mjs|js|json|svg|sh|yaml|yml|cpp|h)(?=:\d+$|$)|[\w./<>*-]+/(?=$)")
ROUTE = re.compile(r"(?:(?:GET|POST|PUT|PATCH|DELETE) )?(/[\w{}/.]*)")
SERVED = re.compile(r"/(?:v1|v1beta|admin|console|cdn|readyz|healthz|metrics|docs)(?:/|$)")
STATED = re.compile(r"`|DARKROOM_[A-Z]")
MEMBER = re.compile(r"def (\w+)|^    (\w+) *[:=]|self\.(\w+)(?:: [^=\n]+)? = ", re.MULTILINE)


@dataclass(frozen=True)
class Named:
    """Something that prose names, and where."""

    text: str
    place: str


@dataclass
class Code:
    """What there is in the repository, and what its prose names."""

    words: set[str] = field(default_factory=set)
    paths: set[str] = field(default_factory=set)  # of files and folders, with every ending of each
    members: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    bases: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    routes: set[str] = field(default_factory=set)
    named: list[Named] = field(default_factory=list)

    @cached_property
    def targets(self) -> set[str]:
        return set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))

    @cached_property
    def commands(self) -> Any:
        return typer.main.get_command(app)

    def lacks(self, text: str) -> list[str]:
        """Return what of this text, which stood between backticks, the repository has not."""
        if text.startswith("make "):
            return [target for target in re.findall(r"^make ([a-z][a-z-]*)", text) if target not in self.targets]
        if command := re.fullmatch(r"(?:\S*/)?darkroom ([\s\S]+)", text):
            return self._lacks_command(command[1].split())
        if module := re.match(r"python -m ([\w.]+)", text):
            return self._lacks_dotted(module[1])
        if text.split()[0] in self.commands.commands and re.fullmatch(r"[a-z]+ [a-z-]+", text):
            return self._lacks_command(text.split())
        if found := ROUTE.fullmatch(text):
            return self._lacks_route(found[1])
        if found := PATH.match(text):
            return self._lacks_path(found[0])
        if DOTTED.fullmatch(text):
            return self._lacks_dotted(text.removesuffix("()"))
        if text.startswith("--"):
            return [] if text.split()[0].partition("=")[0] in self.words else [text]
        names = [*SNAKE.findall(text), *re.findall(r"^(\w+) = |^\[+(\w+)[\].]", text)]
        return [name for each in names for name in ([each] if isinstance(each, str) else each) if not self.knows(name)]

    def knows(self, name: str) -> bool:
        """Return whether the code has the name; the names of metrics are put together there."""
        return not name or name in self.words or name.removeprefix("darkroom_").removesuffix("_total") in self.words

    def _lacks_command(self, words: list[str]) -> list[str]:
        command = self.commands
        for word in words:
            if not hasattr(command, "commands") or not re.fullmatch(r"[a-z][a-z-]*", word):
                break
            if word not in command.commands:
                return [f"darkroom {' '.join(words)}"]
            command = command.commands[word]
        allowed = {name for each in command.params for name in each.opts} | {"--help"}
        options = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
        return [] if hasattr(command, "commands") else [option for option in options if option not in allowed]

    def _lacks_route(self, path: str) -> list[str]:
        wanted = re.sub(r"\{\w*\}", "{}", path).rstrip("/")
        known = any(route == wanted or route.startswith(f"{wanted}/") for route in self.routes)
        return [] if known or not SERVED.match(path) else [path]

    def _lacks_path(self, path: str) -> list[str]:
        wanted = path.rstrip("/").removeprefix("./")
        if any(sign in wanted for sign in "<*"):
            wanted = re.split(r"[<*]", wanted)[0].rpartition("/")[0]
        own = "/" not in wanted or wanted.split("/")[0] in self.paths
        return [] if not own or wanted in self.paths or wanted in self.words else [path]

    def _lacks_dotted(self, text: str) -> list[str]:
        first, *rest = text.split(".")
        if first in self.members and rest and not self._has_member(first, rest[0]):
            return [text]
        if first in FOLDERS and rest:
            package, module = "/".join([first, *rest]), "/".join([first, *rest[:-1]]) + ".py"
            known = {package, f"{package}.py"} & self.paths or (module in self.paths and self.knows(rest[-1]))
            return [] if known else [text]
        return [] if all(self.knows(name) for name in [first, *rest]) else [text]

    def _has_member(self, name: str, member: str) -> bool:
        """Return whether a class of this name, or a base of it, has the member; a base of others may have any."""
        own = self.members.get(name)
        return own is None or member in own or any(self._has_member(base, member) for base in self.bases[name])


def read_repository() -> Code:
    """Read all files that are code or prose."""
    code = Code()
    for path in sorted(_files()):
        name = path.relative_to(REPOSITORY).as_posix()
        parts = name.split("/")
        code.paths.update("/".join(parts[start:end]) for end in range(1, len(parts) + 1) for start in range(end))
        code.words.update(path.stem.split("."), parts[:-1])
        if name == EXAMPLES:
            continue
        if path.suffix == ".md":
            if name != "CHANGELOG.md":  # which tells of what there was
                code.named += _named_in_page(path.read_text(), name)
        elif path.suffix == ".svg":
            words = [word for text in re.findall(r"<text[^>]*>([^<]*)", path.read_text()) for word in text.split()]
            code.named += [Named(word.strip(",;:"), name) for word in words if re.search(r"[/_]|\.py\b", word)]
        elif path.suffix == ".py":
            _read_python(path.read_text(), name, code)
        elif CODE.search(name):
            text = path.read_text()
            words = WORD.findall(re.sub(r"(?m)^\s*#.*", "", text))
            code.words.update(word for word in words if not STATED.search(word))
            code.named += [Named(each, name) for each in re.findall(r"DARKROOM_[A-Z0-9_]+", text)]
            if path.suffix not in (".js", ".mjs", ".json"):
                code.named += _quoted("".join(re.findall(r"#.*\n|\n", text)), name, 1)
    code.words.update(word for each in tuple(code.words) for word in each.replace("-", ".").split("."))
    code.words.update(_options(code.commands))
    code.paths.update(re.findall(r"^/([\w-]+/[\w/-]+)/$", (REPOSITORY / ".gitignore").read_text(), re.MULTILINE))
    return code


def _files() -> Iterator[Path]:
    yield from (path for path in REPOSITORY.iterdir() if path.is_file() and path.stat().st_size < 1_000_000)
    for folder in FOLDERS:
        for path in (REPOSITORY / folder).rglob("*"):
            name = path.relative_to(REPOSITORY).as_posix()
            if path.is_file() and "__pycache__" not in name and not name.startswith(NOT_OURS):
                yield path


def _named_in_page(text: str, name: str) -> Iterator[Named]:
    """List what a page of Markdown names between backticks, and the commands, keys and settings of its examples."""
    for block in FENCE.finditer(text):
        number = text.count("\n", 0, block.start()) + 1
        for each in IN_EXAMPLE[block[1]].findall(block[2]) if block[1] in IN_EXAMPLE else ():
            yield Named(each, f"{name}:{number}")
    text = LEFT_OUT.sub(lambda block: "\n" * block[0].count("\n"), text)
    yield from _quoted(text, name, 1)
    for setting in re.finditer(r"DARKROOM_[A-Z0-9_]+\b", text):
        yield Named(setting[0], f"{name}:{text.count(chr(10), 0, setting.start()) + 1}")


def _quoted(text: str, name: str, line: int) -> Iterator[Named]:
    for found in QUOTED.finditer(text):
        yield Named(" ".join(found[1].split()), f"{name}:{line + text.count(chr(10), 0, found.start())}")


def _named_in_package(text: str, folder: str) -> Iterator[Named]:
    """List the modules that a package's docstring explains, and what it names of them as `module.name`."""
    for each in (each for listed in MAP.findall(text) for each in listed.split(", ")):
        yield Named(f"{folder}/{each}" if (REPOSITORY / folder / each).is_dir() else f"{folder}/{each}.py", folder)
    for module, name in re.findall(r"(?<![\w.`])([a-z_]+)\.(_?[a-z]\w+)\b", text):
        if (REPOSITORY / folder / f"{module}.py").exists():
            yield Named(name, folder)


def _unquoted(text: str) -> set[str]:
    """Return the words without backticks that can only be names: with underscores, and exceptions that are raised."""
    raised = (word for sentence in RAISES.findall(text) for word in re.findall(r"\b[A-Z][a-z]+[A-Z]\w+", sentence))
    return {*SNAKE.findall(NOT_PROSE.sub("", text)), *raised}


def _read_python(text: str, name: str, code: Code) -> None:
    """Take the words of a module, its classes and routes, and what its docstrings and comments name."""

    is_product = name.startswith(("server/", "pipelines/"))

    def kept(found: re.Match[str]) -> str:
        part = found[0]
        if part[0] == "#" or part.startswith('"""'):
            if "`" in part or ((" Raise" in part or "_" in part) and is_product):
                line = text.count("\n", 0, found.start()) + 1
                code.named += _quoted(part, name, line)
                code.named += (Named(each, f"{name}:{line}") for each in _unquoted(part) if is_product)
            return ""
        if " " in part:  # a sentence, whose names are prose, or a line of SQL or of a command
            if "`" in part:
                code.named += _quoted(part, name, text.count("\n", 0, found.start()) + 1)
            return " ".join(word for word in part.split() if ("_" in word or "--" in word) and not STATED.search(word))
        return part

    if name.endswith("/__init__.py"):
        code.named += _named_in_package(text, name.removesuffix("/__init__.py"))
    bare = PYTHON.sub(kept, text)
    code.words.update(WORD.findall(bare))
    for start in re.finditer(r"^class (\w+)(?:\[[^\n]*?\])?(?:\(([^)]*)\))?:([\s\S]*?)(?=^\S|\Z)", bare, re.MULTILINE):
        code.members[start[1]].update(word for found in MEMBER.findall(start[3]) for word in found if word)
        code.bases[start[1]].update(re.findall(r"\w+", start[2] or ""))
    prefixes = re.findall(r'APIRouter\((?:prefix="([^"]*)")?', text)
    for prefix in {*prefixes, ""} if prefixes else ():
        for path in ["", *re.findall(r'"(/[\w{}:/.]+)"', text)]:
            code.routes.add(re.sub(r"\{\w+(?::\w+)?\}", "{}", prefix + path))


def _options(command: Any) -> Iterator[str]:
    for each in getattr(command, "commands", {}).values():
        yield from _options(each)
    yield from (name for each in command.params for name in [*each.opts, each.name.upper()])
