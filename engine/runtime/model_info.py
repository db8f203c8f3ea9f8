"""Texts of Model.get_model_info."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from engine.runtime.descriptions import tensor_for

if TYPE_CHECKING:
    from engine.plan import Plan
    from engine.runtime.signature import Signature
    from engine.types import TensorSpec


NOTHING: Mapping[str, Mapping[str, str]] = MappingProxyType({})


def model_info(
    key: str,
    plan: Plan,
    signature: Signature,
    config: Mapping[str, Mapping[str, str]],
    weights: Sequence[TensorSpec] = (),
    kept: Mapping[str, Mapping[str, str]] = NOTHING,
) -> str:
    """Return what a built model says of itself; "" for a key that it does not know.

    kept: sections of the configuration with which it was converted.
    """
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
        found = [config.get(name, {}).get(key, "") for name in (*first, *config)]
        for sections in (config, kept):
            found.append(sections.get("acl_build_options", {}).get("ge.dynamicDims", ""))
            found.append(sections.get("ascend_context", {}).get(key, ""))
        return next(filter(None, found), "")
    return ""
