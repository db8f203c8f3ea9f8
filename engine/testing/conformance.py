"""The conformance kit: what every backend must do, as a class of tests to inherit.

A plugin's whole test_conformance.py:

    from engine.testing import BackendConformance

    class TestMine(BackendConformance):
        backend = "mine"

The levels are classes of their own, one file each; read there what is asked. Features that a
backend does not announce are skipped with the reason. What it must do and cannot is named in
`gaps`, each with why: such a test has to fail, so that the list stays true.
"""

from __future__ import annotations

from engine.testing.errors import Errors
from engine.testing.lifecycle import Leaks, LifeCycle, Reports
from engine.testing.manifest import Manifest
from engine.testing.ownership import Buffers, Inputs, Results
from engine.testing.semantics import Semantics
from engine.testing.threads import Stopping, Threads, UsersView

__all__ = ["BackendConformance"]


class BackendConformance(
    Manifest,
    LifeCycle,
    Reports,
    Semantics,
    Results,
    Inputs,
    Buffers,
    Errors,
    Threads,
    Stopping,
    UsersView,
    Leaks,
):
    """All levels; see `engine.testing.level.Level` for the attributes that a subclass may set."""

    def test_gaps_name_tests_of_the_kit(self) -> None:
        names = {name.partition("[")[0] for name in self.gaps}
        unknown = sorted(name for name in names if not hasattr(BackendConformance, name))
        assert unknown == [], f"gaps {unknown} name no test of the kit"
