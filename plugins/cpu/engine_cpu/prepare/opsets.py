"""Versions: which of them ONNX Runtime reads, and whether a node means the same in another one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from itertools import pairwise

import onnx
from onnx import TensorProto, defs, helper

from engine_cpu.prepare.kind import Kind, attribute, element
from engine_cpu.prepare.trial import take
from engine_cpu.runtime import ort

# Of ONNX's own operators, ONNX Runtime promises kernels from this version on.
OLDEST = 7


@functools.cache
def newest_ir() -> int:
    """Return the newest IR version that ONNX Runtime reads."""
    return _newest(onnx.IR_VERSION, lambda version: _tiny(version, OLDEST))


@functools.cache
def newest(domain: str) -> int:
    """Return the newest operator set of a domain of ONNX's that ONNX Runtime reads."""
    if domain == "":
        return _newest(_known(domain), lambda version: _tiny(4, version))
    return _newest(_known(domain), lambda version: _tiny(8, OLDEST, {domain: version}))


def is_official(domain: str) -> bool:
    """Return True where the operators of a domain are defined by ONNX itself."""
    return _known(domain) > 0


def is_too_new(kind: Kind) -> bool:
    """Return True where a node is of an operator set of ONNX's that onnx does not know yet."""
    return 0 < _known(kind.domain) < kind.version


def _newest(upper: int, model: Callable[[int], bytes]) -> int:
    for version in range(upper, 0, -1):
        if take(model(version)).is_taken:
            return version
    raise RuntimeError(f"onnxruntime {ort.__version__} reads no model that is put before it")


def _tiny(ir_version: int, opset: int, others: Mapping[str, int] | None = None) -> bytes:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", values[:1], values[1:])
    opsets = {"": opset, **(others or {})}
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    model = helper.make_model(graph, ir_version=ir_version, opset_imports=imports)
    return bytes(model.SerializeToString())


@functools.cache
def _known(domain: str) -> int:
    versions = [s.since_version for s in defs.get_all_schemas_with_history() if s.domain == domain]
    return max(versions, default=0)


class Changed(Exception):
    """A node means something else in the other version; the text says why."""


def dropped(kind: Kind, target: int) -> frozenset[str]:
    """Return the attributes without which a node means in opset `target` what it does now.

    Nearly always none: those that came later and say what was always done before. Raises Changed.
    """
    node, domain, source = kind.node, kind.domain, kind.version
    if source == target:
        return frozenset()
    if is_too_new(kind):
        raise Changed(
            f"operator set {source} is newer than what onnx {onnx.__version__} knows "
            f"({_known(domain)})"
        )
    history = _history(domain, node.op_type)
    low, high = sorted((source, target))
    before = max((v for v in history if v <= low), default=0)
    versions = [v for v in sorted(history) if before <= v <= high]
    if not before or history[versions[-1]].deprecated or history[before].deprecated:
        raise Changed(f"operator {node.op_type!r} is not in operator set {target}")
    for older, newer in pairwise(versions):
        if not _is_same(kind, history[older], history[newer]):
            raise Changed(f"operator {node.op_type!r} became another in operator set {newer}")
    known = history[versions[0] if target < source else versions[-1]].attributes
    return frozenset(item.name for item in node.attribute if item.name not in known)


@functools.cache
def _history(domain: str, name: str) -> dict[int, defs.OpSchema]:
    return {
        schema.since_version: schema
        for schema in defs.get_all_schemas_with_history()
        if schema.domain == domain and schema.name == name
    }


def _is_same(kind: Kind, older: defs.OpSchema, newer: defs.OpSchema) -> bool:
    """Return True where two versions differ, for this node, only in the types they take."""
    node = kind.node
    rule = _REWORDED.get((node.op_type, newer.since_version))
    if not (rule(kind) if rule else _text(older) == _text(newer)):
        return False
    for formal, given in (("inputs", node.input), ("outputs", node.output)):
        one, other = ([p.option for p in getattr(schema, formal)] for schema in (older, newer))
        count = min(len(given), max(len(one), len(other)))
        if one[:count] != other[:count]:
            return False
    given = {item.name: item for item in node.attribute}
    for name, late in newer.attributes.items():
        default = late.default_value
        early = older.attributes.get(name)
        if early is None:
            # It says what was done before if it is left out, or set to what leaving it out means.
            if name in given and not _equal(given[name], default):
                return False
        elif name not in given and early.default_value != default:
            return False
    return all(name in newer.attributes for name in older.attributes)


def _text(schema: defs.OpSchema) -> str:
    return (schema.doc or "").strip()


def _equal(given: onnx.AttributeProto, default: onnx.AttributeProto) -> bool:
    return bool(default.name) and helper.get_attribute_value(given) == (
        helper.get_attribute_value(default)
    )


def _floors(kind: Kind) -> bool:
    return not attribute(kind.node, "ceil_mode")


def _is_not_float8(kind: Kind) -> bool:
    return attribute(kind.node, "to") not in (*_FLOAT8, TensorProto.FLOAT8E8M0)


def _is_defined_mod(kind: Kind) -> bool:
    floats = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
    return bool(attribute(kind.node, "fmod")) or element(kind.types["x0"]) not in floats


_FLOAT8 = (
    TensorProto.FLOAT8E4M3FN,
    TensorProto.FLOAT8E4M3FNUZ,
    TensorProto.FLOAT8E5M2,
    TensorProto.FLOAT8E5M2FNUZ,
)
# Where the text of an operator changed from the version before: when the two mean the same.
# Every other pair with another text is taken to differ. By name and the later version.
_REWORDED: dict[tuple[str, int], Callable[[Kind], bool]] = {
    # Windows that would start in the padding behind the data are now left out.
    ("AveragePool", 22): _floors,
    ("MaxPool", 22): _floors,
    # The fate of infinity in the 8-bit floats.
    ("Cast", 24): _is_not_float8,
    # Floats without `fmod` had no meaning before.
    ("Mod", 28): _is_defined_mod,
    # Types came in, and attributes of no effect on those that were there before.
    ("QuantizeLinear", 25): lambda kind: True,
    ("Range", 27): lambda kind: True,
    ("ReduceMax", 20): lambda kind: True,
    ("ReduceMin", 20): lambda kind: True,
    ("SpaceToDepth", 28): lambda kind: True,
}
