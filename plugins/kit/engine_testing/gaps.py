"""Gaps: what a backend is known not to do, and what a failure says of how to declare one."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from engine.types import ModelSource, NodeInfo
from engine_testing.duties import DUTIES, NEVER_A_GAP

ELEMENTS = "dtype:"
OPERATOR = "op:"
ANY_OPERATOR = "op:*"
"""A gap of whatever node `LoadedModel.unsupported` reports, by its operator or its types."""


class sometimes(str):  # read as a word: {"test_x": sometimes("why")}
    """The reason of a gap whose test may also pass, by chance or by the machine."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"sometimes({super().__repr__()})"


def operators_of(source: ModelSource) -> set[str]:
    """Return the operators of a model's main graph; those of other domains with their domain."""
    nodes = source.graph.nodes if source.graph is not None else ()
    return set(map(operator_of, nodes))


def operator_of(node: NodeInfo) -> str:
    """Return a node's operator; with its domain where that is not ONNX's own."""
    return f"{node.domain}.{node.op_type}".lstrip(".")


def types_of(source: ModelSource) -> set[str]:
    """Return the element types of a model's inputs and outputs."""
    graph = source.graph
    return {str(spec.dtype) for spec in (*graph.inputs, *graph.outputs)} if graph else set()


def model_gap(
    gaps: Mapping[str, str],
    operators: Collection[str],
    types: Collection[str],
    reported: Collection[str] = (),
) -> str:
    """Return the gap that names one of these operators or element types; "" where none does.

    reported: operators of nodes that `LoadedModel.unsupported` names.
    """
    names = [f"{OPERATOR}{operator}" for operator in sorted(operators)]
    names += [f"{ELEMENTS}{dtype}" for dtype in sorted(types)]
    found = next((name for name in names if name in gaps), "")
    return found or (ANY_OPERATOR if reported and ANY_OPERATOR in gaps else "")


def explain(
    error: BaseException,
    case: str,
    capability: str,
    operators: Collection[str],
    types: Collection[str] = (),
    refused: Collection[str] = (),
) -> None:
    """Add notes to what a test of the kit raised: the contract's sentence, how to declare a gap.

    case: the test's name with its parameter. capability: what it needs, "" for none. operators,
    types: those of the models that it has opened. refused: operators that the backend reports.
    """
    test = case.partition("[")[0]
    if test in DUTIES:
        where, sentence = DUTIES[test]
        error.add_note(f'the contract, {where}: "{sentence}"')
    if test in NEVER_A_GAP and not refused:
        error.add_note("this cannot be declared: results would be wrong, and nobody would know")
        return
    ways = [] if test in NEVER_A_GAP else [f'gaps = {{"{case}": "why"}}']
    rare = [f"{OPERATOR}{name}" for name in sorted(refused or {*operators} - COMMON)]
    rare += [f"{ELEMENTS}{name}" for name in sorted({*types} - {"float32"})]
    if rare and type(error).__name__ == "ModelError":
        ways.append(" or ".join(f'gaps = {{"{name}": "why"}}' for name in rare))
    if capability:
        ways.append(f"leave {capability!r} out of BackendInfo.capabilities, or name it in "
                    f"DeviceInfo.lacks")  # fmt: skip
    error.add_note(f"where the runtime cannot do it: {'; or '.join(ways)}")


COMMON = {"Add", "Identity", "MatMul", "Mul", "Relu", "Sub", "Transpose"}
"""Operators of most models of the kit, which tell nothing of why one of them failed."""
