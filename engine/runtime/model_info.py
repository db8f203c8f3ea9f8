"""Texts of Model.get_model_info."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from engine.runtime.descriptions import tensor_for

if TYPE_CHECKING:
    from engine.plan import Plan
    from engine.runtime.signature import Signature
    from engine.types import TensorSpec


def model_info(
    key: str,
    plan: Plan,
    signature: Signature,
    config: Mapping[str, Mapping[str, str]],
    weights: Sequence[TensorSpec] = (),
) -> str:
    """Return what a built model says of itself; "" for a key that it does not know."""
    if key in ("input_shape", "variable_weights"):
        specs = signature.inputs if key == "input_shape" else weights
        return ";".join(
            f"{spec.name}:{','.join(map(str, tensor_for(spec).shape))}" for spec in specs
        )
    if key == "user_info":
        graph = plan.source.graph
        return json.dumps(dict(graph.metadata)) if graph and graph.metadata else ""
    if key == "dynamic_dims":
        backend = plan.backend
        first = [f"{name}_context" for name in (backend.name, *backend.info.device_types)]
        given = (config.get(name, {}).get(key, "") for name in (*first, *config))
        return next(filter(None, given), "")
    return ""
