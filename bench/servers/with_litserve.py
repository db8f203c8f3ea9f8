"""LitServe with models in onnxruntime. python with_litserve.py HTTP_PORT GRPC_PORT MODEL.onnx ...

It has an interface of its own: JSON, here with a tensor as base64 text, at /MODEL.
"""

import base64
import sys
from pathlib import Path
from typing import Any

import litserve
import numpy as np
import onnxruntime as ort


class Onnx(litserve.LitAPI):
    """A model in onnxruntime."""

    def __init__(self, path: str) -> None:
        super().__init__(api_path=f"/{Path(path).stem}")
        self.path = path

    def setup(self, device: str) -> None:
        """Load it."""
        self.session = ort.InferenceSession(self.path)

    def decode_request(self, request: dict[str, Any]) -> Any:
        """Return the input."""
        raw = base64.b64decode(request["x"])
        return np.frombuffer(raw, np.float32).reshape(request["shape"])

    def predict(self, x: Any) -> Any:
        """Run it."""
        return self.session.run(None, {self.session.get_inputs()[0].name: x})[0]

    def encode_response(self, output: Any) -> dict[str, Any]:
        """Return the answer."""
        return {"y": base64.b64encode(output).decode(), "shape": output.shape}


if __name__ == "__main__":
    server = litserve.LitServer([Onnx(path) for path in sys.argv[3:]], accelerator="cpu")
    server.run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False)
