"""Folders of models, and requests that change which of them are loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from serve_ways import Served, ask, infer, scaled, tensor

NOT_LOADED = (
    "model '{0}' is not loaded: POST /v2/repository/models/{0}/load (gRPC: RepositoryModelLoad)"
)


def versions(folder: Path, config: str = "", *numbers: int) -> Path:
    """Write model `net`, whose version k gives k * x; return the folder that has it."""
    for number in numbers or (1,):
        scaled(folder / f"net/{number}/model.onnx", number)
    if config:
        (folder / "net/config.pbtxt").write_text(config)
    return folder


def factor(served: Served, path: str = "net") -> object:
    """Return what a version multiplies by; the error where there is none."""
    status, found = infer(served.http, path, tensor(np.ones((1, 3), "f4")))
    return found["outputs"][0]["data"][0] if status == 200 else (status, found["error"])


def states(served: Served) -> dict[str, tuple[str, str]]:
    """Return the state and the reason of each model in the index."""
    lines = ask(served.http, "POST", "/v2/repository/index")[1]
    return {line["name"]: (line["state"], line.get("reason", "")) for line in lines}


def load(served: Served, name: str = "net", **parameters: Any) -> tuple[int, Any]:
    body = {"parameters": parameters} if parameters else None
    return ask(served.http, "POST", f"/v2/repository/models/{name}/load", body)


def unload(served: Served, name: str = "net") -> tuple[int, Any]:
    return ask(served.http, "POST", f"/v2/repository/models/{name}/unload")
