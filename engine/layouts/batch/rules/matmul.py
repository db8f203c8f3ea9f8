"""Products of matrices: rows and columns are each other's own, what is summed over is not."""

from __future__ import annotations

from engine.layouts.batch.node import Node, only_data, require
from engine.layouts.batch.rules.elementwise import joint, joint_shape
from engine.layouts.batch.sizes import Dim
from engine.layouts.batch.values import Kind, Mixes, Value, divided, whole

_SUMS = "it sums over the batch"


def matmul(node: Node) -> list[Value]:
    """MatMul, and those of integers with zero points and scales that are the same everywhere."""
    return [product_of(node, node.input(0), node.input(1))]


def product_of(node: Node, a: Value, b: Value) -> Value:
    """Return the form of a product of matrices."""
    rank_a, rank_b = a.rank, b.rank
    require(rank_a > 0 and rank_b > 0, "it multiplies numbers")
    require(a.axis != rank_a - 1 or not a.is_divided, _SUMS)
    require(b.axis != max(rank_b - 2, 0) or not b.is_divided, _SUMS)
    # Batches of matrices are broadcast; the last two axes are not.
    one, other = a.dims[:-2], b.dims[:-2]
    rank = max(len(one), len(other))
    shape = joint_shape([one, other], node.symbols)
    rows: tuple[Dim, ...] = a.dims[-2:-1]
    columns: tuple[Dim, ...] = b.dims[-1:] if rank_b > 1 else ()
    shape = (*shape, *rows, *columns)
    places: set[int] = set()
    for value, stack in ((a, one), (b, other)):
        if not value.is_divided:
            continue
        if value.axis < len(stack):
            places.add(value.axis + rank - len(stack))
        else:
            places.add(rank if value is a else rank + len(rows))
    if not places:
        return whole(shape)
    require(len(places) == 1, "the samples lie along different axes of its inputs")
    [axis] = places
    if axis < rank:
        for value, stack in ((a, one), (b, other)):
            place = axis - (rank - len(stack))
            if place >= 0 and not value.is_divided:
                require(stack[place] == 1, "a matrix for each number of a sample in the batch")
    require(a.is_divided + b.is_divided == 1 or axis < rank, "both its inputs are divided")
    sizes = {value.size for value in (a, b) if value.is_divided}
    require(len(sizes) == 1, "its inputs have different sizes along the batch")
    return divided(axis, shape)


def matmul_integer(node: Node) -> list[Value]:
    """MatMulInteger and its kin: what comes behind the matrices is one number each, or whole."""
    a, b = node.input(0), node.input(1)
    for index in range(2, len(node.inputs)):
        _require_scales(node, index, a if index % 2 == 0 else b)
    return [product_of(node, a, b)]


def qlinear_matmul(node: Node) -> list[Value]:
    """QLinearMatMul: a, its scale and zero point, b, its own, the result's."""
    a, b = node.input(0), node.input(3)
    for index in (1, 2, 6, 7):
        _require_scales(node, index, a)
    for index in (4, 5):
        _require_scales(node, index, b)
    return [product_of(node, a, b)]


def _require_scales(node: Node, index: int, of: Value) -> None:
    """Raise Mixes unless scales are whole, and one number where what they are of is divided."""
    node.require_whole(index)
    value = node.maybe(index)
    if value is not None and of.is_divided:
        require(all(size == 1 for size in value.dims), "its scales are those of rows of the batch")


def gemm(node: Node) -> list[Value]:
    """Gemm: rows of A, or columns of B."""
    a, b = node.input(0), node.input(1)
    require(a.rank == b.rank == 2, "its inputs are no matrices")
    row = 1 if node.attributes.get("transA", 0) else 0
    column = 0 if node.attributes.get("transB", 0) else 1
    shape = (a.dims[row], b.dims[column])
    if a.is_divided:
        require(a.axis == row, _SUMS)
        require(b.is_whole, "both its inputs are divided")
    elif b.is_divided:
        require(b.axis == column, _SUMS)
    axis = 0 if a.is_divided else 1 if b.is_divided else -1
    c = node.maybe(2)
    if c is not None:
        place = axis - (2 - c.rank)
        if c.is_divided:
            require(place == c.axis and c.size == shape[axis], "its bias has other samples")
        elif axis >= 0 and place >= 0:
            require(c.dims[place] == 1, "its bias is another for each number of a sample")
    return [whole(shape) if axis < 0 else divided(axis, shape)]


def einsum(node: Node) -> list[Value]:
    """Einsum: the samples' letter is in the result, and once in each input that has them."""
    equation = str(node.attributes["equation"]).replace(" ", "")
    terms = [list(term) for term in equation.split("->")[0].split(",")]
    require(len(terms) == len(node.given), "its equation is of other inputs")
    if "." in equation:
        return [_with_ellipsis(node, equation)]
    if "->" in equation:
        result = list(equation.split("->")[1])
    else:
        every = [letter for term in terms for letter in term]
        result = sorted(letter for letter in {*every} if every.count(letter) == 1)
    return [_summed(node, terms, result)]


def _with_ellipsis(node: Node, equation: str) -> Value:
    """Write out the axes that an ellipsis stands for."""
    require("->" in equation, "its result is not said")
    left, right = equation.split("->")
    parts = left.split(",")
    counts = [
        value.rank - len(term.replace("...", "")) if "..." in term else 0
        for term, value in zip(parts, node.given)
    ]
    require(min(counts) >= 0, "its equation is of other inputs")
    most = max(counts)
    names = [f"...{place}" for place in range(most)]

    def written(term: str, count: int) -> list[str]:
        before, dots, after = term.partition("...")
        return [*before, *(names[most - count :] if dots else []), *after]

    terms = [written(term, count) for term, count in zip(parts, counts)]
    return _summed(node, terms, written(right, most))


def _summed(node: Node, terms: list[list[str]], result: list[str]) -> Value:
    values = node.given
    sizes: dict[str, Dim] = {}
    for term, value in zip(terms, values):
        require(len(term) == value.rank, "its equation is of other inputs")
        for letter, size in zip(term, value.dims):
            sizes[letter] = joint(sizes.get(letter, 1), size, node.symbols)
    shape = tuple(sizes[letter] for letter in result)
    letters = {term[value.axis] for term, value in zip(terms, values) if value.is_divided}
    if not letters:
        return whole(shape)
    require(len(letters) == 1, "the samples lie along different axes of its inputs")
    [letter] = letters
    for term, value in zip(terms, values):
        require(term.count(letter) <= 1, "it takes the diagonal of the batch")
        if letter in term and not value.is_divided:
            require(value.dims[term.index(letter)] == 1, "a matrix for each number of a sample")
    if result.count(letter) != 1:
        raise Mixes(_SUMS)
    require(len({v.size for v in values if v.is_divided}) == 1, "its batches are different")
    return divided(result.index(letter), shape)


def fused_matmul(node: Node) -> list[Value]:
    """FusedMatMul of com.microsoft, plain."""
    given = node.attributes
    options = ("transA", "transB", "transBatchA", "transBatchB")
    a, b = node.input(0), node.input(1)
    only_data([a, b])
    require(not given.get("transBatchA") and not given.get("transBatchB"), "it turns batches")
    turned = [_turned(value) if given.get(name) else value for value, name in zip((a, b), options)]
    return [product_of(node, *turned)]


def _turned(value: Value) -> Value:
    rank = value.rank
    if rank < 2:
        return value
    dims = (*value.dims[:-2], value.dims[-1], value.dims[-2])
    axis = {rank - 1: rank - 2, rank - 2: rank - 1}.get(value.axis, value.axis)
    return Value(Kind.DIVIDED if value.is_divided else Kind.WHOLE, dims, axis)


def packed_matmul(node: Node) -> list[Value]:
    """MatMulNBits and the like of com.microsoft: a packed weight of N columns."""
    a = node.input(0)
    node.require_whole(*range(1, len(node.inputs)))
    require(not a.is_divided or a.axis < a.rank - 1, _SUMS)
    shape = (*a.dims[:-1], int(node.attributes["N"]))
    return [divided(a.axis, shape) if a.is_divided else whole(shape)]
