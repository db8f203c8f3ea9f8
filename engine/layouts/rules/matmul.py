"""Products of matrices: columns, then rows and a sum over the ranks."""

from __future__ import annotations

from collections.abc import Iterator

from engine.layouts.rules.elementwise import aligned
from engine.layouts.rules.op import Op, Way
from engine.layouts.states import PARTIAL, WHOLE


def matmul(op: Op) -> Iterator[Way]:
    """MatMul: its columns, its inner axis (then the results are terms of a sum), rows, batches."""
    yield from _product(op, 0, 1)
    yield op.way({0: PARTIAL}, {0: PARTIAL}, cost=1.0)
    yield op.way({1: PARTIAL}, {0: PARTIAL}, cost=1.0)


def _product(op: Op, left: int, right: int) -> Iterator[Way]:
    """Divide a product of two inputs, by their places."""
    a, b, y = op.shape(op.input(left)), op.shape(op.input(right)), op.shape(op.outputs[0])
    if a is None or b is None or y is None or len(a) < 2 or len(b) < 2:
        return
    rank = len(y)
    for state in op.axis_states(op.outputs[0], rank - 1):
        yield op.way({right: state.on(len(b) - 1)}, {0: state})
    for state in op.axis_states(op.input(left), len(a) - 1):
        yield op.way({left: state, right: state.on(len(b) - 2)}, {0: PARTIAL})
    for state in op.axis_states(op.outputs[0], rank - 2):
        yield op.way({left: state.on(len(a) - 2)}, {0: state})
    for state in op.states(op.outputs[0]):
        if state.axis < rank - 2:
            size = y[state.axis]
            of_a, of_b = (aligned(op, op.input(i), state, rank, size) for i in (left, right))
            if of_a is not None and of_b is not None and (of_a.is_shard or of_b.is_shard):
                yield op.way({left: of_a, right: of_b}, {0: state})


def gemm(op: Op) -> Iterator[Way]:
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


def matmul_integer(op: Op) -> Iterator[Way]:
    """MatMulInteger: as MatMul, with zero points of the rows or columns."""
    yield from _quantized(op, {0: (2,), 1: (3,)})


def qlinear_matmul(op: Op) -> Iterator[Way]:
    """QLinearMatMul: as MatMulInteger, with scales. Its rounded results are no terms of sums."""
    for way in _quantized(op, {0: (1, 2), 3: (4, 5)}):
        if PARTIAL not in way.outputs:
            yield way


def _quantized(op: Op, beside: dict[int, tuple[int, ...]]) -> Iterator[Way]:
    """Divide a product of two inputs. beside: the places of their scales and zero points."""
    left, right = beside
    for way in _product(op, left, right):
        states = dict(enumerate(way.inputs))
        for place, axis in ((left, -2), (right, -1)):  # rows of one, columns of the other
            state = states[place]
            is_along = state.is_shard and state.axis == len(op.shape(op.input(place)) or ()) + axis
            for index in beside[place]:
                shape = op.shape(op.input(index)) if op.input(index) else ()
                if shape is None or len(shape) > 1:
                    return
                states[index] = state.on(0) if is_along and shape not in ((), (1,)) else WHOLE
        yield way._replace(inputs=tuple(states[index] for index in range(len(op.inputs))))


def einsum(op: Op) -> Iterator[Way]:
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
