"""Find the value where two sides part, and the shortest block that still sets them apart."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import EngineError
from engine.report.differences import OutputComparison, compare_outputs
from engine.report.fault.pairs import Pairs, operator
from engine.report.fault.sides import Side, Values
from engine.tensor.description import Array
from engine.types import Progress

_FEW = 16  # elements that tell most values apart
_SHIFTED = 3  # values under other names; fewer may be equal by chance


@dataclass(frozen=True, slots=True)
class Block:
    """The end of a graph that makes `value`, in a's names, beginning at the values `given`."""

    value: str
    given: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """A block as both sides run it on the same inputs, those of b."""

    a: Array
    b: Array
    found: OutputComparison


class Search:
    """Two sides with the same inputs, and the values between their nodes, as far as known.

    inputs: by a's names. outputs: of the whole models on these, by name. is_sliced: one
    side is the ranks of the other.
    """

    def __init__(
        self,
        a: Side,
        b: Side,
        inputs: Mapping[str, Any],
        outputs: tuple[Values, Values],
        tolerances: tuple[float | None, float | None],
        show: Progress,
        is_sliced: bool = False,
    ) -> None:
        self.a, self.b = a, b
        self.pairs = Pairs(a, b, is_sliced)
        self.inputs = {**a.held, **inputs}
        self.inputs_b = {**b.held, **self.pairs.of_b(inputs)}
        self.notes: list[str] = []
        self._tolerances = tolerances
        self._show = show
        tensors = {
            name: other
            for name, other in self.pairs.outputs.items()
            if name in outputs[0]
            and other in outputs[1]  # a sequence has names of its parts
            and name in self.pairs.computed  # no node makes a constant
        }
        self._ran_a = {name: outputs[0][name] for name in tensors}
        self._ran_b = {name: outputs[1][other] for name, other in tensors.items()}
        self._are_within = self._worst(self._ran_a, self._ran_b) is None
        self._values_b: dict[tuple[str, ...], Values] = {}  # in a's names, by cut
        self._all_a: Values | None = None
        self._all_b: Values | None = None
        self._is_by_value = is_sliced
        self._is_same_b = False  # to read all values of b changes no bit of any
        self._done = 0

    # ------------------------------------------------------------------------------ the value

    @property
    def knows_all(self) -> bool:
        """True where all values of both sides are known, since to read them changes nothing."""
        return self._all_a is not None and self._all_b is not None

    def first_apart(self) -> tuple[Block, Trial] | None:
        """Return the block from the inputs to the first value that is apart, and its values.

        None where the outputs are within the tolerances, and so are all values that can be read.
        """
        self._all_b = self._with_all(self.b, self.inputs_b, is_b=True)
        if self._all_b is not None:
            self._is_same_b = self._changes_no_bit(self._all_b)
            self._all_a = self._with_all(self.a, self.inputs, is_b=False)
            if self._all_a is None and not self._is_same_b:
                self._all_b = None  # both sides are to be built alike
        if self._all_a is not None and self._all_b is not None:
            for name in self.pairs.computed:
                if name in self._all_a and name in self._all_b:
                    trial = self._trial(name, self._all_a, self._all_b)
                    if not trial.found.is_within:
                        if self._are_names_of_others(name, self._all_a, self._all_b):
                            return self.first_apart()
                        return Block(name, ()), trial
        if self._are_within:
            return None
        cuts = self.pairs.cuts
        worst = {len(self.a.order): self._worst(self._ran_a, self._ran_b)}

        def is_apart(place: int) -> bool:
            names = self.pairs.at(place)
            worst[place] = self._worst(self._a_at(names), self.b_at(names))
            return worst[place] is not None

        apart = worst[cuts[_first(is_apart, len(cuts) - 1, lambda number: cuts[number])]]
        assert apart is not None, "the outputs are apart"
        return Block(apart.found.name, ()), apart

    def _are_names_of_others(self, value: str, all_a: Values, all_b: Values) -> bool:
        """Pair the values anew by what they hold, if `value` has another name on the other side.

        So it is where names are numbers and one graph has a node more: those after it are shifted.
        """
        names = self.pairs.names
        if self._is_by_value or value not in names:
            return False
        others = [name for name in all_b if name in names]

        def is_in_b(name: str, other: str) -> bool:
            a, b = all_a[name], all_b[other]
            return (
                operator(self.a, name) == operator(self.b, names[other])
                and a.shape == b.shape
                and a.size > 1
                and self.compared(name, a.flat[:_FEW], b.flat[:_FEW]).is_within  # fast
                and self.compared(name, a, b).is_within
                and bool((a != a.flat[0]).any())  # a constant may be equal by chance
            )

        def is_another(name: str) -> bool:  # one that has its own name on both sides is no other
            is_named = operator(self.a, name) == operator(self.b, names[name])
            return not (is_named and self._trial(name, all_a, all_b).found.is_within)

        if not any(
            is_another(other) and (is_in_b(value, other) or is_in_b(other, value))
            for other in others
            if other != value
        ):
            return False
        known: dict[str, str] = {}
        left = dict.fromkeys(others)
        for name in names:
            found = next((other for other in left if is_in_b(name, other)), None)
            if found is not None:
                known[name] = names[found]
                del left[found]
        later = [*names][[*names].index(value) :]
        moved = [name for name in later if known.get(name, names[name]) != names[name]]
        kept = [name for name in later if not is_another(name)]
        if len(moved) < max(_SHIFTED, len(kept)):
            return False
        self.pairs = Pairs(self.a, self.b, known=known)
        self._is_by_value = True
        self.notes.append("equal names stand for other values; paired by what they hold")
        return True

    def _changes_no_bit(self, all_b: Values) -> bool:
        """Return whether b's values are the same where others are not read, as if nothing fused."""

        def is_same(values: Values) -> bool:
            return all(_is_equal(all_b[name], value) for name, value in values.items())

        if not is_same(self._ran_b):
            return False
        cuts = self.pairs.cuts
        for place in {cuts[len(cuts) * part // 4] for part in (1, 2, 3)} - {0}:
            names = [name for name in self.pairs.at(place) if name in all_b]
            if not is_same(self._run_b(names, {})):
                return False
        return True

    def _with_all(self, side: Side, inputs: Mapping[str, Any], is_b: bool) -> Values | None:
        """Return all values in one run, by a's names; None if to read them changes the results."""
        names = {name: other if is_b else name for name, other in self.pairs.names.items()}
        names.update({name: self.pairs.outputs[name] if is_b else name for name in self._ran_a})
        self._step("with all values as outputs")
        try:
            ran = side.run([*names.values()], inputs)
        except EngineError as error:
            self.notes.append(f"not all values can be read at once: {error}")
            return None
        values = {name: ran[other] for name, other in names.items()}
        whole = self._ran_b if is_b else self._ran_a
        again = {name: values[name] for name in self._ran_a}
        other = self._ran_a if is_b else self._ran_b
        has_fault = self._are_within or self._worst(again, other) is not None
        if self._worst(whole, again) is not None or not has_fault:
            self.notes.append(
                f"to read the values inside {'b' if is_b else 'a'} changes its outputs"
            )
            return None
        return values

    def _a_at(self, names: Sequence[str]) -> Values:
        self._step("prefixes of the graph")
        return self.a.run(names, self.inputs)

    def b_at(self, names: Sequence[str]) -> Values:
        """Return values of b, by a's names, as b makes them from its inputs."""
        if self._all_b is not None:
            return {name: self._all_b[name] for name in names}
        asked = tuple(names)
        if asked not in self._values_b:  # each cut as b builds it: a longer part may be fused
            self._values_b[asked] = self._run_b(names, {}) if names else {}
        return self._values_b[asked]

    # ------------------------------------------------------------------------------ the block

    def shortest(self, block: Block) -> tuple[Block, Trial] | None:
        """Return the shortest end of a block that is apart on b's values; None if none is."""
        end = self.a.order.index(self.a.makers[block.value])
        ends = [
            place
            for place in self.pairs.cuts
            if place <= end and block.value not in self.pairs.at(place)
        ]
        tried: dict[int, Trial] = {}

        def is_within(place: int) -> bool:
            tried[place] = self.run(Block(block.value, tuple(self.pairs.at(place))))
            return tried[place].found.is_within

        if not is_within(ends[-1]):
            place = ends[-1]
        elif is_within(ends[0]):
            return None
        else:
            place = ends[_first(is_within, len(ends) - 1, lambda number: ends[number]) - 1]
        return Block(block.value, tuple(self.pairs.at(place))), tried[place]

    def run(self, block: Block, also: Collection[str] = ()) -> Trial:
        """Run a block on both sides with b's values. also: inner values to give as outputs."""
        self._step("blocks on equal inputs")
        known = self.b_at(block.given)
        ran = self.a.run([block.value, *also], {**known, **self.inputs})
        a, b = ran[block.value], self.values_b([block.value, *also], known)[block.value]
        return Trial(a, b, self.compared(block.value, a, b))

    def values_b(self, names: Sequence[str], known: Values) -> Values:
        """Return what b makes of its own values, by a's names, built as a is to be compared."""
        if self._all_b is not None and self._is_same_b:
            return {name: self._all_b[name] for name in names}
        return self._run_b(names, known)

    def inside_b(self, names: Sequence[str], known: Values) -> Values:
        """Return values of b that are inputs of other nodes, however they were made."""
        return self._run_b(names, known) if self._all_b is None else self.b_at(names)

    def _run_b(self, names: Sequence[str], known: Values) -> Values:
        both = {name: self.pairs.name_b(name) for name in names}
        found = self.b.run([*both.values()], {**self.pairs.of_b(known), **self.inputs_b})
        return {name: found[other] for name, other in both.items()}

    # ------------------------------------------------------------------------------- comparing

    def compared(self, name: str, a: Array, b: Array) -> OutputComparison:
        """Compare one value; a quantized one inside may be a step off, which is rounding."""
        rtol, atol = self._tolerances
        is_step = a.dtype == b.dtype and a.dtype.kind in "iu" and a.dtype.itemsize == 1
        if is_step and name not in self.pairs.outputs:
            atol = max(1.0, atol or 0.0)
        return compare_outputs({name: a}, {name: b}, rtol, atol).outputs[0]

    def limits(self, a: Array, b: Array) -> tuple[float, float]:
        """Return rtol and atol for two arrays inside."""
        found = self.compared("", a, b)
        return found.rtol, found.atol

    def _worst(self, a: Values, b: Values) -> Trial | None:
        """Return the value with most elements apart, None where none is."""
        trials = [self._trial(name, a, b) for name in a]
        apart = [trial for trial in trials if not trial.found.is_within]
        return max(apart, key=lambda trial: trial.found.differing, default=None)

    def _trial(self, name: str, a: Values, b: Values) -> Trial:
        return Trial(a[name], b[name], self.compared(name, a[name], b[name]))

    def _step(self, phase: str) -> None:
        self._done += 1
        self._show(phase, self._done, None)


def _is_equal(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


def _first(holds: Callable[[int], bool], last: int, value: Callable[[int], int]) -> int:
    """Return the first number up to `last` for which `holds`, which it does for the last."""
    low, high = 0, last  # not for low, for high
    while high - low > 1:
        middle = (low + high) // 2
        if holds(value(middle)):
            high = middle
        else:
            low = middle
    return high
