"""Attributes of a node that differ from rank to rank: the heads of an attention, say.

A program has one list of nodes for all ranks. Such an attribute is in it as a tensor with an entry
for each rank, and is a rank's own where that rank's model is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from onnx import NodeProto, helper, numpy_helper

_SUFFIX = "/ranks"

Own: TypeAlias = int | str | Sequence[int] | Sequence[str]


def set_attribute(node: NodeProto, name: str, value: Any) -> None:
    """Set an attribute of a node, whether it has it or not."""
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])


def set_for_ranks(node: NodeProto, name: str, values: Sequence[Own]) -> None:
    """Set an attribute of integers or texts to a value of its own for each rank.

    Where values are lists, these are of one length.
    """
    plain = [value if isinstance(value, int | str) else [*value] for value in values]
    if all(value == plain[0] for value in plain):
        set_attribute(node, name, plain[0])
        return
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    array = np.array(plain)
    is_text = array.dtype.kind == "U"
    tensor = numpy_helper.from_array(array.astype(object) if is_text else array.astype(np.int64))
    node.attribute.extend([*kept, helper.make_attribute(name + _SUFFIX, tensor)])


def of_rank(node: NodeProto, rank: int) -> NodeProto:
    """Return a node as one rank runs it: itself where nothing in it differs."""
    found = [attribute for attribute in node.attribute if attribute.name.endswith(_SUFFIX)]
    if not found:
        return node
    own = NodeProto()
    own.CopyFrom(node)
    for attribute in found:
        found_here = numpy_helper.to_array(attribute.t)[rank]
        value = found_here.tolist() if isinstance(found_here, np.ndarray) else found_here
        set_attribute(own, attribute.name.removesuffix(_SUFFIX), value)
    kept = [attribute for attribute in own.attribute if not attribute.name.endswith(_SUFFIX)]
    del own.attribute[:]
    own.attribute.extend(kept)
    return own
