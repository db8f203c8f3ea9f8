"""The conformance kit: a class of tests to inherit, of what every backend must do.

A plugin's whole test_conformance.py:

    from engine_testing import BackendConformance

    class TestMine(BackendConformance):
        backend = "mine"

The levels are classes of their own, one file each; read there what is asked. Features that a
backend does not announce are skipped with the reason. A duty that it cannot fulfil is named in
`gaps`, each with why: such a test has to fail, so that the list stays true. The simplest tests
run first: mend the first failure before you read the next.
"""

from __future__ import annotations

from engine.types import DType
from engine_testing.arithmetic import Words
from engine_testing.compiled import CompiledForms
from engine_testing.contexts import Contexts
from engine_testing.device_facts import DeviceFacts
from engine_testing.device_values import DeviceValues
from engine_testing.duties import NEVER_A_GAP
from engine_testing.errors import Errors
from engine_testing.gaps import ANY_OPERATOR, ELEMENTS, OPERATOR
from engine_testing.groups import Groups
from engine_testing.lifecycle import Leaks, LifeCycle, Reports
from engine_testing.manifest import Manifest
from engine_testing.meanings import Meanings
from engine_testing.numerics import Numerics
from engine_testing.ownership import Buffers, Inputs, Results
from engine_testing.predict_options import Asked
from engine_testing.process import Process
from engine_testing.profile import Profiles
from engine_testing.ranks import Ranks
from engine_testing.semantics import Semantics
from engine_testing.settings import Settings
from engine_testing.several_devices import SeveralDevices
from engine_testing.sharing import Sharing
from engine_testing.speed import Speed
from engine_testing.strided_values import StridedValues
from engine_testing.threads import Beginning, Stopping, Threads, UsersView
from engine_testing.weights import Weights

__all__ = ["BackendConformance"]


class BackendConformance(
    # Last first: pytest runs the tests of a class from its farthest base on.
    Leaks,
    Speed,
    Ranks,
    SeveralDevices,
    Sharing,
    Weights,
    Profiles,
    StridedValues,
    DeviceValues,
    DeviceFacts,
    Groups,
    CompiledForms,
    Contexts,
    Asked,
    UsersView,
    Beginning,
    Stopping,
    Threads,
    Process,
    Settings,
    Reports,
    LifeCycle,
    Errors,
    Buffers,
    Inputs,
    Results,
    Meanings,
    Words,
    Numerics,
    Semantics,
    Manifest,
):
    """All levels; see `engine_testing.level.Level` for the attributes that a subclass may set."""

    def test_gaps_name_tests_of_the_kit(self) -> None:
        import onnx

        known = {name: _cases(name) for name in dir(BackendConformance) if name.startswith("test_")}
        for gap in (*self.gaps, *self.crashes):
            test = gap.partition("[")[0]
            if gap in self.gaps and gap.startswith(ELEMENTS):
                assert gap.removeprefix(ELEMENTS) in [*DType], f"gap {gap!r} names no element type"
                continue
            if gap in self.gaps and gap.startswith(OPERATOR):
                if gap == ANY_OPERATOR:
                    continue
                domain, _, operator = gap.removeprefix(OPERATOR).rpartition(".")
                assert onnx.defs.has(operator, domain), f"gap {gap!r} names no operator of ONNX"
                continue
            assert test in known, f"gap {gap!r} names no test of the kit"
            assert gap in (test, *known[test]), (
                f"gap {gap!r} names no case of its test; there are: {known[test]}"
            )
            assert test not in NEVER_A_GAP, f"{test} is no gap: results would be wrong in silence"


def _cases(test: str) -> list[str]:
    """Return the names that pytest gives to the cases of a test; none without parameters."""
    marks = getattr(getattr(BackendConformance, test), "pytestmark", ())
    # Tests of the kit have at most one parameter, whose values pytest names like this.
    return [
        f"{test}[{getattr(value, '__name__', value)}]" for mark in marks for value in mark.args[1]
    ]
