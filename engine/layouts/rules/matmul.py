"""Products of matrices: columns, then rows and a sum over the ranks."""

from __future__ import annotations

from collections.abc import Iterator

from engine.layouts.rules.op import Op, ShardingChoice
from engine.layouts.states import PARTIAL, WHOLE, State


def matmul(op: Op) -> Iterator[ShardingChoice]:
    """MatMul: its columns, its inner axis (then the results are terms of a sum), rows, batches."""
    a, b, y = op.shape(op.inputs[0]), op.shape(op.inputs[1]), op.shape(op.outputs[0])
    if a is None or b is None or y is None or len(a) < 2 or len(b) < 2:
        return
    rank = len(y)
    for state in op.axis_states(op.outputs[0], rank - 1):
        yield op.way({1: state.on(len(b) - 1)}, {0: state})
    for state in op.axis_states(op.inputs[0], len(a) - 1):
        yield op.way({0: state, 1: state.on(len(b) - 2)}, {0: PARTIAL})
    for state in op.axis_states(op.outputs[0], rank - 2):
        yield op.way({0: state.on(len(a) - 2)}, {0: state})
    for state in op.states(op.outputs[0]):
        if state.axis < rank - 2:
            wanted = [_batch(shape, state, rank, y[state.axis]) for shape in (a, b)]
            if None not in wanted and wanted != [WHOLE, WHOLE]:
                yield op.way({i: w for i, w in enumerate(wanted) if w is not None}, {0: state})
    if len(op.inputs) == 2:
        yield op.way({0: PARTIAL}, {0: PARTIAL}, cost=1.0)
        yield op.way({1: PARTIAL}, {0: PARTIAL}, cost=1.0)


def _batch(shape: tuple[object, ...], state: State, rank: int, size: object) -> State | None:
    axis = state.axis - (rank - len(shape))
    if axis < 0 or shape[axis] == 1:
        return WHOLE
    return state.on(axis) if shape[axis] == size else None


def gemm(op: Op) -> Iterator[ShardingChoice]:
    """Gemm: as MatMul; a bias that is added to terms of a sum is one of them, on one rank."""
    a, b = op.shape(op.inputs[0]), op.shape(op.inputs[1])
    if a is None or b is None or len(a) != 2 or len(b) != 2:
        return
    inner_a, outer_a = (0, 1) if op.attribute("transA", 0) else (1, 0)
    inner_b, outer_b = (1, 0) if op.attribute("transB", 0) else (0, 1)
    bias = op.shape(op.input(2)) if op.input(2) else ()
    if bias is None:
        return
    for state in op.axis_states(op.outputs[0], 1):
        own = state.on(len(bias) - 1) if bias and bias[-1] != 1 else WHOLE
        yield op.way({1: state.on(outer_b), 2: own}, {0: state})
    for state in op.axis_states(op.inputs[0], inner_a):
        yield op.way({0: state, 1: state.on(inner_b), 2: PARTIAL}, {0: PARTIAL})
    for state in op.axis_states(op.outputs[0], 0):
        own = state.on(0) if len(bias) == 2 and bias[0] != 1 else WHOLE
        yield op.way({0: state.on(outer_a), 2: own}, {0: state})


def matmul_integer(op: Op) -> Iterator[ShardingChoice]:
    """MatMulInteger: as MatMul, with zero points of the rows or columns."""
    shapes = [op.shape(op.inputs[0]), op.shape(op.inputs[1])]
    zeros = [op.shape(op.input(2)) or (), op.shape(op.input(3)) or ()]
    for way in matmul(op):
        states = list(way.inputs)
        for index in (0, 1):
            shape, state = shapes[index], states[index]
            axis = len(shape or ()) - 2 + index  # rows of a, columns of b
            if op.input(2 + index):
                is_each = len(zeros[index]) == 1 and zeros[index] != (1,)
                divided = is_each and state.is_shard and state.axis == axis
                states[2 + index] = state.on(0) if divided else WHOLE
        if all(state != PARTIAL for state in states):
            yield ShardingChoice(tuple(states), way.outputs, way.change, way.cost)


def einsum(op: Op) -> Iterator[ShardingChoice]:
    """Einsum: along a letter of the result, or along one that is summed over."""
    equation = str(op.attribute("equation", "")).replace(" ", "")
    if "->" not in equation or "." in equation:
        return
    terms, result = equation.split("->")
    letters = terms.split(",")
    if any(len(set(term)) < len(term) for term in (*letters, result)):
        return
    for letter in dict.fromkeys("".join(letters)):
        places = {i: term.index(letter) for i, term in enumerate(letters) if letter in term}
        first = next(iter(places))
        shape = op.shape(op.inputs[first])
        own = op.division(0, shape[places[first]]) if shape is not None else None
        if own is None:
            continue
        inputs = {index: own.on(axis) for index, axis in places.items()}
        if not all(state in op.states(op.inputs[index]) for index, state in inputs.items()):
            continue
        if letter in result:
            yield op.way(inputs, {0: own.on(result.index(letter))})
        elif len(inputs) > 1:
            yield op.way(inputs, {0: PARTIAL})
