"""onnx's suite catches what is wrong, and what is right passes it."""

import importlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from engine.errors import BackendUnavailable
from engine_testing import plugins
from engine_testing.onnx_suite import Case, Result, Score, Status, load_cases, run, run_case
from engine_testing.onnx_suite.compare import Difference, compare
from engine_testing.onnx_suite.ledger import Ledger, mistakes, read, write
from engine_testing.onnx_suite.pool import Died, each

FAULTY = """
import os, signal, time
from dataclasses import replace
import numpy as np
from engine.errors import ModelError
from engine.hookspecs import hookimpl
from engine_testing import null_device as null
from engine_testing.null_device import *

@hookimpl
def engine_backend():
    return replace(null.engine_backend(), name="faulty")

@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    results = list(null.engine_predict(context, inputs, outputs, deadline_s))
    {fault}
    return results
"""

# The backend's change of its results, the test, its end and the words for it.
FAULTS = {
    "all slightly off": (
        "results = [(y * 1.002).astype(y.dtype) for y in results]",
        "test_add", Status.WRONG, "of 60 elements differ, the worst at",
    ),
    "the last element off": (
        "results[0].flat[-1] += 1",
        "test_add", Status.WRONG, "1 of 60 elements differ, the worst at [2, 3, 4]: expected",
    ),
    "a number for NaN": (
        "results = [np.nan_to_num(y) for y in results]",
        "test_reduce_log_sum_exp_empty_set", Status.WRONG, "expected -inf, got -3.4028",
    ),
    "one NaN": (
        "results[0].flat[0] = np.nan",
        "test_add", Status.WRONG, "1 of 60 elements differ, the worst at [0, 0, 0]",
    ),
    "a whole number off by one": (
        "results[0].flat[0] += 1",
        "test_shape", Status.WRONG, "1 of 3 elements differ, the worst at [0]: expected 3, got 4",
    ),
    "a truth turned": (
        "results[0] = ~results[0]",
        "test_and2d", Status.WRONG, "12 of 12 elements differ",
    ),
    "another text": (
        "results[0].flat[0] += ' '",
        "test_string_concat", Status.WRONG, "expected 'abc.com', got 'abc.com '",
    ),
    "another dtype": (
        "results = [y.astype(np.float64) for y in results]",
        "test_add", Status.WRONG, "expected float32[3, 4, 5], got float64[3, 4, 5]",
    ),
    "another shape": (
        "results = [y.reshape(-1) for y in results]",
        "test_add", Status.WRONG, "expected float32[3, 4, 5], got float32[60]",
    ),
    "an axis too many where there are no elements": (
        "results = [y[None] for y in results]",
        "test_constantofshape_int_shape_zero", Status.WRONG, "expected int32[0], got int32[1, 0]",
    ),
    "outputs in another order": (
        "results.reverse()",
        "test_split_equal_parts_1d_opset13", Status.WRONG, "output 'output_1': 2 of 2 elements",
    ),
    "an output too few": (
        "results.pop()",
        "test_split_equal_parts_1d_opset13", Status.FAILED, "gave 2 values for 3",
    ),
    "an exception of its own": (
        "raise KeyError('deep inside')",
        "test_add", Status.FAILED, "raised KeyError: 'deep inside'",
    ),
    "a refusal": (
        "raise ModelError('node 0 is too large')",
        "test_add", Status.REFUSED, "ModelError: predict failed! node 0 is too large",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    return {case.name: case for case in load_cases()}


def faulty(folder: Path, fault: str) -> str:
    """The name of a null backend with one more line in its predict."""
    plugins.install(folder, "faulty", "faulty_plugin", source=FAULTY.replace("{fault}", fault))
    return "faulty"


# ---------------------------------------------------------------------------------- what it runs


REFUSING = """
@hookimpl
def engine_load(source, options):
    from engine.reference.evaluator import Host, load

    return load(source, Host("faulty", null.DEVICE, frozenset({"NonZero"})))
"""


def test_another_target_behind_runs_what_a_backend_refuses(
    null_backend: str, plugin_folder: Path, cases: dict[str, Case]
) -> None:
    source = FAULTY.replace("{fault}", "pass") + REFUSING
    plugins.install(plugin_folder, "faulty", "refusing_plugin", source=source)
    chosen = [cases["test_nonzero_example"], cases["test_abs"]]
    alone = {result.name: result for result in run("faulty", chosen, workers=1)}
    assert alone["test_nonzero_example"].status is Status.REFUSED
    both = run("faulty", chosen, workers=1, beside=[null_backend])
    found = {result.name: result for result in both}
    assert {result.status for result in found.values()} == {Status.PASSED}
    assert found["test_nonzero_example"].nodes == {"null": ("NonZero",)}


def test_the_suite_has_the_tests_that_are_counted(cases: dict[str, Case]) -> None:
    if onnx.__version__ != "1.23.2":
        pytest.skip(f"counted for onnx 1.23.2, not {onnx.__version__}")
    light = [case for case in cases.values() if case.is_light]
    assert (len(cases) - len(light), len(light)) == (2024, 9)
    assert sorted(case.name for case in cases.values() if case.is_random) == [
        "test_bernoulli", "test_bernoulli_double", "test_bernoulli_double_expanded",
        "test_bernoulli_expanded", "test_bernoulli_seed", "test_bernoulli_seed_expanded",
        "test_training_dropout", "test_training_dropout_default",
        "test_training_dropout_default_mask", "test_training_dropout_mask",
    ]  # fmt: skip


def test_every_test_has_an_output_to_compare(cases: dict[str, Case]) -> None:
    for case in cases.values():
        graph = onnx.load_model_from_string(case.model).graph
        assert case.runs
        for _, wanted in case.runs:
            assert len(wanted) == len(graph.output) > 0


def test_loading_leaves_numpys_random_numbers_alone() -> None:
    np.random.seed(3)  # noqa: NPY002
    first = np.random.random()  # noqa: NPY002
    np.random.seed(3)  # noqa: NPY002
    load_cases("test_add")
    assert np.random.random() == first  # noqa: NPY002


# --------------------------------------------------------------------------------- what it finds


@pytest.mark.parametrize(
    "name",
    ["test_add", "test_reduce_log_sum_exp_empty_set", "test_string_concat", "test_and2d",
     "test_constantofshape_int_shape_zero", "test_split_equal_parts_1d_opset13", "test_shape",
     "test_Linear", "test_operator_mm", "test_sign_model", "test_clip_default_inbounds_expanded"],
)  # fmt: skip
def test_a_right_backend_passes(name: str, cases: dict[str, Case], null_backend: str) -> None:
    result = run_case(null_backend, cases[name])
    assert (result.status, result.reason) == (Status.PASSED, "")
    nodes = onnx.load_model_from_string(cases[name].model).graph.node
    assert result.nodes == {"null": tuple(node.op_type for node in nodes)}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_caught(name: str, cases: dict[str, Case], plugin_folder: Path) -> None:
    fault, test, status, said = FAULTS[name]
    result = run_case(faulty(plugin_folder, fault), cases[test])
    assert result.status is status, result
    assert said in result.reason


def test_a_fault_that_no_backend_has_passes(cases: dict[str, Case], plugin_folder: Path) -> None:
    """The faults above are what is found there, not the plugin that they are put into."""
    backend = faulty(plugin_folder, "pass")
    for test in {test for _, test, _, _ in FAULTS.values()}:
        assert run_case(backend, cases[test]).status is Status.PASSED


def test_an_error_within_the_tolerance_passes_and_is_told(
    cases: dict[str, Case], plugin_folder: Path
) -> None:
    fault = "results = [(y * np.float32(1.0005)) for y in results]"  # of the 1.001 allowed
    result = run_case(faulty(plugin_folder, fault), cases["test_add"])
    assert result.status is Status.PASSED
    assert result.error == pytest.approx(0.5, rel=1e-2)


def test_a_model_that_is_not_taken_is_refused_with_the_backends_words(
    cases: dict[str, Case], null_backend: str
) -> None:
    config = {"null_context": {"unsupported_ops": "Add"}}
    result = run_case(null_backend, cases["test_add"], config)
    assert result.status is Status.REFUSED
    assert "option 'unsupported_ops' names its operator" in result.reason
    assert result.nodes == {}


def test_drawn_values_are_not_compared_but_their_types_are(
    cases: dict[str, Case], plugin_folder: Path
) -> None:
    dropout = cases["test_training_dropout_default"]
    backend = faulty(plugin_folder, "results[0] = results[0] + 1")
    assert run_case(backend, dropout).status is Status.RANDOM
    plugins_folder = plugin_folder / "other"
    plugins_folder.mkdir()
    with plugins.installed(plugins_folder):
        source = FAULTY.replace("{fault}", "results[0] = results[0][0]").replace("faulty", "flat")
        plugins.install(plugins_folder, "flat", "flat_plugin", source=source)
        assert run_case("flat", dropout).status is Status.WRONG


LISTS = [np.array([1.0, 2.0]), np.array([3.0])]


@pytest.mark.parametrize(
    ("got", "said"),
    [
        ([LISTS[:1]], "expected 2 elements, got 1"),
        ([[]], "expected 2 elements, got 0"),
        ([[*LISTS, LISTS[0]]], "expected 2 elements, got 3"),
        ([LISTS[::-1]], r"output 'y'\[0\]: expected float64\[2\], got float64\[1\]"),
        ([[LISTS[0], LISTS[1] + 1]], r"output 'y'\[1\]: 1 of 1 elements differ"),
        ([LISTS[0]], r"expected a list, got float64\[2\]"),
        ([None], "expected a list, got None"),
        ([], "expected 1 outputs, got 0"),
    ],
)
def test_a_sequence_is_compared_in_length_and_element_by_element(got: list, said: str) -> None:
    with pytest.raises(Difference, match=said):
        compare(got, [LISTS], ["y"], rtol=1e-3, atol=1e-7)
    assert compare([[each.copy() for each in LISTS]], [LISTS], ["y"], rtol=1e-3, atol=1e-7) == 0


def test_an_absent_optional_is_compared() -> None:
    assert compare([None], [None], ["y"], rtol=0, atol=0) == 0
    with pytest.raises(Difference, match="expected None, got a list"):
        compare([[]], [None], ["y"], rtol=0, atol=0)
    with pytest.raises(Difference, match=r"expected float64\[2\], got None"):
        compare([None], [LISTS[0]], ["y"], rtol=0, atol=0)


# -------------------------------------------------------------------------- in worker processes


def test_a_crash_is_the_failure_of_its_test_alone(
    cases: dict[str, Case], plugin_folder: Path
) -> None:
    fault = "if results[0].ndim == 3: os.kill(os.getpid(), signal.SIGSEGV)"
    chosen = [cases[name] for name in ("test_add", "test_abs", "test_and2d", "test_shape")]
    results = {each.name: each for each in run(faulty(plugin_folder, fault), chosen)}
    assert {name: each.status for name, each in results.items()} == {
        "test_add": Status.DIED,
        "test_abs": Status.DIED,
        "test_and2d": Status.PASSED,
        "test_shape": Status.PASSED,
    }
    assert results["test_add"].reason == "crashed with SIGSEGV"


def test_a_hang_costs_one_item_and_the_start_of_a_worker_does_not_count() -> None:
    answers = dict(each(time.sleep, [0, 3600, 0.0001], workers=1, limit_s=2.5))
    died = answers.pop(3600)
    assert isinstance(died, Died)
    assert str(died) == "stopped after 2.5 s"
    assert answers == {0: None, 0.0001: None}


def test_a_worker_that_ends_says_its_last_words() -> None:
    [(_, died)] = each(signal.raise_signal, [signal.SIGABRT], workers=1, limit_s=60)
    assert str(died) == "crashed with SIGABRT"
    [(_, died)] = each(int, ["seven"], workers=1, limit_s=60)
    assert "ended with status 1 (ValueError: invalid literal" in str(died)


SCRIPT = """
from functools import partial
from engine_testing.onnx_suite.pool import each

def double(x, y=0):
    return 2 * x

list(each({function}, range(3), workers=1, limit_s=60))
"""


@pytest.mark.parametrize("function", ["double", "partial(double, y=1)"])
def test_a_function_of_a_script_is_refused_before_a_worker_starts(function: str) -> None:
    words = [sys.executable, "-c", SCRIPT.format(function=function)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ValueError: function 'double' is defined in the script that runs, where no other process "
        "finds it; put it into a module of its own, and import it from there"
    )


def test_a_function_that_no_worker_can_import_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("def double(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(tmp_path)
    double = importlib.import_module("only_here").double
    (tmp_path / "only_here.py").unlink()
    with pytest.raises(ImportError, match=r"could not import function 'double': .*only_here"):
        list(each(double, range(3), workers=2, limit_s=60))


def test_a_backend_that_is_not_there_is_an_error_not_two_thousand_failures(
    cases: dict[str, Case],
) -> None:
    with pytest.raises(BackendUnavailable, match="'absent'"):
        list(run("absent", [cases["test_add"]]))


# ------------------------------------------------------------------------------------ the ledger


def result(name: str, status: Status, reason: str = "") -> Result:
    return Result(name=name, kind="node", status=status, reason=reason)


def test_a_ledger_is_wrong_in_either_direction() -> None:
    score = Score("null", [
        result("test_fine", Status.PASSED),
        result("test_new", Status.REFUSED, "no kernel"),
        result("test_mended", Status.PASSED),
        result("test_known", Status.REFUSED, "no such type"),
        result("test_worse", Status.WRONG, "1 of 2 elements differ"),
    ])  # fmt: skip
    listed = {"test_mended": "", "test_known": "", "test_worse": "", "test_gone": ""}
    found = mistakes(Ledger({}, {Status.REFUSED: listed}), score)
    assert found == [
        "test_mended is listed as refused, but passed; take it out",
        "test_new is not listed, but refused: no kernel",
        "test_worse is listed as refused, but wrong: 1 of 2 elements differ",
        "test_gone is listed, but the suite has no such test",
    ]
    assert mistakes(Ledger({}, {Status.REFUSED: listed}), score, is_whole=False) == found[:-1]


def test_a_ledger_holds_for_several_versions_as_long_as_these_give_the_same(tmp_path: Path) -> None:
    path = tmp_path / "ledger.toml"
    minor = ".".join(np.__version__.split(".")[:2])
    score = Score(
        "null", [result("test_a", Status.REFUSED, "why"), result("test_b", Status.PASSED)]
    )
    for listed, tests, after in (
        (["0.1"], {"test_a": "why"}, ["0.1", minor]),
        ([minor, "0.1"], {"test_a": "why"}, [minor, "0.1"]),
        (["0.1"], {"test_b": "why"}, [minor]),
    ):
        lines = [f"{name} = {json.dumps(why)}" for name, why in tests.items()]
        path.write_text(f"[versions]\nnumpy = {json.dumps(listed)}\n[refused]\n" + "\n".join(lines))
        is_other = minor not in listed
        text = f"numpy is {np.__version__}, the ledger is for {' and '.join(listed)}"
        assert read(path).other_versions() == [text] * is_other
        write(path, score)
        assert read(path).versions == {"numpy": after}
        assert read(path).other_versions() == []


def test_a_written_ledger_has_no_mistakes_and_keeps_what_people_wrote(tmp_path: Path) -> None:
    path = tmp_path / "ledger.toml"
    path.write_text('[versions]\nonnx = "0"\nnumpy = "0"\n[refused]\ntest_b = "too \\"big\\""\n')
    assert read(path).other_versions() == [
        f"onnx is {onnx.__version__}, the ledger is for 0",
        f"numpy is {np.__version__}, the ledger is for 0",
    ]
    score = Score("null", [
        result("test_a", Status.REFUSED, "new: 'quoted' \"twice\" \\"),
        result("test_b", Status.REFUSED, "some error's text"),
        result("test_c", Status.RANDOM, "drawn"),
        result("test_d", Status.PASSED),
    ])  # fmt: skip
    write(path, score)
    ledger = read(path)
    assert mistakes(ledger, score) == []
    assert ledger.other_versions() == []
    assert ledger.reasons == {
        Status.REFUSED: {"test_a": "new: 'quoted' \"twice\" \\", "test_b": 'too "big"'},
        Status.RANDOM: {"test_c": "drawn"},
    }
