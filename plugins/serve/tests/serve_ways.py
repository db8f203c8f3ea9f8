"""Servers of this process, small models, and plain requests as other programs send them."""

from __future__ import annotations

import itertools
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from engine_serve.building import builder
from engine_serve.folder import Sources
from engine_serve.repository import Repository
from engine_serve.runners import Running
from engine_serve.server import Server, Settings
from engine_serve.uploads import Uploads

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def scaled(path: Path, factor: float) -> Path:
    """y = factor * x, x float32[batch, 3]."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    scaled (float[batch, 3] x) => (float[batch, 3] y) <float factor = {{{factor}}}> {{
        y = Mul (x, factor)
    }}"""
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def slow(path: Path, size: int | str = 1 << 18, times: int = 300) -> Path:
    """y = sin(sin(... sin(x))), x float32[size]; as it is some tenths of a second."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = ["x", *(f"s{number}" for number in range(times - 1)), "y"]
    nodes = "\n".join(f"{after} = Sin ({before})" for before, after in itertools.pairwise(names))
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    slow (float[{size}] x) => (float[{size}] y) {{ {nodes} }}"""
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def identity(path: Path, dtype: int) -> Path:
    """y = x, of one axis of any size."""
    x, y = (helper.make_tensor_value_info(name, dtype, ["n"]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "identity", [x], [y])
    opsets = [helper.make_opsetid("", 19)]
    onnx.save(helper.make_model(graph, ir_version=9, opset_imports=opsets), path)
    return path


Serve = Callable[..., "Served"]
"""The fixtures `serve` and `serve_affine`."""


class Served:
    """A server of this process, with its repository."""

    def __init__(
        self,
        *words: object,
        running: Running | None = None,
        limit: int = 1000,
        uploads: int = 0,
        **more: Any,
    ) -> None:
        running = running or Running(queue_limit=limit)
        self.repository = Repository(
            Sources(map(str, words)),
            builder(running),
            Uploads(uploads),
            may_change=more.get("may_change", True),
        )
        settings = Settings(
            **{"http_port": 0, "grpc_port": 0, "drain_s": 5.0, "settle_s": 0.05, **more}
        )
        self.server = Server(self.repository, settings)
        self.server.start()
        for name in self.repository.names:
            self.repository.load(name)
        self.http = f"127.0.0.1:{self.server.http_port}"
        self.grpc = f"127.0.0.1:{self.server.grpc_port}"


@contextmanager
def served(*words: object, **more: Any) -> Iterator[Served]:
    """Serve models as `engine serve` does; more: settings."""
    found = Served(*words, **more)
    try:
        yield found
    finally:
        found.server.stop()
        found.repository.close()


def ask(
    address: str,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, Any]:
    """Return the status of an answer, and its JSON, or its bytes where it is none."""
    status, content, kind = ask_raw(address, method, path, body, headers)
    return status, json.loads(content) if kind.get(
        "content-type"
    ) == "application/json" else content


def ask_raw(
    address: str,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, bytes, dict[str, str]]:
    """Return the status, the bytes and the headers of an answer."""
    connection = HTTPConnection(address, timeout=30)
    try:
        if isinstance(body, dict):
            body = json.dumps(body)
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        kind = {key.lower(): value for key, value in answer.getheaders()}
        return answer.status, answer.read(), kind
    finally:
        connection.close()


def tensor(x: np.ndarray, datatype: str = "FP32", name: str = "x") -> dict[str, Any]:
    """Return an input with its values in JSON."""
    return {"name": name, "shape": x.shape, "datatype": datatype, "data": x.ravel().tolist()}


def infer(address: str, model: str, *inputs: dict[str, Any], **more: Any) -> tuple[int, Any]:
    """Ask for an inference in JSON."""
    return ask(address, "POST", f"/v2/models/{model}/infer", {"inputs": [*inputs], **more})


def binary(
    x: np.ndarray, datatype: str = "FP32", **parameters: Any
) -> tuple[bytes, dict[str, str]]:
    """Return the body and headers of a binary request for an input `x`."""
    given = {"name": "x", "shape": x.shape, "datatype": datatype}
    given["parameters"] = {"binary_data_size": x.nbytes}
    head = json.dumps({"inputs": [given], "parameters": parameters}).encode()
    return head + x.tobytes(), {"Inference-Header-Content-Length": str(len(head))}


def http(path: str, body: bytes, headers: dict[str, str]) -> bytes:
    """Return a POST as it is sent."""
    headers = {"Host": "[::1]", **headers, "Content-Length": str(len(body))}
    lines = [f"POST {path} HTTP/1.1", *(f"{key}: {value}" for key, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


def connected(address: str) -> socket.socket:
    """Return a connection to an address as "127.0.0.1:8000"."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def until(claim: Callable[[], bool]) -> None:
    """Wait for a claim to be true, for a minute at most."""
    end = time.monotonic() + 60
    while not claim() and time.monotonic() < end:
        time.sleep(0.01)
    assert claim()
