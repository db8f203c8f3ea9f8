"""Tensors that have been changed in place so far.

MindSpore updates tensors in place, ONNX values are immutable: later readers of a name get the new
value from here. Where a reader would miss an update, the model is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from engine_mindir.emit import Unsupported
from engine_mindir.values import Choice, Closure, Value

Snapshot: TypeAlias = "tuple[dict[str, Value], set[str]]"


class Updates:
    """The latest value of each tensor that has been changed, and those that must not be read."""

    def __init__(self) -> None:
        self._written: dict[str, Value] = {}
        self._outdated: set[str] = set()  # updated in a branch or loop of which they are no output

    def __len__(self) -> int:
        return len(self._written) + len(self._outdated)

    def write(self, name: str, value: Value) -> None:
        """Set the value that later readers of a tensor get."""
        self._written[name] = value

    def mark_outdated(self, name: str) -> None:
        """Refuse that the tensor is read from now on: it has changed where that is not seen."""
        self._outdated.add(name)

    def snapshot(self) -> Snapshot:
        """Return what has been changed so far."""
        return dict(self._written), set(self._outdated)

    def restore(self, snapshot: Snapshot, outdated: Iterable[str] = ()) -> None:
        """Return to a snapshot, to lower another branch or iteration.

        outdated: tensors that a branch has updated; they must not be read after it, since the
        branch may not have been taken.
        """
        self._written, self._outdated = dict(snapshot[0]), {*snapshot[1], *outdated}

    def since(self, snapshot: Snapshot) -> set[str]:
        """Return the tensors that have been changed since the snapshot."""
        changed = {
            name for name, value in self._written.items() if snapshot[0].get(name) is not value
        }
        return changed | (self._outdated - snapshot[1])

    def applied_to(self, value: Any) -> Any:
        """Return the value, tensors in it replaced where they have been changed."""
        if not self._written and not self._outdated:
            return value
        if isinstance(value, Value):
            return self.latest(value)
        if isinstance(value, tuple):
            return tuple(map(self.applied_to, value))
        if isinstance(value, Closure):
            return Closure(value.graph, self.applied_to(value.bound))
        if isinstance(value, Choice):
            return Choice(
                value.condition, self.applied_to(value.chosen), self.applied_to(value.other)
            )
        return value

    def latest(self, value: Value) -> Value:
        """Return a tensor as it is now. Raises Unsupported where that is not known."""
        if value.name in self._outdated:
            raise Unsupported(
                "a tensor that a branch or a loop has changed in place is used after it; let the "
                "branch give the new tensor instead"
            )
        return self._written.get(value.name, value)
