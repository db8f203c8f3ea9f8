"""The least that a gRPC server of the protocol can do in Python: grpc.aio, and onnxruntime."""

import sys
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnxruntime as ort
import uvloop
from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelInferResponse

options = ort.SessionOptions()
options.intra_op_num_threads = 1
sessions = {Path(path).stem: ort.InferenceSession(path, options) for path in sys.argv[3:]}


async def infer(request: Any, context: Any) -> Any:
    """Run a model on raw contents."""
    feeds = {}
    for tensor, raw in zip(request.inputs, request.raw_input_contents):
        feeds[tensor.name] = np.frombuffer(raw, np.float32).reshape(tensor.shape)
    session = sessions[request.model_name]
    answer = ModelInferResponse(model_name=request.model_name)
    for spec, value in zip(session.get_outputs(), session.run(None, feeds)):
        answer.outputs.add(name=spec.name, datatype="FP32", shape=value.shape)
        answer.raw_output_contents.append(value.tobytes())
    return answer


async def main() -> None:
    """Serve until the process is ended."""
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    forms = (ModelInferRequest.FromString, ModelInferResponse.SerializeToString)
    handlers = {"ModelInfer": grpc.unary_unary_rpc_method_handler(infer, *forms)}
    service = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers)
    server.add_generic_rpc_handlers((service,))
    server.add_insecure_port(f"127.0.0.1:{sys.argv[2]}")
    await server.start()
    await server.wait_for_termination()


uvloop.run(main())
