"""onnx's backend suite on the cpu: the score, and the ledger of what does not pass.

After a change that moves it, in this folder:
python -m engine_testing.onnx_suite cpu --write-ledger onnx_suite_ledger.toml
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def

from engine_cpu.known_issues import OPERATORS
from engine_testing.onnx_suite import FAULTS, Case, Result, Score, Status, load_cases, run
from engine_testing.onnx_suite.ledger import Ledger, mistakes, read

pytestmark = pytest.mark.filterwarnings("default:.*used all the same:UserWarning")
LEDGER = Path(__file__).with_name("onnx_suite_ledger.toml")


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return load_cases()


@pytest.fixture
def ledger() -> Ledger:
    pytest.importorskip("PIL", reason="the reference evaluator's ImageDecoder needs Pillow")
    ledger = read(LEDGER)
    other = ledger.other_versions()
    if any(text.startswith("onnx is") for text in other):  # the suite is another one
        pytest.skip(f"{'; '.join(other)}; write it anew with --write-ledger")
    for text in other:  # most often there is no difference, and where there is one it is news
        warnings.warn(f"{text}: it is used all the same", stacklevel=1)
    return ledger


def faults(score: Score, ledger: Ledger) -> list[Result]:
    """The tests that fail, but for results that are only rounded otherwise than the suite's."""
    rounded = ledger.reasons.get(Status.WRONG, {})
    assert all(text.startswith("rounded:") for text in rounded.values())
    return [result for result in score.of(*FAULTS) if result.name not in rounded]


@pytest.fixture(scope="module")
def score(cases: list[Case]) -> Score:
    return Score("cpu", list(run("cpu", cases)))


def test_the_ledger_says_why(ledger: Ledger) -> None:
    reasons = [text for names in ledger.reasons.values() for text in names.values()]
    assert reasons
    assert all(reasons)


@pytest.mark.slow
class TestWhole:
    def test_the_ledger_lists_what_does_not_pass_and_nothing_else(
        self, score: Score, ledger: Ledger
    ) -> None:
        assert mistakes(ledger, score) == []

    def test_no_result_is_wrong_and_nothing_crashes(self, score: Score, ledger: Ledger) -> None:
        assert faults(score, ledger) == []

    def test_nearly_all_tests_of_operators_pass(self, score: Score, ledger: Ledger) -> None:
        assert len(score.operators.results) == 2024
        assert score.operators.counts[Status.PASSED] >= 2000
        assert score.operators.counts[Status.RANDOM] == 10

    def test_few_tests_need_the_reference_evaluator(self, score: Score) -> None:
        elsewhere = score.elsewhere()
        assert set(elsewhere) <= {"reference"}
        assert len(elsewhere.get("reference", [])) <= 150

    def test_the_light_models_pass_and_run_on_onnxruntime_alone(self, score: Score) -> None:
        assert score.light.counts == {Status.PASSED: 9}
        assert {backend for each in score.light.results for backend in each.nodes} == {"cpu"}

    def test_no_node_is_on_the_reference_evaluator_that_has_a_kernel(
        self, score: Score, cases: list[Case]
    ) -> None:
        """By ONNX Runtime's own table of kernels; known_issues.py names the exceptions."""
        models = {case.name: onnx.load_model_from_string(case.model) for case in cases}
        found = {
            (each.name, operator)
            for each in score.elsewhere().get("reference", [])
            for operator in {*each.nodes["reference"]} & with_kernel(models[each.name]) - OPERATORS
        }
        assert found == set()

    def test_the_table_of_kernels_is_read_right(self, cases: list[Case]) -> None:
        """The table has each node that ONNX Runtime takes, unless it is a function.

        float16 is left out: ONNX Runtime casts around operators that have no kernel for it.
        """
        looked_at = 0
        for case in cases[::3]:
            model = onnx.load_model_from_string(case.model)
            half = "tensor(float16)" in map(said, (each.type for each in model.graph.input))
            if len(model.graph.node) == 1 and not half and is_taken(case.model):
                node = model.graph.node[0]
                assert node.op_type in with_kernel(model) or is_function(node), case.name
                looked_at += 1
        assert looked_at > 200


def is_taken(model: bytes) -> bool:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception:  # they have no base in common
        return False
    return True


def is_function(node: onnx.NodeProto) -> bool:
    schema: Any = onnx.defs.get_schema(node.op_type, node.domain)
    return bool(schema.has_function or schema.has_context_dependent_function)


KERNELS: dict[tuple[str, str], list[Any]] = defaultdict(list)
for _kernel in get_all_opkernel_def():
    if _kernel.provider == "CPUExecutionProvider":
        KERNELS[_kernel.domain, _kernel.op_name].append(_kernel)

_NAMES = {number: name.lower() for name, number in onnx.TensorProto.DataType.items()}
_OPEN = 2**31 - 1


def with_kernel(model: onnx.ModelProto) -> set[str]:
    """The operators of the main graph's nodes that have a kernel for their version and types."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    values = (*graph.input, *graph.output, *graph.value_info)
    types = {value.name: said(value.type) for value in values}
    types |= {each.name: f"tensor({_NAMES[each.data_type]})" for each in graph.initializer}
    versions = {each.domain: each.version for each in model.opset_import}
    found = set()
    for node in graph.node:
        try:
            schema = onnx.defs.get_schema(node.op_type, versions.get(node.domain, 1), node.domain)
        except onnx.defs.SchemaError:
            continue
        names: dict[str, set[str | None]] = defaultdict(set)
        for formal, actual in ((schema.inputs, node.input), (schema.outputs, node.output)):
            for i, name in enumerate(actual):
                if name:
                    parameter = formal[min(i, len(formal) - 1)]
                    names[parameter.type_str].add(types.get(name))
                    names[parameter.name].add(types.get(name))
        for kernel in KERNELS[node.domain, node.op_type]:
            first, last = kernel.version_range
            since = schema.since_version
            # An open end means that it was not looked at what later versions of the operator mean.
            fits = first == since or (first < since <= last and last != _OPEN)
            if fits and all(
                names[name] <= {None, *allowed} for name, allowed in kernel.type_constraints.items()
            ):
                found.add(node.op_type)
    return found


def said(kind: onnx.TypeProto) -> str | None:
    """A type as ONNX Runtime writes it; None for one that is not known."""
    match kind.WhichOneof("value"):
        case "tensor_type":
            number = kind.tensor_type.elem_type
            return f"tensor({_NAMES[number]})" if number else None
        case "sequence_type":
            return f"seq({said(kind.sequence_type.elem_type)})"
        case "optional_type":
            return f"optional({said(kind.optional_type.elem_type)})"
    return None
