"""The values that cross the contract between the core and a backend.

Read this file and `hookspecs.py`, and you have read the contract. Rules that hold throughout:

* Sizes are in bytes, times in seconds, and their names say so (`_bytes`, `_s`).
* Every class here is a value (frozen) or a protocol that a backend implements in its own way.
* Fields are only ever added, with a default; a backend builds these values by keyword. A protocol
  may get further methods: each says what the core does where an object has none.
* A host array is a C-contiguous numpy array. float8, bfloat16, int4 and the like use ml_dtypes'
  dtypes, strings numpy's object dtype holding `str`.
* A name is a model's name for a thing, a device is `Device("gpu", 0)`, a shape a tuple of ints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from engine.errors import Cancelled


class _Value:
    """Equality, hash and repr of a dataclass by its fields, as dataclasses makes them.

    It compiles them for each class, which would be half of the time that this module's import
    takes. Device has dataclasses' own, because it is sorted too.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return _contents(self) == _contents(other)

    def __hash__(self) -> int:
        return hash(_contents(self))

    def __repr__(self) -> str:
        named = zip(_names(self), _contents(self), strict=True)
        described = ", ".join(f"{name}={content!r}" for name, content in named)
        return f"{type(self).__qualname__}({described})"


def _names(value: Any) -> Iterable[str]:
    names: Iterable[str] = value.__dataclass_fields__
    return names


def _contents(value: Any) -> tuple[Any, ...]:
    return tuple([getattr(value, name) for name in _names(value)])


# ------------------------------------------------------------------------------------- elements


class DType(StrEnum):
    """The element type of a tensor: ONNX's (IR version 14), by numpy's or ml_dtypes' name."""

    FLOAT32 = "float32"
    UINT8 = "uint8"
    INT8 = "int8"
    UINT16 = "uint16"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    STRING = "string"
    BOOL = "bool"
    FLOAT16 = "float16"
    FLOAT64 = "float64"
    UINT32 = "uint32"
    UINT64 = "uint64"
    COMPLEX64 = "complex64"
    COMPLEX128 = "complex128"
    BFLOAT16 = "bfloat16"
    FLOAT8E4M3FN = "float8_e4m3fn"
    FLOAT8E4M3FNUZ = "float8_e4m3fnuz"
    FLOAT8E5M2 = "float8_e5m2"
    FLOAT8E5M2FNUZ = "float8_e5m2fnuz"
    UINT4 = "uint4"
    INT4 = "int4"
    FLOAT4E2M1 = "float4_e2m1fn"
    FLOAT8E8M0 = "float8_e8m0fnu"
    UINT2 = "uint2"
    INT2 = "int2"
    FLOAT6E2M3 = "float6_e2m3fn"
    FLOAT6E3M2 = "float6_e3m2fn"

    @classmethod
    def from_onnx(cls, number: int) -> DType:
        """The type that ONNX's TensorProto.DataType numbers so; raises ValueError for others."""
        # TensorProto.DataType numbers the types 1.. in the order in which they stand above.
        members = tuple(cls)
        if not 1 <= number <= len(members):
            raise ValueError(f"element type {number} is not one of ONNX's 1..{len(members)}")
        return members[number - 1]

    @classmethod
    def from_numpy(cls, dtype: np.dtype[Any]) -> DType:
        """The type of a numpy array's elements; raises ValueError where ONNX has none."""
        if dtype.kind in "OUST":
            return cls.STRING
        try:
            return cls(dtype.name)
        except ValueError:
            raise ValueError(f"numpy dtype {dtype.name!r} has no ONNX element type") from None

    @property
    def onnx(self) -> int:
        """This type's number in ONNX's TensorProto.DataType."""
        return tuple(type(self)).index(self) + 1

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype of a host array of this type (object for strings).

        Raises ImportError with the command that helps where the type needs ml_dtypes.
        """
        if self is DType.STRING:
            return np.dtype(object)
        try:
            return np.dtype(str(self))
        except TypeError:
            pass
        try:
            import ml_dtypes
        except ImportError as error:
            raise ImportError(
                f"element type {str(self)!r} needs ml_dtypes; run: pip install ml_dtypes"
            ) from error
        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, str(self)))
        return dtype

    @property
    def bits(self) -> int:
        """Bits of one element as a file stores it; 0 for strings."""
        return _BITS[self]


_BITS = {
    dtype: next(
        bits
        for part, bits in (
            ("string", 0), ("complex128", 128), ("complex64", 64), ("bool", 8), ("float8", 8),
            ("float4", 4), ("float6_", 6), ("64", 64), ("32", 32),
            ("16", 16), ("8", 8), ("4", 4), ("2", 2),
        )
        if part in dtype
    )
    for dtype in DType
}  # fmt: skip


class ValueKind(StrEnum):
    """Kind of an input or output: nearly always a tensor."""

    TENSOR = "tensor"
    SEQUENCE = "sequence"  # a Python list of values
    OPTIONAL = "optional"  # a value, or None when absent
    MAP = "map"  # a Python dict, as ONNX-ML's classifiers give


Dim: TypeAlias = int | str | None
"""One axis: a size, the name of a symbolic size (equal names are equal sizes), or unknown."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Quantization(_Value):
    """Real numbers that the integers of a tensor stand for: (integer - zero_point) * scale.

    scale, zero_point: one number each, or one for each index of `axis`. axis: None for one number,
    and never negative. The formula is that of ONNX's DequantizeLinear. Since contract 1.3.
    """

    scale: tuple[float, ...]
    zero_point: tuple[int, ...] = (0,)
    axis: int | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TensorSpec(_Value):
    """Element type and shape of one input or output of a model.

    shape: None where even the rank is unknown. A scalar has ().
    kind: for a sequence or an optional, `dtype` and `shape` describe the tensor inside.
    bounds: () or, for each axis, None or the inclusive range (lowest, highest) that the
        executable was compiled for; the core refuses shapes outside it by name.
    quantization: what the integers stand for, where constants in the file itself say it; the core
        passes integers on as they are. Since contract 1.3.
    """

    name: str
    dtype: DType
    shape: tuple[Dim, ...] | None
    kind: ValueKind = ValueKind.TENSOR
    bounds: tuple[tuple[int, int] | None, ...] = ()
    quantization: Quantization | None = None

    def __str__(self) -> str:
        dims = "..." if self.shape is None else ", ".join(str(dim) for dim in self.shape)
        text = _printable(f"{self.dtype}[{dims}]")
        return text if self.kind is ValueKind.TENSOR else f"{self.kind}({text})"

    def __repr__(self) -> str:
        return f"TensorSpec({_printable(self.name)}: {self})"


def _printable(text: str) -> str:
    """Return a text with escapes for what would drive a terminal: names come from files."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


# -------------------------------------------------------------------------------------- devices


@dataclass(frozen=True, slots=True, order=True)
class Device:
    """A device of this host: "cpu", "gpu", "ascend" or a backend's own word, and its number."""

    type: str
    id: int = 0

    def __str__(self) -> str:
        return f"{self.type}:{self.id}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DeviceInfo(_Value):
    """A device that is there now.

    memory_bytes: its total memory, None where unknown.
    lacks: what the backend announces and cannot do on this device with the runtime that is
        installed: the `Capability` and why, in one line. The core then asks for it no more than
        for what is not announced.
    dtypes: the element types of tensors that this device computes with; empty where the backend
        does not say. A node with an input or output of another type, constants that it reads apart,
        counts as one of `LoadedModel.unsupported`, whatever that says. Types inside the
        bodies of nodes are the backend's to report. Since contract 1.3.
    """

    device: Device
    name: str
    memory_bytes: int | None = None
    lacks: Mapping[str, str] = field(default_factory=dict)
    dtypes: frozenset[DType] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DeviceMemory(_Value):
    """Memory of a device at a moment, in bytes; None where the runtime does not tell.

    free: what a process may still allocate. used: what all processes have allocated. own: what
    this process has; on a host its resident memory, shared pages included. Since contract 1.3.
    """

    free_bytes: int | None = None
    used_bytes: int | None = None
    own_bytes: int | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Devices(_Value):
    """Devices that a backend finds on this machine now.

    found: usable devices. Empty means that none is; then `reason` says why (one line, lower
        case) and `fix` gives the command or step that helps.
    """

    found: tuple[DeviceInfo, ...] = ()
    reason: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Check(_Value):
    """One line of a backend's diagnosis: what was looked at, whether it is well, and the fix."""

    name: str
    ok: bool
    detail: str = ""
    fix: str = ""


class Capability(StrEnum):
    """An ability of a backend beyond load, compile and predict.

    A backend announces these in `BackendInfo.capabilities`; the core asks for nothing that is not
    announced. Unknown flags are ignored, so a newer plugin works with an older core. What depends
    on the version of a runtime is announced here and taken back by `DeviceInfo.lacks`.
    """

    DYNAMIC_SHAPES = "dynamic_shapes"  # symbolic dims without recompiling
    DEADLINES = "deadlines"  # engine_predict stops a running model at deadline_s
    CANCEL_COMPILE = "cancel_compile"  # engine_compile looks at options.cancel while it works
    CANCEL_PREDICT = "cancel_predict"  # ExecutionContext.cancel stops a running model
    DEVICE_BUFFERS = "device_buffers"  # predict takes and gives DeviceBuffers: engine_buffer,
    #                                    engine_copy, engine_order, options.resident
    STRIDED_BUFFERS = "strided_buffers"  # predict and engine_copy take buffers with strides and
    #                                      offsets; predict may give such
    MIXED_PLACEMENT = "mixed_placement"  # engine_load reports unsupported nodes
    NODE_GROUPS = "node_groups"  # LoadedModel.groups
    COMPILE_CACHE = "compile_cache"  # options.save_to, source.compiled, engine_compiled_key
    SHARE_WEIGHTS = "share_weights"  # options.lend, engine_share_weights, options.shared_weights
    SHARE_WORKSPACE = "share_workspace"  # open_context(beside=...)
    UPDATE_WEIGHTS = "update_weights"  # engine_update_weights, options.variable_weights
    COLLECTIVES = "collectives"  # engine_communicator, allreduce, allgather, send and receive
    QUEUED_COLLECTIVES = "queued_collectives"  # these on a stream, beside segments: the core waits
    #                                            once a predict
    GRAPH_COLLECTIVES = "graph_collectives"  # compiles collective nodes: options.communicators
    FILES_IN_MEMORY = "files_in_memory"  # engine_load reads ModelSource.files
    PROFILE = "profile"  # options.profile_to, Executable.profile()
    ASYNC_PREDICT = "async_predict"  # engine_predict_async
    PREPARE = "prepare"  # Executable.prepare
    DEVICE_MEMORY = "device_memory"  # engine_memory
    SEVERAL_DEVICES = "several_devices"  # options.devices, Executable.memory_by_device
    PREDICT_OPTIONS = "predict_options"  # engine_predict wants `options` in every predict


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Option(_Value):
    """A setting that a backend reads, typed so that a tool can show it and try its values.

    text: one line on its meaning. type: int, float, bool ("0", "1", "true", "false") or str.
    choices: all values that it takes, as the user writes them; () for any of its type.
    lowest, highest: inclusive limits of a number, None for no limit. default: as the user would
    write it, "" where the backend decides.
    """

    text: str
    type: type[int] | type[float] | type[bool] | type[str] = str
    choices: tuple[str, ...] = ()
    lowest: float | None = None
    highest: float | None = None
    default: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class BackendInfo(_Value):
    """A backend's manifest: what it is, known without a device.

    name: as in its entry point. version: of the plugin. device_types: the values of
    `Device.type` it serves, e.g. ("gpu",). providers: its ways to run, the default first.
    formats: what engine_load reads: "onnx", and the backend's own compiled forms ("plan", "om").
    capabilities: `Capability` values; strings that the core does not know are ignored.
    suffixes: file name endings of its own compiled forms, e.g. {".engine": "plan"}.
    options: the settings it reads from `CompileOptions.options`, each an `Option` or one line on
        its values and meaning; a name ending in "*" stands for all that begin so. With them the
        core reports other keys to the user, once and with the nearest name, and passes on only
        these. Its own copy of the manifest holds `Option`s alone.
    completed_by: backends of the same device type, by name, that may run what this one reports as
        unsupported although the user did not list them. Needs MIXED_PLACEMENT.
    level: the least `hookspecs.LEVEL` of a core that this backend works with: that of the newest
        part of the contract that it cannot do without. An older core says so to the user, and
        calls no other hook.
    """

    name: str
    version: str
    device_types: tuple[str, ...]
    providers: tuple[str, ...] = ()
    formats: tuple[str, ...] = ("onnx",)
    capabilities: frozenset[str] = frozenset()
    suffixes: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Option | str] = field(default_factory=dict)
    completed_by: tuple[str, ...] = ()
    level: int = 1


# --------------------------------------------------------------------------------------- values


class MemoryKind(StrEnum):
    """Memory that a device reaches, by its own addresses. Since contract 1.4."""

    DEVICE = "device"  # its own
    PINNED = "pinned"  # of the host, page-locked: the pointer is valid on the host too
    MANAGED = "managed"  # wherever it was used last; the pointer is valid on the host too


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DeviceBuffer(_Value):
    """Memory on a device, or memory that a device can reach.

    pointer: its address on the device. With COLLECTIVES the core makes parts of a buffer along axis
        0 by adding bytes to it. Without, it may be an opaque handle, and a part of a buffer is an
        InputError.
    shape in elements, C-contiguous unless `strides` says otherwise.
    stream: the handle of the stream that produces the contents: whoever reads orders after it
        (engine_order). It stays usable for as long as a buffer names it, also when the context
        that it was of is closed. None means that the contents are complete. 0 is a stream like any
        other: CUDA's legacy default stream.
    owner: keeps the memory alive; the memory is freed when the last buffer that names the owner
        is gone. None: the caller guarantees the lifetime for as long as the buffer is in use.
    strides: how many elements lie from one index of an axis to the next, for each axis; 0 where
        all are one element, negative where the next index lies before. None: C-contiguous.
        offset_bytes: the first element is at pointer + offset_bytes, also where `strides` is None.
        memory: its kind. All three are DLPack's. The core gives strides and offsets to backends
        with STRIDED_BUFFERS, and copies for others. Since contract 1.4.
    """

    pointer: int
    shape: tuple[int, ...]
    dtype: DType
    device: Device
    stream: int | None = None
    owner: object = None
    strides: tuple[int, ...] | None = None
    offset_bytes: int = 0
    memory: MemoryKind = MemoryKind.DEVICE

    @property
    def is_packed(self) -> bool:
        """True where it is C-contiguous from `pointer` on."""
        return self.strides is None and not self.offset_bytes

    @property
    def nbytes(self) -> int:
        """Size of its elements in bytes, sub-byte elements packed."""
        count = 1
        for dim in self.shape:
            count *= dim
        return (count * self.dtype.bits + 7) // 8


Value: TypeAlias = "np.ndarray[Any, Any] | DeviceBuffer | list[Any] | dict[Any, Any] | None"
"""A tensor on the host or on a device; a list for a sequence; None for an absent optional."""

Values: TypeAlias = Sequence[Value]

# --------------------------------------------------------------------------------------- models


Attribute: TypeAlias = "int | float | str | tuple[int | float | str, ...] | None"
"""The value of a node's attribute. ONNX's strings are bytes: what is no UTF-8 is escaped."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class NodeInfo(_Value):
    """A node of the main graph as the file has it; `index` is its place there.

    attributes: those in the file, by name: an int, a float, a str, or a tuple of these; None for
        one that is larger than that (a tensor, a graph, a type; more than 4 KiB of numbers or
        text), that stands for an attribute of the function the node is in, or whose type the file
        does not say. A default that the file leaves out is not there.
    """

    index: int
    name: str
    op_type: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ParameterInfo(_Value):
    """A constant of the main graph. location: "" inside the model, else its external data file."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    nbytes: int
    location: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class GraphInfo(_Value):
    """Summary of a model file, read without a runtime.

    inputs: what a caller gives: graph inputs that are not initializers, in order.
    opsets: operator set versions by domain ("" is ONNX's own).
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    nodes: tuple[NodeInfo, ...]
    parameters: tuple[ParameterInfo, ...]
    opsets: Mapping[str, int]
    ir_version: int
    producer: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ModelSource(_Value):
    """A model on its way to a backend, validated by the core.

    format: "onnx", or a compiled form that the backend's `formats` lists.
    path: its file, or None when it exists only in memory.
    data: its bytes, or None when it is to be read from `path` (mapped, if the runtime can). The
        core then looks after load and after compile whether the file is still what it checked.
        Where `data` is set it is what has been checked, and the backend reads it instead of
        `path`, also for a model with external data.
    folder: what external data locations are relative to; None where there is none. They have
        been checked to stay inside it, or inside the folder of the file that `path` links to;
        only `path` finds the latter, so `data` is None then.
    graph: what the core read of it; None for a file that is a compiled form.
    compiled: a folder that `CompileOptions.save_to` of an earlier compile named, or None. It was
        written by this backend, for this model, with options that give the same
        engine_compiled_key, and may be used instead of what the other fields hold; these are as
        they were then, `graph` included. Where it is of no use after all, raise CompiledFormError:
        the core loads the model anew, without it. Capability: COMPILE_CACHE.
    entry: which of several models in the file is meant, by name; "" for the first or only one.
    is_secret: it was decrypted. Neither it nor anything made from it may be written to disk, not
        to a temporary file or a cache either; a file in memory (/dev/shm, a memfd) is no disk.
    files: external data that is in memory, by the location that `data` names it with; it is in no
        folder. Read only, and never changed. The core lets go of it when engine_compile returns; a
        backend that uses it in place keeps a reference, for it lives as long as one is left. Only
        backends that announce FILES_IN_MEMORY meet it; for others the core puts it into `data`.
    """

    format: str
    path: Path | None = None
    data: bytes | None = None
    folder: Path | None = None
    graph: GraphInfo | None = None
    is_secret: bool = False
    compiled: Path | None = None
    entry: str = ""
    files: Mapping[str, bytes | memoryview] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the model in messages: the path as given, or "model bytes"."""
        return str(self.path) if self.path is not None else "model bytes"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class NodeGroups(_Value):
    """Limits on the segments of a model that a backend takes beside other backends.

    The same in every load; no node of `unsupported` is in one.

    together: sets of nodes, by index in `source.graph.nodes`, each of which runs here only as a
    whole and in one segment; of a set of which that cannot be, no node runs here. No two overlap.
    least_nodes: a segment of fewer nodes is not worth the way to this backend and back; the next
    backend that can run it gets it. Constant nodes do not count.
    """

    together: tuple[frozenset[int], ...] = ()
    least_nodes: int = 1


class LoadedModel(Protocol):
    """A model that a backend has read but not compiled; owned by the core, used by one thread.

    Optional:

    * `entries`: a tuple of the names of the models in a file that holds several.
    * `groups`: a NodeGroups, asked for where nodes of a whole model go to other backends. The core
      keeps to it as it cuts the model. Capability: NODE_GROUPS. Since contract 1.2.
    """

    @property
    def inputs(self) -> tuple[TensorSpec, ...]: ...
    @property
    def outputs(self) -> tuple[TensorSpec, ...]: ...
    @property
    def unsupported(self) -> Mapping[int, str]:
        """Nodes (by index in `source.graph.nodes`) that this backend cannot run, and why.

        Also those of an attribute, an element type or a kind of value (a sequence) that it does not
        have, of a rank that nobody knows, and of an operator that the runtime computes otherwise
        than the model's operator set says: with MIXED_PLACEMENT others run them. For a
        ModelError the core passes over the backend: that is for a file that is wrong.
        """

    def close(self) -> None:
        """Free what reading took. The core calls it once, after compile; may come again."""


# ------------------------------------------------------------------------------------ compiling


Done: TypeAlias = Callable[["Values | None", "BaseException | None"], None]
"""done(values, error): the end of a predict of engine_predict_async; one of the two is None.

It returns quickly and does not raise. Since contract 1.3.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PredictOptions(_Value):
    """Options of one predict. Since contract 1.4.

    id: of its request, as `RequestEvent.id`: the user's own, or one that is unique in this process;
    "" where the user gave none and nobody observes. Of a run that several requests share:
    `RequestEvent.run_id`. What is unique is given to backends with PREDICT_OPTIONS, or where there
    is something else to say.
    priority: -100 to 100, 0 is usual; of what waits for the device, the highest comes first. Of a
    shared run: the highest of its requests.
    can_be_cancelled: False where nobody calls `ExecutionContext.cancel` for it; `deadline_s` holds
    all the same.
    """

    id: str = ""
    priority: int = 0
    can_be_cancelled: bool = False


Progress: TypeAlias = Callable[[str, int, "int | None"], None]
"""progress(phase, done, total): steps of the phase that are done; total is None while unknown.

Called from the thread that compiles or from one of the backend's own; it must return quickly.
"""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Threads(_Value):
    """Host threads a model may use, already fitted to this machine; never 0.

    intra_op: threads inside one operator. inter_op: operators at once.
    cores: CPU numbers to pin the intra-op threads to, one a thread; () leaves them free.
    is_counted: the user left `intra_op` open and the core counted the usable CPUs: a backend
        that knows better (hyper-threads, big cores) may use fewer.
    """

    intra_op: int = 1
    inter_op: int = 1
    cores: tuple[int, ...] = ()
    is_counted: bool = False


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ShapeRange(_Value):
    """The shapes one input is compiled for: lowest, usual and highest size of each axis.

    A usual and highest size of -1: no highest was given. With lowest 0 nothing was said of the
    axis.
    """

    lowest: tuple[int, ...]
    usual: tuple[int, ...]
    highest: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SharedWeights(_Value):
    """Weights of an executable, lent to another compile of the same model on the same device.

    digest: of the model that they belong to, as the core gives it; a borrower whose model has
        another one is refused before the backend sees it.
    files: names of the backend's choosing to files it may map read-only.
    token: what the backend needs to open them elsewhere (an IPC handle); b"" in one process.
    owner: keeps them alive where they are; its `close()` ends the loan. None at the borrower's.
    """

    backend: str
    device: Device
    nbytes: int
    digest: str = ""
    files: Mapping[str, Path] = field(default_factory=dict)
    token: bytes = b""
    owner: object = None


class Arithmetic(StrEnum):
    """How exactly a model's floats are computed, in words of no device. Since contract 1.3.

    FLOAT16 and BFLOAT16 allow what ROUNDED allows, and ROUNDED what EXACT allows.
    """

    EXACT = "exact"  # each type in itself: float32 neither by TF32 nor by bfloat16 products
    ROUNDED = "rounded"  # factors of float32 products may be rounded, their sums and range stay
    FLOAT16 = "float16"  # float32 may be held and computed as float16
    BFLOAT16 = "bfloat16"  # float32 may be held and computed as bfloat16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CompileOptions(_Value):
    """Settings of one compile.

    device: where to. provider: one of the backend's providers, "" for its default.
    devices: those that the executable runs on together, `device` first, in the user's order; () for
        that one alone. The backend says what runs where. DeviceBuffers that it takes and gives are
        on `device`; results are those of one device, as exactly. Also for each segment of a model.
        Capability: SEVERAL_DEVICES. Since contract 1.4.
    precision: the API's precision_mode: "enforce_fp32" (true fp32, no faster approximation) or
        "preferred_fp16" for "cpu", "gpu" and "ascend"; for "ascend" also "preferred_fp32",
        "enforce_fp16", "enforce_origin", "preferred_optimal" and ""; "" for other device types.
    arithmetic: the same wish for any device; None for the backend's choice. Where the user gave
        `arithmetic` itself, `precision` is the word for it. Since contract 1.3.
    shapes: ranges to compile for, by input name; an input without one keeps its declared dims.
        A backend without DYNAMIC_SHAPES needs one with lowest = highest for every input that
        has symbolic dims, and says so in a ModelError where there is none. For a part of a model
        they are those of that part's inputs: the core derives them from the whole model's.
    profiles: where the user gave several sets of shapes (gears, optimisation profiles): each of
        them, for every input that `shapes` names; `shapes` is then what encloses them all. ()
        or at least two.
    threads: host threads to use; a backend that cannot pin threads ignores `threads.cores`.
    options: the user's settings for this backend: section [<backend>_context] of the
        configuration (for this project's own backends also [<device type>_context]). Keys and
        values are strings; an unknown key is a ValueError naming it and the nearest known one.
        Where `BackendInfo.options` declares the keys, the core has dropped all others. Keys that
        the core consumes (`engine.options.CONSUMED`) are not among them.
    config: every section, for backends that read others.
    plan: names the plan that this executable is a segment of; "" for a whole model. The segments
        of one plan run one after another, never at once in one predict: they may share one
        thread pool, where that leaves other users of the runtime in this process alone.
    resident: outputs that stay on the device: engine_predict gives them as DeviceBuffers of the
        context's own, which it may write again in its next predict. Capability: DEVICE_BUFFERS.
    save_to: an empty folder into which load or compile writes the compiled form, giving back an
        executable that uses what it wrote; None for none. It stays empty where this model has no
        compiled form: always for a secret one, and for a source that is such a form itself. Nothing
        there is changed afterwards; the folder may be renamed, and later removed, while
        executables made from it are in use. Capability: COMPILE_CACHE.
    cache_folder: a folder for what compiles of different models share (timing caches), which the
        backend may read and write at any time, beside other processes; None for none, as for a
        model that is secret. What lies in its subfolder `linked` is removed once no compiled form
        has a hard link to it.
    rank, world_size: this process among those that run one sliced model.
    communicators: for a graph that keeps its collective nodes: the groups on the device by name,
        "" for all ranks. The core fills it when the ranks have joined, after compile and before a
        context is opened; predicts get a deadline then. Capability: GRAPH_COLLECTIVES.
    variable_weights: initializers (or nodes holding them) that engine_update_weights may change.
        Empty where the core holds variable weights itself, as inputs of the graph, or builds a
        model anew for each update. engine_compile raises ModelError for one that cannot vary; the
        core then makes them inputs. Capability: UPDATE_WEIGHTS.
    lend: the weights will be lent by engine_share_weights to other processes: "machine"; other
        executables of this process may have weights in common, and equal ones are to be in memory
        once: "process"; "" for neither. Capability: SHARE_WEIGHTS.
    shared_weights: map these instead of making a copy.
    profile_to: every predict is to be measured, kernel by kernel, for `Executable.profile()`, and
        may take longer for that; None for no measuring. An empty folder for the files that the
        runtime writes meanwhile, which other parts of the model share: choose names of your own.
        The core removes it after the executable is closed. Capability: PROFILE.
    progress, cancel: for work that takes long; either may be None.
    """

    device: Device
    devices: tuple[Device, ...] = ()
    provider: str = ""
    precision: str = ""
    arithmetic: Arithmetic | None = None
    threads: Threads = Threads()
    shapes: Mapping[str, ShapeRange] = field(default_factory=dict)
    profiles: tuple[Mapping[str, ShapeRange], ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    plan: str = ""
    resident: frozenset[str] = frozenset()
    save_to: Path | None = None
    cache_folder: Path | None = None
    rank: int = 0
    world_size: int = 1
    communicators: Mapping[str, Communicator] = field(default_factory=dict)
    variable_weights: tuple[str, ...] = ()
    lend: str = ""
    shared_weights: SharedWeights | None = None
    profile_to: Path | None = None
    progress: Progress | None = None
    cancel: CancelToken | None = None


class NodeState(StrEnum):
    """Part that a node takes in a run, as far as the backend knows."""

    RUNS = "runs"
    FUSED = "fused"  # computed by the kernel of another node, `Placement.fused_into`
    FOLDED = "folded"  # computed at compile: its result is a constant
    UNUSED = "unused"  # no output depends on it


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Placement(_Value):
    """Device and provider that run one node, and why.

    node: its name in the file, "" if it has none; index: its place there. device: as
    `str(Device)`; where several run parts of one node, theirs with commas between. provider: one of
    `BackendInfo.providers`, or that with ":" and a detail. state: RUNS where the backend cannot
    know better. fused_into: the index of the node whose kernel computes this one; None unless it is
    FUSED and that is known.
    """

    index: int
    node: str
    op_type: str
    backend: str
    device: str
    provider: str
    reason: str
    state: NodeState = NodeState.RUNS
    fused_into: int | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MemoryReport(_Value):
    """Memory that an executable holds on its device, in bytes; 0 also where it cannot be known.

    weights: private copies. shared: weights that other executables use too, of this process or of
    one that lends them here; each counts them. mapped: in files mapped from disk, one copy a
    machine, that no other executable of this process uses. The two do not overlap. workspace: of
    open contexts.
    """

    weights_bytes: int = 0
    shared_bytes: int = 0
    mapped_bytes: int = 0
    workspace_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class KernelTime(_Value):
    """Time that a kernel took in one predict.

    predict: which predict of the executable, counted from 0 in the order in which they began.
    nodes: the nodes of the source's main graph that it computes, by index: several where they are
    fused; () for what the backend has added, as a copy, and where it cannot tell. name, op_type:
    as the runtime calls them. start_s: a moment of time.monotonic().
    """

    predict: int
    nodes: tuple[int, ...]
    name: str
    op_type: str
    start_s: float
    duration_s: float


class Executable(Protocol):
    """Weights and code of a compiled model, for any number of threads.

    Optional, beside what stands below:

    * `concurrency`, an int: how many predicts at once are worth having. The core runs no more than
      that at once, first come, first served, and opens no more contexts: of predicts that were
      begun, no more are in flight. 0, also where it is missing: any number.
    * `open_context(beside=context)`, where SHARE_WORKSPACE is announced. `context` is one of this
      or another executable of this backend on the same device: the new one works on the same
      stream and in the same scratch memory. The core never runs two such at once, and closes the
      one that it names last.
    * `memory_by_device()`, where SEVERAL_DEVICES is announced: a MemoryReport for each device that
      the executable runs on, a Mapping[Device, MemoryReport]; `memory()` is their sum. Since
      contract 1.4.
    * `profile()`, where PROFILE is announced: a sequence of KernelTime, of all predicts of an
      executable that was compiled with `profile_to`. Called once, after the last predict and
      before close.
    * `prepare(shapes, progress, cancel)`, where PREPARE is announced: do now what the first predict
      of inputs of these shapes would otherwise do: specialise, tune, allocate. shapes: a tuple of
      sizes for each input, by name. progress, cancel and errors: as of engine_compile. Any thread
      may call it, also while others predict; what is prepared already returns at once. The core
      calls it when a model is built or resized, for the sizes that are known then. Results are
      those of a predict that nothing was prepared for, to the bit. ModelError for shapes that the
      model cannot have. Since contract 1.3.
    """

    @property
    def inputs(self) -> tuple[TensorSpec, ...]: ...
    @property
    def outputs(self) -> tuple[TensorSpec, ...]: ...

    def open_context(self) -> ExecutionContext:
        """Open what one predict needs to run: activations, a stream, bindings. Thread-safe."""

    def placement(self) -> Sequence[Placement]:
        """One entry for each node of the source's main graph, in order; why it runs there."""

    def memory(self) -> MemoryReport: ...

    def close(self) -> None:
        """Free everything. All contexts are closed before; closing twice does nothing."""


@runtime_checkable
class ExecutionContext(Protocol):
    """Activations, stream and bindings of one predict at a time.

    Lent for a call; not always used by the same thread.

    Two methods beside `close()` are optional:

    * `reset()`: let go of the caller's arrays. Called when a context that keeps arrays between
      calls goes from one thread to another.
    * `cancel()`: stop the predict that runs in this context, which then raises Cancelled soon. Any
      thread may call it while the core has lent the context for a predict: also just before
      engine_predict is called and before the runtime starts; it holds for that predict. The core
      closes the context afterwards. Capability: CANCEL_PREDICT.
    """

    def close(self) -> None:
        """Free it; twice does nothing. Not called while a predict runs in it."""


# ------------------------------------------------------------------------------------ collectives


class ReduceOp(Enum):
    """Operation that combines the ranks' elements. MEAN is the sum over world_size."""

    SUM = "sum"
    PROD = "prod"
    MIN = "min"
    MAX = "max"
    MEAN = "mean"


class Store(Protocol):
    """Keys and values that the ranks of one job share, given by the core; any thread may call."""

    def set(self, key: str, value: bytes) -> None:
        """Write a key, once; CommunicatorError where it has another value already."""

    def get(self, key: str, timeout_s: float) -> bytes:
        """Read a key, waiting until some rank has written it.

        Raises CommunicatorError when it has not been written after `timeout_s` (`timed_out` is True
        then), and when the store is gone.
        """


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CommunicatorOptions(_Value):
    """Membership of a rank in a group that it joins.

    rank: this process's place in the group, in [0, world_size). group: its name, the same on
    every rank. ranks: the members' numbers in the whole job, in group order.
    device: whose memory the buffers are in.
    store: where the ranks leave what the others need to find them (NCCL's unique id, HCCL's root
        info). Its keys are this group's own. It may be used until the group is left; where the
        process that holds it has ended by then, it raises CommunicatorError.
    rank_table: the path of the job's rank table, None where there is none.
    timeout_s: how long to wait for the others to join.
    """

    rank: int
    world_size: int
    store: Store
    group: str = "world"
    ranks: tuple[int, ...] = ()
    device: Device = Device("cpu")
    rank_table: Path | None = None
    timeout_s: float = 120.0


class Communicator(Protocol):
    """A joined group. Used by one thread at a time; every rank calls in the same order.

    `abort()` and `check()` are the exception: any thread may call them at any time.
    """

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def deterministic(self) -> bool:
        """True if equal inputs give equal bits in every run."""

    def abort(self) -> None:
        """Make every collective of this group that runs or comes later fail here, soon.

        Never blocks; twice does nothing. `close()` is still to be called.
        """

    def check(self) -> None:
        """Raise CommunicatorError if a queued collective has failed.

        It may name a rank that is known to be gone too, and need not find that out. Cheap, and does
        not wait for what is queued. With QUEUED_COLLECTIVES the core asks when it has waited for
        the stream: it raises for what has not ended well there, and for no rank that has gone since
        and that nothing here waits for.
        """

    def close(self) -> None:
        """Leave the group; twice does nothing."""


# ------------------------------------------------------------------------------------- extensions


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ModelDescription(_Value):
    """A model that was built, as an extension sees it.

    name: the file's name without folder and suffix, or the graph's for a model in memory.
    path: "" for a model in memory. backends: those that run it, the target's first. id: for
    observers, unique among the models and runners of this process. devices: those that run it, the
    target's first if it does; of a runner of many devices, all, by the numbers that the user gave.
    Since contract 1.4.
    """

    name: str
    path: str
    backends: tuple[str, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    id: str = ""
    devices: tuple[Device, ...] = ()


Predict: TypeAlias = Callable[[Any, Values, "Values | None", "float | None"], Values]
"""predict(context, inputs, outputs, deadline_s) of a whole model; see engine_predict."""

Extension: TypeAlias = Callable[..., Predict]
"""A function that wraps a model's predict, named by an entry point of `engine.extensions.v1`.

Called as extension(model: ModelDescription, predict: Predict), once when a model is built and the
user has switched the extension on; one that has a parameter `options` gets the user's options for
it there, a Mapping[str, str]. It gives a function that is called instead, from any thread, once for
each predict that passed the checks of its inputs, and not for the core's own trials. It passes
`context` on as it is, gives back what it was given, and lets exceptions through. Several wrap in
the order in which the user names them, the first outermost.

An extension with an attribute `takes_strides` that is true gets DeviceBuffers with strides as the
backend takes and gives them; for any other they are packed. Since contract 1.4.

An extension with an attribute `changes_results` that is true may give other results than the model
(a cache, a guard, a shadow), also without a call of the model: host arrays of the outputs' dtypes,
in shapes that the outputs may have. Since contract 1.2.
"""


class Status(StrEnum):
    """How a build, a request or an update ended."""

    COMPLETED = "completed"
    FAILED = "failed"  # an error of the input, the model, a backend or a setting
    CANCELLED = "cancelled"  # by its owner
    EXPIRED = "expired"  # at its deadline
    REFUSED = "refused"  # because the queue was full


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Span(_Value):
    """A phase of a build. name: as `Progress` reports it. begin_s: of time.monotonic()."""

    name: str
    begin_s: float
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class BuildEvent(_Value):
    """A model or runner was built, or failed to be.

    model: of a failed build the name and the path alone are known. begin_s: of time.monotonic().
    spans: the phases that the backends reported, in the order in which they began. error: "" or
    the exception as one line, "class: text". error_type: "" or the name of its class.
    device_memory: asks how much memory each of the model's devices has left now (engine_memory),
    when it is called, in any thread; a device that does not tell is left out. None of a failed
    build, and where the devices are those of other processes. Since contract 1.4.
    """

    model: ModelDescription
    status: Status
    begin_s: float
    duration_s: float
    spans: tuple[Span, ...] = ()
    error: str = ""
    error_type: str = ""
    device_memory: Callable[[], Mapping[Device, DeviceMemory]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RequestEvent(_Value):
    """A request has ended: one event each, however it came and however many devices served it.

    id: the user's `request_id`; else unique among the requests of this process. begin_s: when it
    came, of time.monotonic().
    queue_s: from then to its turn, and to the run that it shares; all of its time where that never
    came. compute_s: of its run, as the request sees it: all that share a run take as long as the
    run. batch_size: how many requests shared the run, this one included; 0 where its turn never
    came. error, error_type: see BuildEvent. begun: what the observer's `on_begin` returned for it,
    None where it has no such method.
    inputs, outputs: host arrays and other values in the model's order, not to be changed or kept
    after `on_request` has returned (copy them); None unless the observer has `wants_values`, where
    the inputs did not pass the checks, and where there are no results.
    devices: those that served it. run_id: of its run, the same for all requests that shared it, and
    unique among the runs of this process, whatever ids users give. Neither where its turn never
    came. Since contract 1.4.
    """

    model: ModelDescription
    id: str
    status: Status
    begin_s: float
    queue_s: float
    compute_s: float
    batch_size: int = 1
    error: str = ""
    error_type: str = ""
    begun: object = None
    inputs: Values | None = None
    outputs: Values | None = None
    devices: tuple[Device, ...] = ()
    run_id: str = ""

    @property
    def duration_s(self) -> float:
        """From its coming to its end."""
        return self.queue_s + self.compute_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class UpdateEvent(_Value):
    """Weights of a model or runner were exchanged, or failed to be.

    weights: their names, () where it failed. error, error_type: see BuildEvent.
    """

    model: ModelDescription
    status: Status
    begin_s: float
    duration_s: float
    weights: tuple[str, ...] = ()
    error: str = ""
    error_type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CloseEvent(_Value):
    """A model or runner was closed, and its last request has ended."""

    model: ModelDescription


class Observer(Protocol):
    """What sees models being built, run, updated and closed. Since contract 1.2.

    An entry point of `engine.extensions.v1` with a true attribute `observes` makes one: a class, or
    a function. The core calls it as make(options: Mapping[str, str]), once a process for the same
    options, when the first model is built for which the user has switched it on; ValueError is for
    an option that it does not know.

    All members are optional; any thread may call, several at once. It lives until the process ends
    (atexit says when). What a method raises is logged, and changes nothing for the request.
    `on_request` is called before the caller has the results, in the thread that ended the request:
    be quick. Predicts that a method makes are told to nobody, and a runner cannot be closed in one
    (ModelStateError). An exception that a signal handler raises in the middle of a predict may
    leave its request untold.

    * `wants_values`: True for requests with their inputs and outputs.
    * `on_begin(model: ModelDescription)`: a request has come; called in the contextvars context of
      the thread or task that made it, or a copy of that. What it returns is `RequestEvent.begun`,
      for example the trace that the caller is in.
    * `on_build(event: BuildEvent)`, `on_request(event: RequestEvent)`,
      `on_update(event: UpdateEvent)`, `on_close(event: CloseEvent)`.
    """


# ------------------------------------------------------------------------------------ long work


class CancelToken:
    """Asks long work to stop. One thread calls `cancel()`, the worker looks at `cancelled`.

    Any thread may call any method. A token serves once: it stays cancelled.
    """

    __slots__ = ("_callbacks", "cancelled")

    def __init__(self) -> None:
        self.cancelled = False
        self._callbacks: dict[object, Callable[[], None]] = {}

    def cancel(self) -> None:
        """Ask; the work ends with Cancelled as soon as it can."""
        self.cancelled = True
        for callback in list(self._callbacks.values()):
            callback()

    def check(self) -> None:
        """Raise Cancelled if `cancel()` was called."""
        if self.cancelled:
            raise Cancelled("cancelled by its owner")

    def watch(self, callback: Callable[[], None]) -> AbstractContextManager[None]:
        """Call `callback` when the token is cancelled inside the block, or has been before.

        It runs in the thread that cancels, perhaps twice, and perhaps just after the block has
        ended; it must return quickly and not raise.
        """
        return _Watch(self, callback)


class _Watch:
    """The block of `CancelToken.watch`: no generator, which an exception could leave half-way."""

    __slots__ = ("_callback", "_token")

    def __init__(self, token: CancelToken, callback: Callable[[], None]) -> None:
        self._token = token
        self._callback = callback

    def __enter__(self) -> None:
        # Noted before the flag is read: a cancel between the two calls twice rather than never.
        self._token._callbacks[self] = self._callback
        try:
            if self._token.cancelled:
                self._callback()
        except BaseException:
            self._token._callbacks.pop(self, None)
            raise

    def __exit__(self, *raised: object) -> None:
        self._token._callbacks.pop(self, None)
