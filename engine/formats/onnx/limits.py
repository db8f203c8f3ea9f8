"""Limits on a model's size in each respect. Each limit is far above any real model's need."""

from __future__ import annotations

MODEL_BYTES = (1 << 31) - 1  # protobuf's own; larger models keep their weights in external data
FIELDS = 10_000_000  # looked at one by one; some seconds of reading
NODES = 1_000_000  # of all graphs and functions together
RANK = 64  # numpy's
NAME_BYTES = 65_536
PLAIN_BYTES = 4_096  # of a node or attribute that is decoded as a whole, values included
# Protobuf's readers stop at 100 nested messages; a subgraph takes three, a nested type two.
SUBGRAPH_DEPTH = 32
TYPE_DEPTH = 32
ELEMENTS = (1 << 63) - 1  # of one tensor; what an int64 counts
IR_VERSION = 1_000  # the newest is 14; files from the future are somebody else's to refuse
OPSET_VERSION = 1_000_000

# What a few bytes of a file may expand into. Runtimes compute constants while they load and
# inline functions into the graph, so these bound the time and memory of a load. A dense tensor
# that is written out in the file needs no such limit: it is as large as the file.
FUNCTION_DEPTH = 100  # onnxruntime's
INLINED_NODES = 65_536  # beyond those written out in the file
EXPANDED_BYTES = 16 << 30  # one computed tensor, and all constants computed from constant shapes
