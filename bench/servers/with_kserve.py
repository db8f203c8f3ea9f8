"""KServe's Python server with models in onnxruntime.

python with_kserve.py HTTP_PORT GRPC_PORT MODEL.onnx ...

It listens at every interface, and has no option for that.
"""

import sys
from pathlib import Path
from typing import Any

import onnxruntime as ort
from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer
from kserve.utils.numpy_codec import from_np_dtype


class Onnx(Model):
    """A model in onnxruntime."""

    def __init__(self, name: str, path: str) -> None:
        super().__init__(name)
        self.session = ort.InferenceSession(path)
        self.ready = True

    def predict(self, payload: InferRequest, headers: Any = None, **more: Any) -> InferResponse:
        """Run it."""
        feeds = {tensor.name: tensor.as_numpy() for tensor in payload.inputs}
        outputs = []
        for spec, value in zip(self.session.get_outputs(), self.session.run(None, feeds)):
            output = InferOutput(spec.name, [*value.shape], from_np_dtype(value.dtype))
            output.set_data_from_numpy(value, binary_data=True)
            outputs.append(output)
        return InferResponse(payload.id or "", self.name, outputs)


http_port, grpc_port = map(int, sys.argv[1:3])
models = [Onnx(Path(path).stem, path) for path in sys.argv[3:]]
ModelServer(http_port=http_port, grpc_port=grpc_port, access_log_format=None).start(models)
