"""Choose sizes for the open axes of generated inputs, so that they fit together.

One symbol has one size. Beyond that the names tell: a mask is of the past and of what is new, all
batches are one, a picture has some height. Where names tell too little, a few combinations are
tried, and if none runs, the error says which sizes did not fit and how to set them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import TypeAlias, TypeVar

from engine.config.wording import own_text, reworded
from engine.errors import InputError, ModelError
from engine.host.interrupts import pass_interrupt
from engine.types import TensorSpec, ValueKind

Shape: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = dict[str, Shape]
T = TypeVar("T")
R = TypeVar("R")

PICTURE = 64
"""Height and width of a picture: halved six times it is still one."""
_PICTURES = (32, 224, 640, 1)
_OTHERS = (8, 32, 128, 1024, 16000)
"""Sizes tried where 1 does not run: for windows, kernels, samples of a sound."""

MISFITS = (InputError, ModelError)
"""Errors of a run whose sizes do not fit together."""


class Role(Enum):
    """Meaning of an open axis: what it counts."""

    BATCH = "batch"
    NEW = "new"  # tokens of this run
    PAST = "past"  # those in the cache
    TOTAL = "total"  # both
    PICTURE = "picture"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Axis:
    """The axes of one symbol. name: the symbol, or where an axis is that has none.

    input, place: of the first. low, high: the sizes that the model was compiled for.
    """

    name: str
    role: Role
    input: str
    place: int
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class _Choice:
    """One way to choose; None for the size that suits most models.

    total: by what it is made, "sum", "past", "new" or "symbol" (its own, as 'past + 1').
    """

    size: int
    past: int | None = None
    total: str = "sum"
    picture: int = PICTURE
    other: int | None = None


def fitting_shapes(
    specs: Sequence[TensorSpec],
    given: Mapping[str, Shape] | None = None,
    size: int = 1,
    advice: str = "pass inputs",
) -> Iterator[Shapes]:
    """Yield shapes of all inputs but those of an open rank, the likeliest to fit together first.

    given: shapes of inputs that are known; they are kept. size: of an axis of which nothing tells
    more. advice: what to do where given sizes cannot be; InputError is raised then.
    """
    known = dict(given or {})
    axes = open_axes(specs)
    said = _said(specs, known)
    seen: list[Shapes] = []
    for choice in _choices({*axes.values()}, size):
        sizes = _sized(axes, said, choice, advice)
        shapes = _shapes(specs, sizes, known)
        if shapes not in seen:
            seen.append(shapes)
            yield shapes


def shapes_of_size(specs: Sequence[TensorSpec], rows: int, size: int) -> Shapes:
    """Return shapes whose open axes are all of one size, but sums and what was compiled for less.

    rows: the first axis of every input.
    """
    axes = open_axes(specs)
    said = {
        _key(spec, 0): rows for spec in specs if spec.shape and not isinstance(spec.shape[0], int)
    }
    sizes = _sized(axes, said, _Choice(size, picture=size), "")
    return _shapes(specs, sizes, {})


def first_that_runs(
    candidates: Iterable[T],
    run: Callable[[T], R],
    describe: Callable[[T], str],
    advice: str,
    misfits: tuple[type[Exception], ...] = MISFITS,
) -> tuple[T, R]:
    """Run one candidate after another until one does; returns it, and its result.

    describe: says the sizes of one, and which disagree. advice: how to set them. Raises the first
    one's error, with these, where none runs and there were several.
    """
    first: Exception | None = None
    tried: list[T] = []
    for candidate in candidates:
        try:
            return candidate, run(candidate)
        except misfits as error:
            pass_interrupt(error)
            first = first or error
            tried.append(candidate)
    assert first is not None, "there is one candidate at least"
    if len(tried) > 1:
        more = f"; sizes of open axes were chosen, and none of {len(tried)} choices runs, as "
        text = f"{own_text(first)}{more}{describe(tried[0])}"
        reworded(first, f"{text}; {advice}" if advice else text)
    raise first


def described(specs: Sequence[TensorSpec], shapes: Mapping[str, Shape]) -> str:
    """Return the sizes of open axes for people: "sequence_length 1, 'x' axis 2: 64"."""
    sizes: dict[str, int] = {}
    for spec in specs:
        for place, dim in enumerate(spec.shape or ()):
            if not isinstance(dim, int) and place < len(shapes.get(spec.name, ())):
                sizes.setdefault(_key(spec, place), shapes[spec.name][place])
    return ", ".join(f"{name} {size}" for name, size in sizes.items())


# ------------------------------------------------------------------------------------- the roles


def open_axes(specs: Sequence[TensorSpec]) -> dict[str, Axis]:
    """Return the open axes by their symbols."""
    has_past = any(_is_cache(spec.name) and not _is_position(spec.name) for spec in specs)
    axes: dict[str, Axis] = {}
    for spec in specs:
        for place, dim in enumerate(spec.shape or ()):
            if isinstance(dim, int):
                continue
            key = _key(spec, place)
            bound = spec.bounds[place] if place < len(spec.bounds) else None
            low, high = bound if bound is not None else (0, None)
            role = _of_symbol(key if isinstance(dim, str) else "", place)
            if role is Role.OTHER:
                role = _of_place(spec, place, has_past)
            before = axes.get(key)  # a batch is one where it is met first
            if before is None or (before.role is Role.OTHER and role is not Role.BATCH):
                axes[key] = Axis(key, role, spec.name, place, low, high)
    return axes


_UNNAMED = re.compile(r"[?*-]|-1|unk__\d+|")


def _key(spec: TensorSpec, place: int) -> str:
    dim = (spec.shape or ())[place]
    if isinstance(dim, str) and not _UNNAMED.fullmatch(dim):
        return dim
    return f"{spec.name!r} axis {place}"


def _of_symbol(symbol: str, place: int) -> Role:
    word = symbol.lower()
    if "total" in word or ("past" in word and _names_in(symbol) is not None and "+" in word):
        return Role.TOTAL
    if "past" in word or "cache" in word:
        return Role.PAST
    if "batch" in word:
        return Role.BATCH
    if word in ("h", "w") or "height" in word or "width" in word:
        return Role.PICTURE
    if "seq" in word or "token" in word:
        return Role.NEW
    return Role.OTHER


def _of_place(spec: TensorSpec, place: int, has_past: bool) -> Role:
    """Return what an axis counts whose symbol does not tell, by its input."""
    shape, name = spec.shape or (), spec.name.lower()
    is_last = all(isinstance(dim, int) for dim in shape[place + 1 :])
    if _is_position(name):
        return Role.NEW if is_last else Role.BATCH
    if _is_cache(name):
        return Role.PAST if is_last and place else Role.BATCH
    if "mask" in name and has_past and place:
        return Role.TOTAL if is_last else Role.NEW
    if place == 0 and len(shape) > 1:
        return Role.BATCH
    if ("ids" in name or "token" in name or "mask" in name) and place == 1:
        return Role.NEW
    if len(shape) == 4 and place and {shape[1], shape[3]} & {1, 3, 4}:  # channels
        return Role.PICTURE
    return Role.OTHER


def _is_cache(name: str) -> bool:
    return "past" in name.lower() or "cache" in name.lower()


def _is_position(name: str) -> bool:
    return "position" in name.lower()


# ------------------------------------------------------------------------------------- the sizes


def _shapes(
    specs: Sequence[TensorSpec], sizes: Mapping[str, int], known: Mapping[str, Shape]
) -> Shapes:
    return {
        spec.name: known.get(spec.name)
        or tuple(
            dim if isinstance(dim, int) else sizes[_key(spec, place)]
            for place, dim in enumerate(spec.shape)
        )
        for spec in specs
        if spec.shape is not None and spec.kind is not ValueKind.MAP
    }


def _said(specs: Sequence[TensorSpec], given: Mapping[str, Shape]) -> dict[str, int]:
    """Return the sizes of symbols that known inputs have."""
    said: dict[str, int] = {}
    for spec in specs:
        if spec.name in given and spec.kind is ValueKind.TENSOR:
            for place, size in enumerate(given[spec.name][: len(spec.shape or ())]):
                if not isinstance((spec.shape or ())[place], int):
                    said.setdefault(_key(spec, place), size)
    return said


def _choices(axes: set[Axis], size: int) -> Iterator[_Choice]:
    """Yield ways to choose the sizes that are not said; the first suits most models."""
    roles = {axis.role for axis in axes}
    yield _Choice(size)
    if {Role.TOTAL, Role.PAST} <= roles:
        yield _Choice(size, total="symbol")
        yield _Choice(size, total="past")
        yield _Choice(size, total="new")
    if Role.PAST in roles:
        yield _Choice(size, past=0)
    if Role.PICTURE in roles:
        yield from (_Choice(size, picture=edge) for edge in _PICTURES)
    if Role.OTHER in roles:
        yield from (_Choice(size, other=other) for other in _OTHERS)
    if roles:
        yield from (_Choice(every) for every in (1, 2, 8, 32) if every != size)


def _sized(
    axes: Mapping[str, Axis], said: Mapping[str, int], choice: _Choice, advice: str
) -> dict[str, int]:
    """Return the size of each symbol."""
    by_role: dict[Role, list[str]] = {role: [] for role in Role}
    for key, axis in axes.items():
        by_role[axis.role].append(key)

    def of(role: Role, otherwise: int) -> int:
        return next((said[key] for key in by_role[role] if key in said), otherwise)

    batch, new = of(Role.BATCH, choice.size), of(Role.NEW, choice.size)
    past = choice.size if choice.past is None else choice.past
    total = next((key for key in by_role[Role.TOTAL] if key in said), None)
    if by_role[Role.PAST] and total is not None and choice.total == "sum":
        past = said[total] - new
        if past < 0 and not any(key in said for key in by_role[Role.PAST]):
            raise _disagreeing(axes, total, by_role[Role.NEW], said[total], new, advice)
    past = of(Role.PAST, max(past, 0))
    totals = {"sum": past + new, "past": past, "new": new, "symbol": past + new}
    values = {
        Role.BATCH: batch,
        Role.NEW: new,
        Role.PAST: past,
        Role.TOTAL: totals[choice.total] if by_role[Role.PAST] else new,
        Role.PICTURE: choice.picture,
        Role.OTHER: choice.size if choice.other is None else choice.other,
    }
    sizes = {key: said.get(key, values[axis.role]) for key, axis in axes.items()}
    for key, axis in axes.items():
        is_literal = axis.role is not Role.TOTAL or choice.total == "symbol"
        if key not in said and is_literal:
            sizes[key] = _evaluated(key, sizes)
        low, high = axis.low, axis.high
        if key not in said and high is not None:
            sizes[key] = min(max(sizes[key], low), high)
    return sizes


def _disagreeing(
    axes: Mapping[str, Axis], total: str, news: Sequence[str], whole: int, new: int, advice: str
) -> InputError:
    mine, other = axes[total], axes[news[0]] if news else None
    beside = f" and {other.name} of input {other.input!r} {new}" if other is not None else ""
    return InputError(
        f"input {mine.input!r}: its {mine.name} is {whole}{beside}, which leaves no room for a "
        f"past; expected {new} or more; {advice}",
        mine.input,
    )


def _names_in(symbol: str) -> list[str] | None:
    """Return the symbols in an expression such as 'past + 1'; None for what is none."""
    try:
        tree = ast.parse(symbol, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not isinstance(tree, ast.BinOp):
        return None
    nodes = [*islice(ast.walk(tree), 64)]
    allowed = (
        ast.BinOp,
        ast.Name,
        ast.Constant,
        ast.Add,
        ast.Sub,
        ast.Mult,
        ast.FloorDiv,
        ast.Load,
    )
    if len(nodes) == 64 or not all(isinstance(node, allowed) for node in nodes):
        return None
    return [node.id for node in nodes if isinstance(node, ast.Name)]


def _evaluated(symbol: str, sizes: Mapping[str, int]) -> int:
    """Return the size of a symbol that is an expression of others, else that which it has."""
    names = _names_in(symbol)
    if not names or not all(name in sizes for name in names):
        return sizes[symbol]
    try:
        value = _value(ast.parse(symbol, mode="eval").body, sizes)
    except (ArithmeticError, TypeError):
        return sizes[symbol]
    return value if 0 <= value < 2**31 else sizes[symbol]


def _value(node: ast.expr, sizes: Mapping[str, int]) -> int:
    if isinstance(node, ast.BinOp):
        one, other = _value(node.left, sizes), _value(node.right, sizes)
        if isinstance(node.op, ast.Add):
            return one + other
        if isinstance(node.op, ast.Sub):
            return one - other
        return one * other if isinstance(node.op, ast.Mult) else one // other
    if isinstance(node, ast.Name):
        return sizes[node.id]
    assert isinstance(node, ast.Constant)
    if not isinstance(node.value, int):
        raise TypeError("a size is a whole number")
    return node.value
