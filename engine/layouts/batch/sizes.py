"""Sizes of axes that are not known yet: polynomials of the batch's size and of other open sizes.

    BATCH * 12 == 12 * BATCH            # normal form: equal exactly where equal for all values
    quotient(BATCH * 768, 64)           # BATCH * 12
    quotient(BATCH, 4)                  # None: not whole for every batch

Two sizes are equal only where they are for every value of the symbols. Symbols are 0 or more, the
batch 1 or more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

_MOST_TERMS, _MOST_FACTORS, _LARGEST = 16, 16, 1 << 80

Monomial: TypeAlias = tuple[int, ...]


class TooComplicated(Exception):
    """A size of more terms than any real model has."""


class Size:
    """A polynomial that is no plain number. terms: the coefficient of each product of symbols."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms = terms
        self._hash = hash(frozenset(terms.items()))

    @property
    def depends(self) -> bool:
        """True where the batch's size is in it."""
        return any(0 in monomial for monomial in self.terms)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Size) and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __add__(self, other: Dim) -> Dim:
        terms = dict(self.terms)
        for monomial, factor in _terms(other).items():
            terms[monomial] = terms.get(monomial, 0) + factor
        return _made(terms)

    def __neg__(self) -> Dim:
        return _made({monomial: -factor for monomial, factor in self.terms.items()})

    def __sub__(self, other: Dim) -> Dim:
        return self + -other

    def __rsub__(self, other: Dim) -> Dim:
        return -self + other

    def __mul__(self, other: Dim) -> Dim:
        terms: dict[Monomial, int] = {}
        for one, a in self.terms.items():
            for two, b in _terms(other).items():
                monomial = tuple(sorted((*one, *two)))
                terms[monomial] = terms.get(monomial, 0) + a * b
        return _made(terms)

    __radd__, __rmul__ = __add__, __mul__

    def __repr__(self) -> str:
        return " + ".join(
            "*".join([str(factor), *("batch" if n == 0 else f"n{n}" for n in monomial)])
            for monomial, factor in sorted(self.terms.items())
        )


Dim: TypeAlias = int | Size

BATCH: Final = Size({(0,): 1})


def _terms(dim: Dim) -> Mapping[Monomial, int]:
    return dim.terms if isinstance(dim, Size) else {(): int(dim)} if dim else {}


def _made(terms: dict[Monomial, int]) -> Dim:
    terms = {monomial: factor for monomial, factor in terms.items() if factor}
    if not terms:
        return 0
    if len(terms) == 1 and () in terms:
        return terms[()]
    if (
        len(terms) > _MOST_TERMS
        or max(map(len, terms)) > _MOST_FACTORS
        or max(map(abs, terms.values())) > _LARGEST
    ):
        raise TooComplicated("a size in it has more terms than are followed")
    return Size(terms)


def depends(dim: Dim) -> bool:
    """Return whether a size grows with the batch."""
    return isinstance(dim, Size) and dim.depends


def quotient(dim: Dim, by: Dim) -> Dim | None:
    """Return a size divided by another; None where that is no size for every value."""
    if isinstance(dim, int) and isinstance(by, int):
        return dim // by if by and not dim % by else None
    rest, found = dict(_terms(dim)), dict[Monomial, int]()
    divisor = _terms(by)
    if not divisor:
        return None
    lead = max(divisor)
    for _ in range(_MOST_TERMS):
        if not rest:
            return _made(found)
        first = max(rest)
        left = _without(first, lead)
        if left is None or rest[first] % divisor[lead]:
            return None
        factor = rest[first] // divisor[lead]
        found[left] = found.get(left, 0) + factor
        for monomial, other in divisor.items():
            place = tuple(sorted((*monomial, *left)))
            rest[place] = rest.get(place, 0) - factor * other
            if not rest[place]:
                del rest[place]
    return None


def _without(monomial: Monomial, part: Monomial) -> Monomial | None:
    left = list(monomial)
    for symbol in part:
        if symbol not in left:
            return None
        left.remove(symbol)
    return tuple(left)


def lowest(dim: Dim) -> int | None:
    """Return a bound that a size never goes below; None where none is known."""
    if isinstance(dim, int):
        return dim
    if min(dim.terms.values()) < 0:
        return None
    return sum(factor for monomial, factor in dim.terms.items() if not any(monomial))


class Symbols:
    """Makes new symbols; the same for the same description."""

    def __init__(self) -> None:
        self._next = 1
        self._known: dict[object, Size] = {}
        self._cuts: dict[Size, Size] = {}

    def new(self) -> Size:
        """Return a size of which nothing is known, but that it does not depend on the batch."""
        self._next += 1
        return Size({(self._next - 1,): 1})

    def of(self, *description: object) -> Size:
        """Return the size that a description of it stands for."""
        if description not in self._known:
            self._known[description] = self.new()
        return self._known[description]

    def cut(self, size: int, end: Size) -> Size:
        """Return the size of an axis that is cut at an open size."""
        cut = self.of("cut", size, end)
        self._cuts[cut] = end
        return cut

    def broadcast(self, one: Size, other: Size) -> Size:
        """Return the size of two axes that are broadcast to each other.

        An axis that was cut to fit another has its size: where it is shorter, they do not fit.
        """
        if self._cuts.get(one) == other:
            return other
        if self._cuts.get(other) == one:
            return one
        return self.of("broadcast", frozenset((one, other)))
