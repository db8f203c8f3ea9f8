"""MLServer with models in onnxruntime.

python with_mlserver.py HTTP_PORT GRPC_PORT MODEL.onnx ...
"""

import asyncio
import sys
from pathlib import Path

import onnxruntime as ort
from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import NumpyCodec
from mlserver.settings import ModelParameters
from mlserver.types import InferenceRequest, InferenceResponse


class Onnx(MLModel):
    """A model in onnxruntime."""

    async def load(self) -> bool:
        """Load it."""
        self.session = ort.InferenceSession(self.settings.parameters.uri)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Run it."""
        feeds = {tensor.name: NumpyCodec.decode_input(tensor) for tensor in payload.inputs}
        results = zip(self.session.get_outputs(), self.session.run(None, feeds))
        outputs = [NumpyCodec.encode_output(spec.name, value) for spec, value in results]
        return InferenceResponse(model_name=self.name, outputs=outputs)


http_port, grpc_port = map(int, sys.argv[1:3])
models = [
    ModelSettings(name=Path(path).stem, implementation=Onnx, parameters=ModelParameters(uri=path))
    for path in sys.argv[3:]
]
settings = Settings(
    host="127.0.0.1",
    http_port=http_port,
    grpc_port=grpc_port,
    metrics_endpoint=None,
    parallel_workers=0,  # with the server's own process, which is the fastest
    debug=False,
    grpc_max_message_length=-1,
)
asyncio.run(MLServer(settings).start(models))
