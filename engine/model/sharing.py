"""Shared weights as a build sees them: protocols that the wing engine/weights/shared fills."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from engine.plan.plan import CompiledForms, Plan


class Sharing(Protocol):
    """Things that the models of a group have in common.

    weights, workspace: whether they share these. workspace_bytes: the most that one of them needs
    for its activations, as far as it was measured.
    """

    weights: bool
    workspace: bool
    workspace_bytes: int

    def forms(self, config: Mapping[str, Mapping[str, str]]) -> CompiledForms:
        """Return where the forms of one more model are kept; to be held as long as the model."""

    def why_unshared(self, plan: Plan, forms: Any) -> str:
        """Return why a model that was built with `forms` shares no weights; "" if it does."""

    def why_alone(self, plan: Plan) -> str:
        """Return why a model that may share its weights shares none now; "" where it does."""


class Loan(Protocol):
    """Weights that are lent to other processes, until it is closed.

    handle: what these ask for them by. is_vendors: True where they use memory of the executable.
    """

    handle: str
    is_vendors: bool

    def close(self) -> None:
        """End the loan; twice does nothing."""


class Lending(CompiledForms, Protocol):
    """Compiled forms of a build that are lent to other processes, or borrowed from one."""

    def finish(self, title: str) -> Loan | None:
        """End the build of a model of this name; returns the loan of one that lends."""

    def close(self) -> None:
        """Let go of what `finish` has not kept; twice does nothing."""
