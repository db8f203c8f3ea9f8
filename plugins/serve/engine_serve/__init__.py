"""Serves models by the Open Inference Protocol, over REST and gRPC: `engine serve`.

command.py     `engine serve` and its options
server.py      both servers in one event loop; their beginning and their end
rest.py        addresses of the REST protocol; rest_infer.py: one inference over REST, the hot path
rpc.py         the gRPC service; rpc_infer.py: one inference over gRPC; health.py: grpc.health.v1
request.py     an inference as both see it: from inputs to the outputs that were asked for
tensors.py     values on the wire: raw bytes, JSON, BYTES; datatypes.py: names of element types
repository.py  models by name and version, loaded and unloaded; folder.py: files; loaded.py: one
runners.py     what runs a model: a runner in this process, or one with worker processes
errors.py      errors that clients see, with their codes
page.py        the page for browsers, with the files in page/; origins.py: other sites' pages
protocol.py    the messages of protocol.proto
"""

from __future__ import annotations

__version__ = "0.1.0"
