"""Operators in cases that ONNX Runtime has no kernel for, written by hand in others.

Each function takes a kind and gives nodes from its inputs x0, x1, ... to its outputs y0, ..., or
None where it has no equivalent. The nodes must compute exactly the same.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

from onnx import FunctionProto, NodeProto, TensorProto, helper, parser

from engine_cpu.known_issues import divisors_at_risk
from engine_cpu.prepare.forest import ordered
from engine_cpu.prepare.kind import Kind, attribute, element, refill


def _nodes(text: str, kind: Kind) -> list[NodeProto]:
    """Return the nodes of ONNX's textual form, on x0, x1, ... and y0, y1, ..."""
    head = '<domain: "engine_cpu", opset_import: ["" : 1]> F'
    function: FunctionProto = parser.parse_function(
        f"{head} ({', '.join(kind.types)}) => (y0) {{ {text} }}"
    )
    return list(function.node)


def _div(kind: Kind) -> list[NodeProto] | None:
    """Divide integers by -1, which the processor refuses of the smallest one, by multiplying.

    The product wraps to the smallest integer again. By 0, where that is to be avoided too, gives 0.
    """
    if kind.known_issue is None:
        return None
    sizes = _divisor(kind) + "sign = Sub (one, moved)  quotient = Div (x0, divisor)"
    return _nodes(f"{sizes}  y0 = Mul (quotient, sign)", kind)


def _mod_of_integers(kind: Kind) -> list[NodeProto]:
    """Divide by 1 instead of -1 (and 0): it leaves no remainder either."""
    fmod = int(attribute(kind.node, "fmod") or 0)
    return _nodes(f"{_divisor(kind)}  y0 = Mod <fmod: int = {fmod}> (x0, divisor)", kind)


def _divisor(kind: Kind) -> str:
    """Return what makes `divisor` of x1, with 1 for those of known_issues.divisors_at_risk.

    `moved` is what was added to it: 2 to -1, 1 to 0. Without Where and
    constants of integers, which came with version 9.
    """
    number = element(kind.types["x1"])
    lines = ["one_as_float = Constant <value: tensor = float one_as_float {1}> ()",
             f"one = Cast <to: int = {number}> (one_as_float)"]  # fmt: skip
    for name, value in (("zero", 0), ("minus_one", -1)):
        if value in divisors_at_risk(number):
            lines += [
                f"{name}_float = Constant <value: tensor = float {name}_float {{{value}}}> ()",
                f"{name} = Cast <to: int = {number}> ({name}_float)",
                f"is_{name} = Equal (x1, {name})",
                f"{name}_moved = Cast <to: int = {number}> (is_{name})",
            ]
            if value == -1:
                lines.append("moved_by_two = Add (minus_one_moved, minus_one_moved)")
    if divisors_at_risk(number) == {0, -1}:
        lines.append("moved = Add (zero_moved, moved_by_two)")
    else:
        name = "zero_moved" if 0 in divisors_at_risk(number) else "moved_by_two"
        lines.append(f"moved = Identity ({name})")
    return "\n".join([*lines, "divisor = Add (x1, moved)", ""])


def _mod(kind: Kind) -> list[NodeProto] | None:
    """Return the remainder of floats with the sign of the divisor, from that with the dividend's.

    Zeros have that sign too; ONNX Runtime's Where does not keep it, hence the last two lines.
    """
    if element(kind.types["x1"]) in _BITS:
        return _mod_of_integers(kind) if kind.known_issue else None
    if attribute(kind.node, "fmod"):
        return None
    return _nodes(
        """
        m = Mod <fmod: int = 1> (x0, x1)
        zero_in_float = Constant <value_float: float = 0.0> ()
        zero = CastLike (zero_in_float, x1)
        negative_m = Less (m, zero)
        negative_y = Less (x1, zero)
        differ = Xor (negative_m, negative_y)
        none = Equal (m, zero)
        some = Not (none)
        short = And (differ, some)
        shifted = Add (m, x1)
        moved = Where (short, shifted, m)
        size = Abs (moved)
        sign = Sign (x1)
        y0 = Mul (size, sign)
        """,
        kind,
    )


def _bit_shift(kind: Kind) -> list[NodeProto] | None:
    """Shift any integers by any distance, with ONNX Runtime's shift of uint64 by 0 to 63 bits.

    A distance that is negative or as large as the type leaves the sign: 0 or -1.
    """
    number = element(kind.types["x0"])
    bits = _BITS.get(number)
    if bits is None:
        return None
    if attribute(kind.node, "direction") == b"RIGHT" and number in _SIGNED:
        # ~(~x >> n) shifts a negative x as if its sign went on for ever.
        value = """
            signed = Cast <to: int = 7> (x0)
            negative = Less (signed, zero)
            flipped = Sub (minus_one, signed)
            value = Where (negative, flipped, signed)
            """
        result = "unflipped = Sub (minus_one, moved)  result = Where (negative, unflipped, moved)"
    else:
        value, result = "value = Cast <to: int = 13> (x0)", "result = Identity (moved)"
    direction = attribute(kind.node, "direction").decode()
    return _nodes(
        f"""
        zero = Constant <value_int: int = 0> ()
        minus_one = Constant <value_int: int = -1> ()
        bits = Constant <value_int: int = {bits}> ()
        by = Cast <to: int = 7> (x1)
        not_negative = GreaterOrEqual (by, zero)
        small = Less (by, bits)
        fits = And (not_negative, small)
        near = Where (fits, by, zero)
        distance = Cast <to: int = 13> (near)
        {value}
        wide = Cast <to: int = 13> (value)
        shifted = BitShift <direction: string = "{direction}"> (wide, distance)
        signed_shifted = Cast <to: int = 7> (shifted)
        moved = Where (fits, signed_shifted, zero)
        {result}
        y0 = Cast <to: int = {number}> (result)
        """,
        kind,
    )


_T = TensorProto
_SIGNED = (_T.INT8, _T.INT16, _T.INT32, _T.INT64)
_BITS: dict[int, int] = {
    _T.INT8: 8, _T.INT16: 16, _T.INT32: 32, _T.INT64: 64,
    _T.UINT8: 8, _T.UINT16: 16, _T.UINT32: 32, _T.UINT64: 64,
}  # fmt: skip


def _batchwise(kind: Kind) -> list[NodeProto] | None:
    """Move the batch of GRU, LSTM and RNN from the first axis, and back in the results."""
    if attribute(kind.node, "layout") != 1:
        return None
    node = deepcopy(kind.node)
    kept = [item for item in node.attribute if item.name != "layout"]
    refill(node.attribute, kept)
    before, after = [], []
    for index in (0, 5, 6):  # X; initial_h and initial_c: [batch, ...]
        if len(node.input) > index and node.input[index]:
            moved = f"moved_{index}"
            before.append(
                helper.make_node("Transpose", [node.input[index]], [moved], perm=[1, 0, 2])
            )
            node.input[index] = moved
    for index, perm in enumerate(([2, 0, 1, 3], [1, 0, 2], [1, 0, 2])):  # Y, Y_h, Y_c
        if len(node.output) > index and node.output[index]:
            moved = f"moved_y{index}"
            after.append(helper.make_node("Transpose", [moved], [node.output[index]], perm=perm))
            node.output[index] = moved
    return [*before, node, *after]


def _prelu(kind: Kind) -> list[NodeProto] | None:
    """Align one slope a channel, as before version 7: broadcasting began at the front."""
    x, slope = kind.types["x0"].tensor_type, kind.types["x1"].tensor_type
    if kind.version >= 7 or len(slope.shape.dim) != 1 or not x.HasField("shape"):
        return None
    axes = list(range(1, len(x.shape.dim) - 1))
    return [
        helper.make_node("Unsqueeze", ["x1"], ["slopes"], axes=axes),
        helper.make_node("PRelu", ["x0", "slopes"], ["y0"]),
    ]


def _resize(kind: Kind) -> list[NodeProto] | None:
    """Crop instead of align_corners with scales of which the sizes are not whole.

    ONNX stretches the corners over size * scale, ONNX Runtime over the whole part of that.
    tf_crop_and_resize lets the last corner be put where ONNX has it.
    """
    if attribute(kind.node, "coordinate_transformation_mode") != b"align_corners":
        return None
    if len(kind.node.input) != 3 or not kind.node.input[2] or attribute(kind.node, "antialias"):
        return None
    node = deepcopy(kind.node)
    scales = node.input[2]
    for item in node.attribute:
        if item.name == "coordinate_transformation_mode":
            item.s = b"tf_crop_and_resize"
    node.input[1] = "roi"
    axes = attribute(node, "axes")
    chosen = "sizes = Identity (all_sizes)"
    if axes is not None:
        chosen = f"""
            axes = Constant <value_ints: ints = {list(axes)}> ()
            sizes = Gather (all_sizes, axes)
            """
    text = f"""
        all_sizes = Shape (x0)
        {chosen}
        one = Constant <value_float: float = 1.0> ()
        whole = Cast <to: int = 1> (sizes)
        stretched = Mul (whole, {scales})
        floored = Floor (stretched)
        last = Sub (floored, one)
        length = Sub (stretched, one)
        zeros = Sub (whole, whole)
        is_long = Greater (last, zeros)
        divisor = Where (is_long, length, one)
        ends = Div (last, divisor)
        roi = Concat <axis: int = 0> (zeros, ends)
        """
    return [*_nodes(text, kind), node]


def _any_locale(kind: Kind) -> list[NodeProto] | None:
    """Use the locale that every machine has, for upper and lower case.

    Where the model names none, ONNX Runtime wants en_US, which is the same and often not there.
    """
    if attribute(kind.node, "locale") is not None:
        return None
    node = deepcopy(kind.node)
    node.attribute.append(helper.make_attribute("locale", "C.UTF-8"))
    return [node]


def _constant_normal(kind: Kind) -> list[NodeProto] | None:
    """Fill with the mean, which is what random numbers without variance are."""
    if attribute(kind.node, "scale") != 0:
        return None
    mean = attribute(kind.node, "mean") or 0.0
    number = attribute(kind.node, "dtype") or (
        element(kind.types["x0"]) if kind.types else _T.FLOAT
    )
    fill = helper.make_node(
        "Constant", [], ["mean"], value=helper.make_tensor("m", number, [1], [mean])
    )
    if kind.types:
        shape = helper.make_node("Shape", ["x0"], ["shape"])
    else:
        sizes = list(attribute(kind.node, "shape") or ())
        tensor = helper.make_tensor("shape", _T.INT64, [len(sizes)], sizes)
        shape = helper.make_node("Constant", [], ["shape"], value=tensor)
    # Expand leaves the one axis of the mean; a scalar has none.
    flat = helper.make_node("Expand", ["mean", "shape"], ["filled"])
    return [fill, shape, flat, helper.make_node("Reshape", ["filled", "shape"], ["y0"])]


def _stft(kind: Kind) -> list[NodeProto] | None:
    """Fail where a frame has no length: the check is a place in a list of one, 0 or beside it."""
    if kind.known_issue is None:
        return None
    node = deepcopy(kind.node)
    has_window = len(node.input) > 2 and bool(node.input[2])
    step, node.input[1] = node.input[1], "checked_step"
    length = "sizes = Shape ({0})  length = Gather <axis: int = 0> (sizes, zero)"
    if not has_window:
        length = "flat = Reshape ({0}, minus_one)  length = Gather <axis: int = 0> (flat, zero)"
    text = f"""
        zero = Constant <value_int: int = 0> ()
        minus_one = Constant <value_ints: ints = [-1]> ()
        {length.format(node.input[2 if has_window else 3])}
        is_none = Equal (length, zero)
        beside = Cast <to: int = 7> (is_none)
        steps = Reshape ({step}, minus_one)
        checked_step = Gather <axis: int = 0> (steps, beside)
        """
    checks = _nodes(text, kind)
    for index, check in enumerate(checks):
        check.name = f"length of STFT's frames ({index})"  # an error names the node
    return [*checks, node]


def _unique(kind: Kind) -> list[NodeProto] | None:
    """Give no slices to Unique where they hold nothing, and add the one that they all equal."""
    if kind.known_issue is None:
        return None
    axis = attribute(kind.node, "axis")
    names = [f"some_{i}" if name else "" for i, name in enumerate(kind.node.output)]
    unique = deepcopy(kind.node)
    unique.input[:], unique.output[:] = ["taken"], names
    before = f"""
        axis = Constant <value: tensor = int64[1] {{{axis}}}> ()
        zero = Constant <value: tensor = int64[1] {{0}}> ()
        one = Constant <value: tensor = int64[1] {{1}}> ()
        sizes = Shape (x0)
        slices = Gather <axis: int = 0> (sizes, axis)
        size = Size (x0)
        elements = Reshape (size, one)
        are_empty = Equal (elements, zero)
        empty = Cast <to: int = 7> (are_empty)
        unseen = Mul (slices, empty)
        seen = Sub (slices, unseen)
        is_more = Greater (unseen, zero)
        more = Cast <to: int = 7> (is_more)
        taken = Slice (x0, zero, seen, axis)
        """
    added = (
        "row = Slice (x0, zero, more, axis)",
        "row = ConstantOfShape <value: tensor = int64[1] {0}> (more)",
        "row = ConstantOfShape <value: tensor = int64[1] {0}> (unseen)",
        "row = Slice (unseen, zero, more)",
    )
    after = ""
    for index, name in enumerate(kind.node.output):
        if name:
            along = axis if index == 0 else 0
            row = added[index].replace("row", f"row_{index}", 1)
            after += f"{row}  {name} = Concat <axis: int = {along}> (some_{index}, row_{index})\n"
    first = _nodes(before + "y0 = Identity (taken)", kind)[:-1]
    return [*first, unique, *_nodes(after, kind)]


def _all_true(kind: Kind) -> list[NodeProto] | None:
    """Return the least bools as what is not the largest of the opposites: so with none, too."""
    if kind.known_issue is None:
        return None
    node = deepcopy(kind.node)
    node.op_type, node.input[0], node.output[:] = "ReduceMax", "numbers", ["largest"]
    before = _nodes("opposites = Not (x0)  numbers = Cast <to: int = 2> (opposites)", kind)
    return [
        *before,
        node,
        *_nodes("is_any = Cast <to: int = 9> (largest)  y0 = Not (is_any)", kind),
    ]


SPECIAL: dict[str, Callable[[Kind], list[NodeProto] | None]] = {
    "BitShift": _bit_shift,
    "Div": _div,
    "GRU": _batchwise,
    "LSTM": _batchwise,
    "Mod": _mod,
    "PRelu": _prelu,
    "RNN": _batchwise,
    "RandomNormal": _constant_normal,
    "RandomNormalLike": _constant_normal,
    "ReduceMin": _all_true,
    "Resize": _resize,
    "STFT": _stft,
    "StringNormalizer": _any_locale,
    "TreeEnsemble": ordered,
    "Unique": _unique,
}
