"""Parts of onnx's own suite; all of it: `engine plugins check jax --suite onnx`."""

from __future__ import annotations

from engine_testing.onnx_suite import FAULTS, Score, load_cases, run

COVERED = ("gather_0", "gather_elements", "convtranspose", "averagepool_2d", "quantizelinear")
LIGHT = "squeezenet"
LEFT = ("gathernd", "slice")  # the parameters of slice are inputs in the suite
PARTS = f"^test_({'|'.join((*COVERED, *LEFT, LIGHT))})"


def test_operators_are_right_or_refused() -> None:
    score = Score("jax", list(run("jax", load_cases(PARTS))))
    assert [f"{each.name}: {each.reason}" for each in score.of(*FAULTS)] == []
    passed, refused = ([each.name for each in score.of(kind)] for kind in ("passed", "refused"))
    for part in (*COVERED, LIGHT):
        assert any(name.startswith(f"test_{part}") for name in passed), f"{part}: none passed"
    for part in LEFT:
        assert any(name.startswith(f"test_{part}") for name in refused), f"{part}: none refused"
