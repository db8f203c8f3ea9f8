"""The builder of ONNX graphs that lowering emits nodes and constants with."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.formats.onnx.writer import Attribute, Node
from engine_mindir.shape_inference import shape_of
from engine_mindir.values import FLOATS, DType, Shape, TypeId, Value, leaves

# Limits on what a short file unfolds into. Real ones take 600 to 1,000 bytes for a node.
OPERATORS = 50_000  # and more in larger files; inlined functions count as often as they are called
BYTES_PER_OPERATOR = 100
MAX_ELEMENTS = 1 << 22  # of a constant or tuple that lowering generates
ALL_ELEMENTS = 1 << 23  # of all of them together
EXPANDED_BYTES = 1 << 30  # of all tensors that runtimes expand from constants while they load


class Unsupported(ValueError):
    """A node cannot be expressed in ONNX. The message says why; the caller adds which node."""


class Scope:
    """Nodes of one graph: the main one, or the body of an If or Loop. depth: 0 for the main one."""

    def __init__(self, depth: int) -> None:
        self.nodes: list[Node] = []
        self.names: set[str] = set()  # of what the nodes give
        self.depth = depth

    def add(self, node: Node) -> None:
        """Append a node."""
        self.nodes.append(node)
        self.names.update(node.outputs)


class Emitter:
    """Graph under construction that receives nodes.

    scope: the graph that is being filled. origin: of which node of the file, for names of nodes.
    """

    def __init__(self, file_bytes: int) -> None:
        self.scope = Scope(0)
        self.origin = ""
        self.result: Any = None  # what the file says of the node's result: Abstract or tuple
        self._count = 0
        self._operators = OPERATORS + file_bytes // BYTES_PER_OPERATOR
        self._generated = 0
        self._expanded = 0
        self._constants: dict[tuple[Any, ...], Value] = {}
        self.constants: dict[str, Value] = {}
        self._origins: dict[str, int] = {}

    # ------------------------------------------------------------------------------------- nodes

    def node(
        self,
        op_type: str,
        *inputs: Any,
        dtype: DType | None = None,
        shape: Shape = None,
        domain: str = "",
        like: Value | None = None,
        **attributes: Attribute | None,
    ) -> Value:
        """Add an operator with one output.

        inputs: Values, numbers (of the first Value's type), arrays, None for an absent one.
        dtype: of the output; None for that of the first input. attributes: None is left out.
        """
        types = [(dtype, shape)]
        [value] = self.nodes(op_type, *inputs, types=types, domain=domain, like=like, **attributes)
        if op_type in ("Expand", "Tile"):
            self._count_expanded(op_type, inputs, value)
        return value

    def _count_expanded(self, op_type: str, inputs: Sequence[Any], value: Value) -> None:
        """Count the bytes of a tensor that runtimes compute while they load."""
        if value.shape is None or None in value.shape or not all(map(_is_constant, inputs)):
            return
        self._expanded += math.prod(dim or 0 for dim in value.shape) * value.dtype.bits // 8
        if self._expanded > EXPANDED_BYTES:
            raise Unsupported(
                f"constants are expanded to more than {EXPANDED_BYTES:,} bytes while it loads"
            )

    def nodes(
        self,
        op_type: str,
        *inputs: Any,
        types: Sequence[tuple[DType | None, Shape]],
        domain: str = "",
        like: Value | None = None,
        **attributes: Attribute | None,
    ) -> list[Value]:
        """Add an operator with several outputs of these types."""
        names, first = self._named(inputs, like)
        values: list[Value] = []
        for dtype, shape in types:
            if dtype is None:
                dtype = self._type_of(op_type, first)
            if shape is None and not values:
                shape = shape_of(op_type, inputs, attributes)
            values.append(Value(self.fresh(), dtype, shape, depth=self.scope.depth))
        self._append(op_type, names, [value.name for value in values], attributes, domain)
        return values

    def _named(self, inputs: Sequence[Any], typed: Value | None) -> tuple[list[str], Value | None]:
        """Return the inputs' names, and the Value whose dtype constants among them take."""
        if typed is None:
            for input_ in inputs:
                if isinstance(input_, Value):
                    typed = input_
                    break
        names = []
        for input_ in inputs:
            if isinstance(input_, Value):
                names.append(input_.name)
            elif input_ is None:
                names.append("")
            else:
                names.append(self.constant(input_, typed.dtype if typed else None).name)
        while names and not names[-1]:
            names.pop()
        return names, typed

    @staticmethod
    def _type_of(op_type: str, first: Value | None) -> DType:
        if first is None:
            raise Unsupported(f"{op_type} of constants only")
        return first.dtype

    def _append(
        self,
        op_type: str,
        inputs: list[str],
        outputs: list[str],
        attributes: dict[str, Attribute | None],
        domain: str,
    ) -> None:
        present = {key: value for key, value in attributes.items() if value is not None}
        self.scope.add(Node(op_type, inputs, outputs, present, self.title(), domain))

    def add(self, node: Node) -> None:
        """Append a finished node."""
        self.scope.add(node)

    def fresh(self) -> str:
        """Return an unused value name."""
        self._count += 1
        if self._count > self._operators:
            raise Unsupported(f"the model unfolds into more than {self._operators:,} operators")
        return f"%{self._count}"

    @property
    def count(self) -> int:
        """Number of the last name that was made."""
        return self._count

    def title(self) -> str:
        """Return the node's name: that of its origin, with a number where there are several."""
        number = self._origins.get(self.origin, 0)
        self._origins[self.origin] = number + 1
        return f"{self.origin}_{number}" if number else self.origin

    # --------------------------------------------------------------------------------- constants

    def constant(self, literal: Any, dtype: DType | None = None) -> Value:
        """Return a constant tensor: a Python number or tuple of them, or a numpy array.

        dtype: for Python numbers; None is float32, int64 or bool by what they are. An array keeps
        its own unless `dtype` is given.
        """
        if isinstance(literal, Value):
            return self.register(literal)
        key: tuple[Any, ...] = (literal, dtype) if type(literal) is int else ()
        if key in self._constants:  # the most frequent ones
            return self._constants[key]
        if isinstance(literal, TypeId):
            raise Unsupported("an element type where a tensor belongs")
        if isinstance(literal, str):
            raise Unsupported(
                "a text where a tensor belongs; only tensors and numbers can be computed"
            )
        array = np.asarray(literal)
        if array.dtype == object:
            raise Unsupported(f"{type(literal).__name__} where a tensor belongs")
        if dtype is None:
            dtype = (
                DType.from_numpy(array.dtype)
                if isinstance(literal, np.ndarray | np.generic)
                else DType.BOOL if array.dtype == bool
                else DType.INT64 if array.dtype.kind in "iu"
                else DType.FLOAT32
            )  # fmt: skip
        data = encode(array, dtype)
        shape = tuple(array.shape)
        value = self._constants.get((dtype, shape, data))
        if value is None:
            value = self.register(Value("", dtype, shape, data))
            self._constants[dtype, shape, data] = value
        if key:
            self._constants[key] = value
        return value

    def register(self, value: Value) -> Value:
        """Register a constant, so that it has a name and is written if used; return the value."""
        if value.data is not None and not value.is_parameter:
            value.name = value.name or self.fresh()
            self.constants[value.name] = value
        return value

    def register_all(self, value: Any) -> Any:
        """Register every constant in a value or nested tuple, and return it."""
        if isinstance(value, Value | tuple):
            for leaf in leaves(value):
                if isinstance(leaf, Value):
                    self.register(leaf)
        return value

    def ints(self, value: Any) -> Value:
        """Return a 1-D int64 tensor of a number, a tuple (may hold scalar tensors), or a tensor."""
        if isinstance(value, Value):
            value = self.cast(value, DType.INT64)
            return value if value.rank not in (0, None) else self.reshape(value, (-1,))
        parts = value if isinstance(value, tuple | list) else (value,)
        if not any(isinstance(part, Value) for part in parts):
            return self.constant(np.array(parts, np.int64).reshape(-1))
        if len(parts) == 1:
            return self.ints(parts[0])
        return self.node(
            "Concat", *map(self._one_int, parts), axis=0, dtype=DType.INT64, shape=(len(parts),)
        )

    def _one_int(self, part: Any) -> Value:
        value = self.ints(part)
        return value if value.shape == (1,) else self.reshape(value, (1,))

    def scalar(self, value: Any, dtype: DType) -> Value:
        """Return a scalar tensor (no axes) of that dtype."""
        if isinstance(value, Value):
            value = self.cast(value, dtype)
            return value if value.rank in (0, None) else self.reshape(value, ())
        return self.constant(value, dtype)

    def bounded(self, *sizes: int) -> None:
        """Count the elements of a constant or tuple that is about to be generated.

        Raises Unsupported where one gets too many, or all together do: a damaged file says any.
        """
        count = math.prod(max(size, 0) for size in sizes)
        shown = " x ".join(map(str, sizes))
        if count > MAX_ELEMENTS:
            raise Unsupported(
                f"sizes of {shown} to be written out; at most {MAX_ELEMENTS:,} elements are"
            )
        self._generated += count
        if self._generated > ALL_ELEMENTS:
            raise Unsupported(
                f"sizes of {shown} to be written out, and more before; at most {ALL_ELEMENTS:,} "
                "elements of one model are"
            )

    # ------------------------------------------------------------------------------ common parts

    def cast(self, value: Any, dtype: DType) -> Value:
        """Cast a value to `dtype`; return it unchanged where it has that already."""
        if not isinstance(value, Value):
            return self.constant(value, dtype)
        if value.dtype is dtype:
            return value
        array = value.array()
        if array is not None and array.size <= 16 and dtype is not DType.STRING:
            return self.constant(array, dtype)
        return self.node("Cast", value, dtype=dtype, shape=value.shape, to=dtype.onnx)

    def reshape(self, value: Value, shape: Any) -> Value:
        """Reshape a value. shape: a tuple that may hold scalar tensors, or a tensor."""
        known = shape if isinstance(shape, tuple) and all(type(d) is int for d in shape) else None
        resolved = None
        if known is not None:
            resolved = tuple(None if dim == -1 else dim for dim in known)
            if None in resolved and value.shape is not None and None not in value.shape:
                rest = int(np.prod([d for d in known if d != -1]))
                count = int(np.prod([d or 0 for d in value.shape]))
                resolved = tuple(count // rest if d == -1 and rest else d for d in known)
                if -1 in resolved:
                    resolved = tuple(None if d == -1 else d for d in resolved)
            if resolved == value.shape and None not in (value.shape or (None,)):
                return value
        if value.data is not None and resolved is not None and None not in resolved:
            return self.register(Value("", value.dtype, resolved, value.data))
        # A 0 is a size in MindSpore; without allowzero ONNX takes it as "copy from the input".
        zero = known is None or 0 in known
        return self.node(
            "Reshape", value, self.ints(shape), shape=resolved, allowzero=1 if zero else None
        )

    def shape(self, value: Value) -> Value:
        """Return the sizes of a tensor's axes, as a 1-D int64 tensor."""
        if value.shape is not None and None not in value.shape:
            return self.ints(value.shape)
        return self.node("Shape", value, dtype=DType.INT64, shape=_vector_shape(value.rank))

    def shape_part(self, value: Value, first: int, stop: int) -> Value:
        """Return the sizes of the axes from `first` to before `stop`, as a 1-D int64 tensor."""
        if value.shape is not None and None not in value.shape[first:stop]:
            return self.ints(value.shape[first:stop])
        return self.node(
            "Shape", value, dtype=DType.INT64, shape=(stop - first,), start=first, end=stop
        )

    def dim(self, value: Value, axis: int) -> Any:
        """Return the size of one axis: an int where it is known, else a scalar tensor."""
        if value.shape is not None and value.shape[axis] is not None:
            return value.shape[axis]
        sizes = self.shape(value)
        return self.node("Gather", sizes, self.constant(axis, DType.INT64), axis=0, shape=())

    def dims(self, value: Value) -> tuple[Any, ...]:
        """Return every axis's size, as `dim` gives it."""
        return tuple(self.dim(value, axis) for axis in range(self.rank(value)))

    def rank(self, value: Value) -> int:
        """Return the number of axes. Raises Unsupported where the file leaves it open."""
        if value.rank is None:
            raise Unsupported("a tensor of unknown rank; export with the rank fixed")
        return value.rank

    def transpose(self, value: Value, perm: Sequence[int]) -> Value:
        """Permute the axes."""
        perm = [axis % len(perm) for axis in perm]
        if perm == list(range(len(perm))):
            return value
        shape = None if value.shape is None else tuple(value.shape[axis] for axis in perm)
        return self.node("Transpose", value, perm=perm, shape=shape)

    def squeeze(self, value: Value, axes: Sequence[int]) -> Value:
        """Drop axes of size 1."""
        if not axes:
            return value
        shape = None
        if value.shape is not None:
            gone = {axis % len(value.shape) for axis in axes}
            shape = tuple(dim for axis, dim in enumerate(value.shape) if axis not in gone)
        return self.node("Squeeze", value, self.ints(tuple(axes)), shape=shape)

    def unsqueeze(self, value: Value, axes: Sequence[int]) -> Value:
        """Insert axes of size 1."""
        shape = None
        if value.shape is not None:
            rank = len(value.shape) + len(axes)
            new = {axis % rank for axis in axes}
            rest = iter(value.shape)
            shape = tuple(1 if axis in new else next(rest) for axis in range(rank))
        return self.node("Unsqueeze", value, self.ints(tuple(axes)), shape=shape)


def _is_constant(operand: Any) -> bool:
    return not isinstance(operand, Value) or operand.data is not None


def encode(array: np.ndarray[Any, Any], dtype: DType) -> bytes:
    """Encode an array's elements as `dtype`, C order, little endian."""
    if dtype is DType.BFLOAT16:
        bits = np.ascontiguousarray(array, "<f4").view("<u4").astype(np.uint64)
        # Round half to even, as the hardware does.
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return rounded.astype("<u2").tobytes()
    with np.errstate(all="ignore"):
        return array.astype(dtype.numpy.newbyteorder("<"), copy=False).tobytes()


def lowest(dtype: DType) -> Any:
    """Return the lowest number of a dtype."""
    if dtype in FLOATS:
        return -np.inf
    return 0 if dtype is DType.BOOL else int(np.iinfo(str(dtype)).min)


def single(number: float) -> float:
    """Round a number to float32, the precision of floats in the file."""
    result: float = struct.unpack("<f", struct.pack("<f", number))[0]
    return result


def _vector_shape(rank: int | None) -> Shape:
    return None if rank is None else (rank,)
