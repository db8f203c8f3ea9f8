"""Triton, by nvidia-pytriton, with models in onnxruntime.

python with_pytriton.py HTTP_PORT GRPC_PORT MODEL.onnx ...
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


def inference(session: ort.InferenceSession) -> Callable[..., list[dict[str, Any]]]:
    """Return what runs a model on a list of requests."""
    names = [spec.name for spec in session.get_outputs()]

    def infer(requests: list[Any]) -> list[dict[str, Any]]:
        return [dict(zip(names, session.run(None, dict(request)))) for request in requests]

    return infer


def tensors(specs: list[Any]) -> list[Tensor]:
    """Return inputs or outputs as it takes them."""
    shapes = [[d if isinstance(d, int) else -1 for d in spec.shape] for spec in specs]
    return [Tensor(name=s.name, dtype=np.float32, shape=tuple(d)) for s, d in zip(specs, shapes)]


http_port, grpc_port = map(int, sys.argv[1:3])
config = TritonConfig(
    http_address="127.0.0.1",
    http_port=http_port,
    grpc_address="127.0.0.1",
    grpc_port=grpc_port,
    allow_metrics=False,
)
with Triton(config=config) as triton:
    for path in sys.argv[3:]:
        session = ort.InferenceSession(path)
        triton.bind(
            model_name=Path(path).stem,
            infer_func=inference(session),
            inputs=tensors(session.get_inputs()),
            outputs=tensors(session.get_outputs()),
            config=ModelConfig(batching=False),
        )
    triton.serve()
