"""The least that a REST server of the protocol can do: starlette on uvicorn, and onnxruntime."""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

options = ort.SessionOptions()
options.intra_op_num_threads = 1
sessions = {Path(path).stem: ort.InferenceSession(path, options) for path in sys.argv[3:]}


async def infer(request: Request) -> Response:
    """Run a model on a body of binary tensors."""
    body = await request.body()
    at = int(request.headers["inference-header-content-length"])
    feeds = {}
    for tensor in json.loads(body[:at])["inputs"]:
        size = tensor["parameters"]["binary_data_size"]
        value = np.frombuffer(body, np.float32, size // 4, at)
        feeds[tensor["name"]] = value.reshape(tensor["shape"])
        at += size
    name = request.path_params["name"]
    session = sessions[name]
    outputs, parts = [], []
    for spec, value in zip(session.get_outputs(), session.run(None, feeds)):
        parts.append(value.tobytes())
        parameters = {"binary_data_size": value.nbytes}
        output = {"name": spec.name, "datatype": "FP32", "shape": value.shape}
        outputs.append({**output, "parameters": parameters})
    head = json.dumps({"model_name": name, "outputs": outputs}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    return Response(b"".join([head, *parts]), headers=headers)


app = Starlette(routes=[Route("/v2/models/{name}/infer", infer, methods=["POST"])])
uvicorn.run(app, port=int(sys.argv[1]), log_level="error", access_log=False)
