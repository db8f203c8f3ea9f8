"""Serves models by the Open Inference Protocol, over REST and gRPC: `engine serve`.

command.py     `engine serve` and its options
server.py      both servers in one event loop; their beginning and their end
rest.py        the REST protocol; rest_infer.py: one inference, the hot path; addresses.py: the rest
body.py        bodies of requests; http_infer.py, http_limits.py: uvicorn's protocol, with limits
rpc.py         the gRPC service; rpc_infer.py: one inference over gRPC; rpc_methods.py: the others;
               health.py: grpc.health.v1
request.py     an inference as both see it: from inputs to the outputs that were asked for
tensors.py     values on the wire: raw bytes, JSON, BYTES; datatypes.py: names of element types
repository.py  models by name and version, loaded and unloaded; folder.py: files; loaded.py: one
polling.py     loads what has changed; uploads.py: files of models that clients send
metrics.py     for Prometheus; statistics.py, latencies.py: the counts; logs.py: the log
runners.py     what runs a model: a runner in this process, or one with worker processes
errors.py      errors that clients see, with their codes
page.py        the page for browsers, with the files in page/; origins.py: other sites' pages
protocol.py    the messages of protocol.proto
"""

from __future__ import annotations

__version__ = "0.1.0"
