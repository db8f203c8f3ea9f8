"""Limits on a model's size in each respect. Each limit is far above any real model's need."""

from __future__ import annotations

MODEL_BYTES = (1 << 31) - 1  # protobuf's own; larger models keep their weights in external data
FIELDS = 10_000_000  # looked at one by one; some seconds of reading
NODES = 1_000_000  # of functions that are inlined; where counting them ends

# The cost of reading beside weights: so much for any file, and more in proportion to its size.
# Real files have 20 bytes a field and 50 and more a part: a name alone takes that. A part is a
# node, attribute, value or entry; tensors, subgraphs and functions, which cost more, are several.
FREE_FIELDS, BYTES_PER_FIELD = 500_000, 8
FREE_PARTS, BYTES_PER_PART = 200_000, 64
TENSOR_PARTS, VALUE_PARTS, GRAPH_PARTS, FUNCTION_PARTS = 2, 2, 3, 6

EXTERNAL_ENTRIES = 4  # of one tensor: location, offset, length, checksum
RANK = 64  # numpy's
NAME_BYTES = 65_536
PLAIN_BYTES = 4_096  # of a node or attribute that is decoded as a whole, values included
# Protobuf's readers stop at 100 nested messages; a subgraph takes three, a nested type two.
SUBGRAPH_DEPTH = 32
TYPE_DEPTH = 32
ELEMENTS = (1 << 63) - 1  # of one tensor; what an int64 counts
IR_VERSION = 1_000  # the newest is 14; files from the future are somebody else's to refuse
OPSET_VERSION = 1_000_000

# Growth that a few bytes of a file may cause. Runtimes compute constants while they load and
# inline functions into the graph, so these bound the time and memory of a load. A dense tensor
# that is written out in the file needs no such limit: it is as large as the file.
FUNCTION_DEPTH = 100  # onnxruntime's
INLINED_NODES = 65_536  # beyond those written out in the file
# The cost of computing constants before a backend is told to leave it: see folding.py.
FOLDING, FOLDING_PER_BYTE = 1_000_000_000, 100
EXPANDED_BYTES = 16 << 30  # one computed tensor, and all constants computed from constant shapes

# The work that a model may do on constants alone, or for nothing, at all: so much for any file, and
# more in proportion to its size. No input decides over it, so no caller's deadline or container
# limit stands before a load. A rotary cache or a mask takes some megabytes.
LIVE_BYTES, LIVE_PER_BYTE = 80_000_000, 10  # at one time
FILLED_BYTES, FILLED_PER_BYTE = 700_000_000, 10  # with one value: ONNX's own "light" networks
MADE_BYTES, MADE_PER_BYTE = 256_000_000, 50  # one after the other
OPERATIONS, OPERATIONS_PER_BYTE = 20_000_000_000, 10_000
SHAPE_ELEMENTS = 65_536  # of a tensor that is put together of shapes: they are written out
KNOWN_ELEMENTS = 64  # of a small constant whose values are followed


def folds_too_much(cost: int, weights_bytes: int) -> bool:
    """Return whether computing constants costs more than real models ask for.

    Those compute what goes into their weights: transposed, widened, two of them multiplied.
    """
    return cost > FOLDING + FOLDING_PER_BYTE * weights_bytes
