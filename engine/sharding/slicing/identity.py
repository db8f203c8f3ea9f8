"""Identity of a slicing, which its ranks' files name: files of two slicings do not run together.

It follows from the model and from how it is divided, so that each machine may slice for itself.
"""

from __future__ import annotations

import hashlib

import numpy as np

from engine.sharding.slicing.program import Program
from engine.types import DType

_SAMPLE_BYTES = 4096
"""Of either end of a weight: enough to tell a model that was trained on, without reading it all."""


def identity(program: Program, *words: object) -> str:
    """Return a digest of a model and of how its ranks divide it; words: what else makes the files.

    It does not depend on the file's name and folder.
    """
    digest = hashlib.sha256(repr(words).encode())
    for node in program.nodes:
        digest.update(node.SerializeToString(deterministic=True))
    for name, weight in program.weights.items():
        digest.update(repr((name, weight.source, weight.state)).encode())
        for value in weight.values:
            digest.update(value.tobytes())
    for name, tensor in program.model.constants.items():
        digest.update(repr((name, tensor.data_type, *tensor.dims)).encode())
        if DType.from_onnx(tensor.data_type) is not DType.STRING:
            raw = program.model.array(name).reshape(-1).view(np.uint8)
            digest.update(raw[:_SAMPLE_BYTES].tobytes())
            digest.update(raw[-_SAMPLE_BYTES:].tobytes())
    return digest.hexdigest()[:32]
