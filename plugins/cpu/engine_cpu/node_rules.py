"""Rules that a node must keep to so that ONNX Runtime's kernels do not end the process: one table.

ONNX forbids each of these already, or gives it no meaning; ONNX Runtime does not look. Attributes
and omitted inputs are all that is checked: shapes and values that come later are the kernels' own.
A kernel that is at fault in what ONNX allows is in known_issues.py instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from engine.types import NodeInfo

MAX_RANK = 64  # numpy's, and what the core takes
_INT32 = 2**31 - 1


class Rule(NamedTuple):
    """A bound on one attribute of an operator. source: who says so, and what happens otherwise."""

    attribute: str
    is_kept: Callable[[float], bool]
    expected: str
    source: str

    def breach(self, node: NodeInfo) -> str:
        """Return what is wrong with a node; "" where the rule is kept."""
        value = node.attributes.get(self.attribute)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int | float) and not self.is_kept(number):
                return f"attribute {self.attribute!r} is {number}, expected {self.expected}"
        return ""


def _between(attribute: str, low: int, high: int, source: str) -> Rule:
    return Rule(attribute, lambda value: low <= value <= high, f"{low}..{high}", source)


_AXES = "an axis of a tensor; the kernel reads beside the shape"
_SCALE = Rule(
    "scale", lambda value: value >= 0, "0 or more",
    "a standard deviation; std::normal_distribution aborts",
)  # fmt: skip

_GROUP = _between("group", 1, _INT32, "a number of groups; a division by it")
_HEADS = "a number of heads; a division by it"
# By domain and operator.
RULES: Mapping[tuple[str, str], tuple[Rule, ...]] = {
    ("", "Attention"): (
        _between("q_num_heads", 1, _INT32, _HEADS),
        _between("kv_num_heads", 1, _INT32, _HEADS),
    ),
    **{("", name): (_GROUP,) for name in ("Conv", "ConvInteger", "ConvTranspose", "QLinearConv")},
    ("", "DeformConv"): (_GROUP, _between("offset_group", 1, _INT32, _GROUP.source)),
    ("", "DepthToSpace"): (
        _between("blocksize", 1, _INT32, "squared as an int64; a division by the zero it may be"),
    ),
    ("", "GatherND"): (_between("batch_dims", 0, MAX_RANK, "a number of axes; " + _AXES),),
    ("", "LayerNormalization"): (_between("axis", -MAX_RANK, MAX_RANK - 1, _AXES),),
    ("", "OneHot"): (_between("axis", -MAX_RANK, MAX_RANK - 1, _AXES),),
    ("", "RandomNormal"): (_SCALE,),
    ("", "RandomNormalLike"): (_SCALE,),
    ("", "TfIdfVectorizer"): (
        _between("max_skip_count", 0, 1 << 16, "as many passes over each row, of any length"),
    ),
    ("", "SpaceToDepth"): (_between("blocksize", 1, _INT32, "as of DepthToSpace"),),
}
_ORDERED = frozenset({"RandomUniform", "RandomUniformLike"})

# Operators with variadic inputs, of which none may be left out: the first of these. (Of Scan the
# second: in version 8 an optional input stands before them.)
VARIADIC: Mapping[str, int] = {
    "Concat": 0, "Einsum": 0, "FeatureVectorizer": 0, "Loop": 2, "Max": 0, "Mean": 0, "Min": 0,
    "Scan": 1, "SequenceConstruct": 0, "SequenceMap": 1, "Sum": 0,
}  # fmt: skip
# Operators that may be given nothing at all.
WITHOUT_INPUTS = frozenset({"Loop", "Optional", "OptionalHasElement"})

# Operators of whose outputs every one must have a name (they are variadic, but for one), and those
# that take an input left out at the end for one that is given: prepare/ says these otherwise.
NAMED_OUTPUTS = frozenset({
    "BatchNormalization", "If", "Loop", "Scan", "SequenceMap", "Split",
})  # fmt: skip
COUNTS_INPUTS = frozenset({"DFT", "LayerNormalization"})
# Attributes that are axes, or numbers of them, of any operator: onnx's shape inference, too, reads
# beside the shape by some. Looked at where that is to see a model.
AXES = frozenset({"axes", "axis", "batch_axis", "batch_dims", "perm", "split_dim", "time_axis"})

# Inputs that are one number: shape inference reads the first element of such a constant unasked.
SCALARS: Mapping[str, tuple[int, ...]] = {
    "BlackmanWindow": (0,), "CumSum": (1,), "DFT": (1, 2), "HammingWindow": (0,),
    "HannWindow": (0,), "MelWeightMatrix": (0, 1, 2, 3, 4), "OneHot": (1,), "Range": (0, 1, 2),
    "STFT": (1, 3), "TopK": (1,), "Trilu": (1,),
}  # fmt: skip

_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml"})


def breaches(nodes: Iterable[NodeInfo]) -> Iterator[str]:
    """Yield what is wrong with which node."""
    rules = _BY_OPERATOR
    for node in nodes:
        if "" in node.inputs and (text := _omission(node)):
            yield titled(node, text)
        if node.op_type in rules and node.domain in _DOMAINS:
            for check in rules[node.op_type]:
                if text := check(node):
                    yield titled(node, text)


def titled(node: NodeInfo, text: str) -> str:
    """Return a text about a node."""
    return f"node {node.name or node.index!r} ({node.op_type}): {text}"


def _omission(node: NodeInfo) -> str:
    """Return which input of a node may not be left out."""
    if node.domain not in _DOMAINS:
        return ""
    if not any(node.inputs) and node.op_type not in WITHOUT_INPUTS:
        return "none of its inputs is given"
    first = VARIADIC.get(node.op_type, len(node.inputs))
    if "" in node.inputs[first:]:
        return (
            f"input {node.inputs.index('', first)} is left out, which only an optional one may be"
        )
    return ""


def _bounds_in_order(node: NodeInfo) -> str:
    low, high = (node.attributes.get(name, default) for name, default in (("low", 0), ("high", 1)))
    if not isinstance(low, float | int) or not isinstance(high, float | int):
        return ""
    if low <= high and math.isfinite(low) and math.isfinite(high):
        return ""
    return f"attributes 'low' and 'high' are {low} and {high}, expected low <= high"


def _outputs_counted(node: NodeInfo) -> str:
    count = node.attributes.get("num_outputs")
    if count is None or count == len(node.outputs):
        return ""
    return f"attribute 'num_outputs' is {count}, expected {len(node.outputs)}, as it has outputs"


def _ngrams_counted(node: NodeInfo) -> str:
    """Return what is wrong with a TfIdfVectorizer, whose kernel reads an index for each n-gram."""
    pools = [node.attributes.get(f"pool_{kind}", ()) for kind in ("int64s", "strings")]
    given = [node.attributes.get(f"ngram_{name}", ()) for name in ("counts", "indexes")]
    lengths = [len(pool) for pool in pools if isinstance(pool, tuple)]
    lists = [[n for n in item if isinstance(n, int)] for item in given if isinstance(item, tuple)]
    if len(lengths) < len(pools) or len(lists) < len(given):
        return ""  # `unread`: the caller has them read
    counts, indexes = lists
    ends = [*counts[1:], max(lengths)]
    sizes = [end - first for first, end in zip(counts, ends, strict=True)]
    if (
        any(size < 0 or size % (n + 1) for n, size in enumerate(sizes))
        or min(counts, default=0) < 0
    ):
        return "attribute 'ngram_counts' is not where n-grams of each length begin in the pool"
    total = sum(size // (n + 1) for n, size in enumerate(sizes))
    if len(indexes) != total:
        return f"attribute 'ngram_indexes' has {len(indexes)} elements, expected {total}"
    return ""


_Check = Callable[[NodeInfo], str]
_BY_OPERATOR: Mapping[str, tuple[_Check, ...]] = {
    **{name: tuple(rule.breach for rule in rules) for (_, name), rules in RULES.items()},
    **dict.fromkeys(_ORDERED, (_bounds_in_order,)),
    "Split": (_outputs_counted,),
    "TfIdfVectorizer": (
        *(rule.breach for rule in RULES["", "TfIdfVectorizer"]),
        _ngrams_counted,
    ),
}
OPERATORS = frozenset(_BY_OPERATOR)

NGRAMS = ("ngram_counts", "ngram_indexes", "pool_int64s", "pool_strings")
# The attributes that these checks read, by operator.
_READ: Mapping[str, frozenset[str]] = {
    **{name: frozenset(rule.attribute for rule in rules) for (_, name), rules in RULES.items()},
    **dict.fromkeys(_ORDERED, frozenset({"low", "high"})),
    "Split": frozenset({"num_outputs"}),
    "TfIdfVectorizer": frozenset({"max_skip_count", *NGRAMS}),
}


def unread(node: NodeInfo) -> frozenset[str]:
    """Return the attributes that a check would read, and of which the core did not give a value.

    They are large, or those of the function that the node is in: its callers have their values.
    """
    if None not in node.attributes.values() or node.domain not in _DOMAINS:
        return frozenset()
    wanted = _READ.get(node.op_type, frozenset())
    return frozenset(name for name in wanted if node.attributes.get(name, 0) is None)
