"""What expressions become in Triton's language: a kernel that reads all that they take, and writes the last result.

A kernel goes over the result as rows of its innermost dimensions. What multiplies or divides a row's coordinates is an
argument, so that the text, and with it what is compiled, is the same for every number of tokens and rows.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import torch

from pipelines.device.fusion.expressions import DTYPES, Expression, Given, each_size
from pipelines.device.fusion.recording import Place

LEAST_ROW: Final = 64  # elements: short dimensions are joined until a row has them
ALIGNED: Final = 16  # elements of which loads are vectors
MOST_LOADS: Final = 24
MOST_STEPS: Final = 96
ROW, COLUMN, BOTH = "row", "column", "both"


class Unplaceable(Exception):
    """An argument can't be computed where it is read: it has to be in memory."""

    def __init__(self, storage: int) -> None:
        super().__init__(storage)
        self.storage = storage


@dataclass(frozen=True, slots=True)
class Coordinate:
    """An index below `extent`, as text, of a row, within a row, or of both."""

    text: str
    extent: int
    of: str


@dataclass(frozen=True, slots=True)
class Condition:
    """Where a part of a joined tensor is read."""

    text: str
    of: str


@dataclass(frozen=True, slots=True)
class Source:
    """A kernel's text, and what it is called with: tensors from the start of their storages, and numbers."""

    text: str
    tensors: tuple[Place | torch.Tensor, ...]
    numbers: tuple[int, ...]
    rows: int
    columns: int


def source(root: Expression, inlined: Mapping[int, Expression]) -> Source:
    """Write the kernel of an expression, in which those that make `inlined` storages are computed where they are read.
    Raises Unplaceable."""
    return _Writer(root, inlined).write()


@dataclass
class _Writer:
    root: Expression
    inlined: Mapping[int, Expression]
    lines: list[str] = field(default_factory=list)
    tensors: dict[object, tuple[str, Place | torch.Tensor]] = field(default_factory=dict)
    numbers: dict[int, str] = field(default_factory=dict)
    known: dict[object, str] = field(default_factory=dict)
    loads: int = 0

    def write(self) -> Source:
        place = self.root.result
        dims = sorted((dim for dim, size in enumerate(place.size) if size > 1), key=lambda dim: place.stride[dim])
        if len(dims) <= 1:
            raise Unplaceable(place.storage)  # a single row is small, and may be of tokens
        inner = [dims.pop(0)]
        while dims and math.prod(place.size[dim] for dim in (*inner, dims[0])) <= LEAST_ROW:
            inner.append(dims.pop(0))
        columns, rows = (math.prod(place.size[dim] for dim in part) for part in (inner, dims))
        coordinates = [Coordinate("0", 1, COLUMN)] * len(place.size)
        for of, text, part in ((COLUMN, "c", inner), (ROW, "r", dims)):
            for number, dim in enumerate(part):
                size = place.size[dim]
                last = number == len(part) - 1
                name = self._named(text if last else f"{text} % {self._number(size, of)}")
                coordinates[dim] = Coordinate(name, size, of)
                if not last:
                    text = self._named(f"{text} // {self._number(size, of)}")
        value = self._value(self.root, tuple(coordinates), ())
        parameters = [*(name for name, _ in self.tensors.values()), "out", *self.numbers.values(), "rows"]
        row = f"tl.multiple_of(r.to(tl.int64) * {columns}, [{_aligned(columns)}, {_aligned(columns)}])"
        body = [
            "r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]",
            "c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]",
            "of_row = r < rows",
            f"of_column = c < {columns}",
            *self.lines,
            f"value = tl.broadcast_to({value}, [ROWS, BLOCK]).to(tl.{DTYPES[place.dtype]})",
            f"tl.store(out + {row} + c, value, mask=of_row & of_column)",
        ]
        signature = f"def fused({', '.join(parameters)}, ROWS: tl.constexpr, BLOCK: tl.constexpr):\n"
        text = signature + "".join(f"    {line}\n" for line in body)
        tensors = tuple(tensor for _, tensor in self.tensors.values())
        return Source(text, tensors, tuple(self.numbers), rows, columns)

    def _value(self, made: Expression, coordinates: tuple[Coordinate, ...], where: tuple[Condition, ...]) -> str:
        """Return the name of an expression's value at its coordinates, in float32, rounded to its result's format."""
        key = made.result.storage, coordinates, where
        if key in self.known:
            return self.known[key]
        if len(self.lines) > MOST_STEPS:
            raise Unplaceable(made.result.storage)
        if made.kind == "cat":
            name = self._part(made, coordinates, where)
        else:
            values = [self._read(each, made.result, coordinates, where) for each in made.arguments]
            match made.kind:
                case "copy":
                    text = values[0]
                case "neg":
                    text = f"{values[0]} * -1.0"  # Triton's minus makes 0 of 0, not -0
                case "square":
                    text = f"{values[0]} * {values[0]}"
                case "rsqrt":
                    text = f"tl.rsqrt({values[0]})"
                case symbol:
                    text = f" {symbol} ".join(values)
            name = self._named(_rounded(text, made.result.dtype))
        self.known[key] = name
        return name

    def _part(self, made: Expression, coordinates: tuple[Coordinate, ...], where: tuple[Condition, ...]) -> str:
        """Return the name of the value of the part in which a coordinate lies."""
        along, start, name = coordinates[made.dim], 0, ""
        for number, part in enumerate(made.arguments):
            size = each_size(part)[made.dim]
            conditions, shifted = [], along
            if number:
                first = self._number(start, along.of)
                conditions.append(f"({along.text} >= {first})")
                shifted = Coordinate(self._named(f"{along.text} - {first}"), size, along.of)
            if number < len(made.arguments) - 1:
                conditions.append(f"({along.text} < {self._number(start + size, along.of)})")
            start += size
            condition = Condition(self._named(" & ".join(conditions)), along.of)
            there = (*coordinates[: made.dim], Coordinate(shifted.text, size, along.of), *coordinates[made.dim + 1 :])
            value = self._read(part, made.result, there, (*where, condition))
            name = self._named(f"tl.where({condition.text}, {value}, {name})") if number else value
        return name

    def _read(
        self, given: Given, result: Place, coordinates: tuple[Coordinate, ...], where: tuple[Condition, ...]
    ) -> str:
        """Return an argument's value at these coordinates of the result, rounded to the result's format."""
        if isinstance(given, int | float):
            return repr(float(given))
        size, stride = tuple(each_size(given)), given.stride if isinstance(given, Place) else given.stride()
        offset = given.offset if isinstance(given, Place) else int(given.storage_offset())
        shared = coordinates[len(coordinates) - len(size) :]
        terms = [
            (coordinate, step)
            for coordinate, step, count in zip(shared, stride, size, strict=True)
            if step and count > 1
        ]
        made = self.inlined.get(given.storage) if isinstance(given, Place) else None
        if made is None:
            value = self._load(given, terms, offset, where, result.storage)
        elif made.result.dtype != given.dtype:
            raise Unplaceable(made.result.storage)
        else:
            value = self._value(made, self._coordinates(made.result, terms, offset), where)
        if result.dtype != torch.float32 and given.dtype != result.dtype:
            return self._named(_rounded(value, result.dtype))
        return value

    def _load(
        self,
        given: Place | torch.Tensor,
        terms: list[tuple[Coordinate, int]],
        offset: int,
        where: tuple[Condition, ...],
        reader: int,
    ) -> str:
        storage = given.storage if isinstance(given, Place) else -1 - given.untyped_storage()._cdata
        identity = storage, given.dtype
        pointer, _ = self.tensors.setdefault(identity, (f"t{len(self.tensors)}", given))
        ofs = {coordinate.of for coordinate, _ in terms}
        steps = [f"{_wide(each)} * {self._number(step, each.of)}" for each, step in terms if each.of != COLUMN]
        if offset:
            steps.append(self._number(offset, ROW))
        row = " + ".join(steps)
        if BOTH not in ofs and ROW in ofs and not any(step % ALIGNED for each, step in terms if each.of == ROW):
            row = f"tl.multiple_of({row}, [{ALIGNED}, {ALIGNED}])" if offset % ALIGNED == 0 else row
        columns = [each.text if step == 1 else f"{each.text} * {step}" for each, step in terms if each.of == COLUMN]
        place = " + ".join([pointer, *([f"({row})"] if row else []), *columns])
        masks = ["of_row"] if ofs & {ROW, BOTH} else []
        masks += ["of_column"] if ofs & {COLUMN, BOTH} else []
        masks += [each.text for each in where if BOTH in ofs or each.of in ofs] if ofs else []
        key = place, tuple(masks)
        if key not in self.known:
            self.loads += 1
            if self.loads > MOST_LOADS:
                raise Unplaceable(reader)
            mask = f", mask={' & '.join(masks)}, other=0" if masks else ""
            self.known[key] = self._named(f"tl.load({place}{mask}).to(tl.float32)")
        return self.known[key]

    def _coordinates(self, place: Place, terms: list[tuple[Coordinate, int]], offset: int) -> tuple[Coordinate, ...]:
        """Return the coordinates of a dense tensor at an offset from its start, and so many steps from there."""
        dims = sorted((dim for dim, size in enumerate(place.size) if size > 1), key=lambda dim: place.stride[dim])
        found: dict[int, list[tuple[Coordinate, int]]] = {dim: [] for dim in dims}
        first: dict[int, int] = {}
        for dim in reversed(dims):
            first[dim], offset = divmod(offset, place.stride[dim])
        most = dict(first)
        for coordinate, step in sorted(terms, key=lambda term: term[1]):
            rest = coordinate
            while True:
                below = [dim for dim in dims if place.stride[dim] <= step]
                dim = max(below, key=lambda dim: place.stride[dim], default=-1)
                if dim < 0 or step % place.stride[dim]:
                    raise Unplaceable(place.storage)
                times, size = step // place.stride[dim], place.size[dim]
                if most[dim] + times * (rest.extent - 1) < size:
                    most[dim] += times * (rest.extent - 1)
                    found[dim].append((rest, times))
                    break
                count = size // times
                if size % times or rest.extent % count or most[dim] >= times:
                    raise Unplaceable(place.storage)
                by = self._number(count, rest.of)
                low = Coordinate(self._named(f"{rest.text} % {by}"), count, rest.of)
                most[dim] += times * (count - 1)
                found[dim].append((low, times))
                rest = Coordinate(self._named(f"{rest.text} // {by}"), rest.extent // count, rest.of)
                step = place.stride[dim] * size
        if any(most[dim] >= place.size[dim] for dim in dims):
            raise Unplaceable(place.storage)
        return tuple(
            self._sum(found[dim], first[dim], most[dim] + 1) if dim in found else Coordinate("0", 1, COLUMN)
            for dim in range(len(place.size))
        )

    def _sum(self, parts: list[tuple[Coordinate, int]], first: int, extent: int) -> Coordinate:
        if len(parts) == 1 and parts[0][1] == 1 and not first:
            return parts[0][0]
        ofs = {coordinate.of for coordinate, _ in parts}
        of = ROW if not ofs else ofs.pop() if len(ofs) == 1 else BOTH
        texts = [each.text if times == 1 else f"{each.text} * {self._number(times, of)}" for each, times in parts]
        texts += [self._number(first, of)] if first or not parts else []
        return Coordinate(self._named(" + ".join(texts)), extent, of)

    def _number(self, value: int, of: str) -> str:
        """Return a number as text: within rows a literal, else an argument."""
        return str(value) if of == COLUMN else self.numbers.setdefault(value, f"n{len(self.numbers)}")

    def _named(self, text: str) -> str:
        """Return the name of a value that this line computes; of the same text the same."""
        if text.isidentifier():
            return text
        if ("line", text) not in self.known:
            self.known["line", text] = f"v{len(self.lines)}"
            self.lines.append(f"v{len(self.lines)} = {text}")
        return self.known["line", text]


def _rounded(text: str, dtype: torch.dtype) -> str:
    return text if dtype == torch.float32 else f"({text}).to(tl.{DTYPES[dtype]}).to(tl.float32)"


def _wide(coordinate: Coordinate) -> str:
    return f"({coordinate.text}).to(tl.int64)"


def _aligned(step: int) -> int:
    return ALIGNED if step % ALIGNED == 0 else 1
