"""The servers that serve.py measures, and the clients that ask them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, RemoteDisconnected
from pathlib import Path

import numpy as np

JSON = {"Content-Type": "application/json"}
Call = Callable[[], object]


@dataclass(frozen=True)
class Kind:
    """A server beside `engine serve`: what installs it, and what its clients may speak.

    packages: for pip. pytriton's process of a model takes the system's own libpython, so its
    environment must be of the system's python3.

    rest: how tensors come over REST: "binary", "json", or "own" for an interface of its own.
    """

    packages: str
    rest: str = "binary"
    has_grpc: bool = True


OTHERS = {
    "mlserver": Kind("'mlserver==1.7.*' onnxruntime", rest="json"),
    "kserve": Kind("kserve onnxruntime"),
    "litserve": Kind("litserve onnxruntime", rest="own", has_grpc=False),
    "pytriton": Kind("nvidia-pytriton onnxruntime"),
}
OWN = Kind("")


@dataclass(frozen=True)
class Running:
    """A server that runs: its ports, and the first of its processes, which leads a session."""

    kind: Kind
    http: int
    grpc: int
    pid: int = 0

    def cpu_s(self) -> float:
        """Return the seconds that its processes have had of the CPUs."""
        ticks = 0
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # it has ended
                fields = path.read_text().rpartition(")")[2].split()
                if int(fields[3]) == self.pid:
                    ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def own_server(*words: str) -> Iterator[Running]:
    """Run `engine serve`; its log names its ports until it is ready."""
    command = [sys.executable, "-m", "engine.cli", "serve", *words]
    command += ["--http-port", "0", "--grpc-port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stderr is not None
    log = ""
    try:
        while "ready" not in log:
            line = process.stderr.readline()
            if not line:
                raise RuntimeError(f"engine serve ended: {log}")
            log += line
        threading.Thread(target=process.stderr.read, daemon=True).start()
        http, grpc = re.findall(r"127.0.0.1:(\d+)", log)
        yield Running(OWN, int(http), int(grpc), process.pid)
    finally:
        process.terminate()
        process.wait()


@contextmanager
def program(python: str, name: str, kind: Kind, paths: list[str]) -> Iterator[Running]:
    """Run bench/servers/NAME.py until the caller is done. python: that which has the server."""
    http, grpc = free_port(), free_port()
    script = Path(__file__).with_name("servers") / f"{name}.py"
    command = [python, str(script), str(http), str(grpc), *paths]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            end = time.monotonic() + 90
            while not is_listening(grpc if name == "floor_grpc" else http):
                if process.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    raise RuntimeError(f"{name} did not begin: {log.read().decode()[-2000:]}")
                time.sleep(0.1)
            yield Running(kind, http, grpc, process.pid)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def free_port() -> int:
    """Return a port that nobody has now."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def is_listening(port: int) -> bool:
    """Return whether somebody listens at a port."""
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def body_of(x: np.ndarray, kind: Kind) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of a request, as a server takes them."""
    if kind.rest == "own":
        return json.dumps({"x": b64encode(x).decode(), "shape": x.shape}).encode(), JSON
    tensor = {"name": "x", "shape": x.shape, "datatype": "FP32"}
    if kind.rest == "json":
        return json.dumps({"inputs": [{**tensor, "data": x.ravel().tolist()}]}).encode(), JSON
    tensor["parameters"] = {"binary_data_size": x.nbytes}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return head + x.tobytes(), {"Inference-Header-Content-Length": str(len(head))}


def plain(server: Running, name: str, x: np.ndarray) -> Call:
    """Ask by a connection of http.client that is kept, with a body that is made once."""
    connection = HTTPConnection("127.0.0.1", server.http)
    body, headers = body_of(x, server.kind)
    path = f"/{name}" if server.kind.rest == "own" else f"/v2/models/{name}/infer"

    def call() -> bytes:
        try:
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
        except (ConnectionError, RemoteDisconnected):  # it was idle for seconds
            connection.close()
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
        content = answer.read()
        assert answer.status == 200, content
        return content

    return call


def raw(server: Running, name: str, x: np.ndarray) -> Call:
    """Ask by a channel of grpc, with a message that is made once; an answer is not read."""
    import grpc
    from tritonclient.grpc.service_pb2 import ModelInferRequest

    request = ModelInferRequest(model_name=name)
    request.inputs.add(name="x", datatype="FP32", shape=x.shape)
    request.raw_input_contents.append(x.tobytes())
    options = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
    channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc}", options)
    ask = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    message = request.SerializeToString()
    return lambda: ask(message)


def triton(way: str, server: Running, name: str, x: np.ndarray) -> Call:
    """Ask by tritonclient, as its users do: a new input each time. way: "http" or "grpc"."""
    from importlib import import_module

    client = import_module(f"tritonclient.{way}")
    port = server.http if way == "http" else server.grpc
    connection = client.InferenceServerClient(f"127.0.0.1:{port}")
    in_json = {"binary_data": False} if way == "http" and server.kind.rest == "json" else {}
    outputs = [client.InferRequestedOutput("y", **in_json)] if in_json else None

    def call() -> np.ndarray:
        given = client.InferInput("x", x.shape, "FP32")
        given.set_data_from_numpy(x, **in_json)
        result: np.ndarray = connection.infer(name, [given], outputs=outputs).as_numpy("y")
        return result

    return call


def settled(call: Call) -> Call:
    """Return the call, when its server has answered it once. Some listen before they can."""
    end = time.monotonic() + 60
    while True:
        try:
            call()
        except Exception:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)
        else:
            return call
