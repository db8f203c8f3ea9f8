"""`engine serve` as a process: it says where it listens, ends in good order, and logs JSON."""

from __future__ import annotations

import json
import re
import signal
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from serve_ways import X, ask, binary, scaled, slow, tensor

PORTS = ("--http-port", "0", "--grpc-port", "0")


class Process:
    """A server: its process, its log until it was ready, its address."""

    def __init__(self, *words: object) -> None:
        command = [sys.executable, "-m", "engine.cli", "serve", *map(str, words), *PORTS]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.log = ""
        assert self.process.stderr is not None
        while "ready" not in self.log and (line := self.process.stderr.readline()):
            self.log += line
        found = re.search(r"https?://([\w.]+:\d+)", self.log)
        self.http = found[1] if found else ""

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal; return the exit status and the rest of the log."""
        self.process.send_signal(number)
        rest = self.process.communicate(timeout=60)[1]
        return self.process.returncode, rest


@contextmanager
def process(*words: object) -> Iterator[Process]:
    found = Process(*words)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.communicate()


def refused(*words: object) -> tuple[int, str]:
    command = [sys.executable, "-m", "engine.cli", "serve", *map(str, words), *PORTS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


def test_sigterm_lets_a_request_that_runs_end_with_its_answer(tmp_path: Path) -> None:
    path = slow(tmp_path / "slow.onnx")
    body, headers = binary(np.zeros(1 << 18, np.float32), binary_data_output=True)
    found = []
    with process(path) as served:

        def ask_once() -> None:
            found.append(ask(served.http, "POST", "/v2/models/slow/infer", body, headers)[0])

        asking = threading.Thread(target=ask_once)
        asking.start()
        stats = "/v2/models/slow/stats"
        while not asking.is_alive():
            pass
        ask(served.http, "GET", stats)
        asking.join(0.1)
        status, _ = served.end()
        asking.join()
    assert (status, found) == (0, [200])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_an_idle_server_with_status_0(tmp_path: Path, number: signal.Signals) -> None:
    with process(scaled(tmp_path / "net.onnx", 2)) as served:
        assert ask(served.http, "GET", "/v2/health/ready")[0] == 200
        status, log = served.end(number)
    assert status == 0
    assert "ending" in log


def test_logs_are_lines_of_json_where_that_is_asked_for(tmp_path: Path) -> None:
    with process(scaled(tmp_path / "net.onnx", 2), "--json") as served:
        _, rest = served.end()
    lines = [json.loads(line) for line in (served.log + rest).splitlines()]
    assert {"time", "level", "logger", "message"} <= {*lines[0]}
    assert "model 'net' is loaded: version 1" in [line["message"] for line in lines]


def test_a_model_that_cannot_be_loaded_ends_the_server_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    status, log = refused(scaled(tmp_path / "net.onnx", 2), tmp_path / "bad.onnx")
    assert status == 1
    assert "bad.onnx" in log.splitlines()[-1]


def test_a_port_that_is_taken_is_an_error(tmp_path: Path) -> None:
    path = scaled(tmp_path / "net.onnx", 2)
    with process(path) as served:
        port = served.http.partition(":")[2]
        for option in ("--http-port", "--grpc-port"):
            command = [sys.executable, "-m", "engine.cli", "serve", str(path), *PORTS, option, port]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 1
            assert f"cannot listen at 127.0.0.1:{port}" in done.stderr


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        ([], 2, "missing argument 'MODEL... | FOLDER'"),
        (["nowhere.onnx"], 1, "nowhere.onnx: no such model or folder"),
        (["x", "--no-http", "--no-grpc"], 2, "leave nothing to serve"),
        (["x", "--tls-cert", "c"], 2, "--tls-cert and --tls-key go together"),
        (["x", "--token-file", "nowhere"], 1, "--token-file nowhere: cannot be read"),
        (["x", "--queue-limit", "0"], 2, "--queue-limit"),
        (["x", "--drain", "0"], 2, "--drain"),
    ],
)
def test_wrong_usage_is_an_error(words: list[str], status: int, text: str) -> None:
    got, log = refused(*words)
    assert got == status
    assert text in log


def test_https_is_served_with_a_certificate(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
               "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-out", certificate,
               "-keyout", key]  # fmt: skip
    subprocess.run(request, capture_output=True, check=True)
    path = scaled(tmp_path / "net.onnx", 2)
    with process(path, "--tls-cert", certificate, "--tls-key", key) as served:
        port = served.http.partition(":")[2]
        body = json.dumps({"inputs": [{**tensor(X), "shape": [*X.shape]}]}).encode()
        context = ssl.create_default_context(cafile=str(certificate))
        url = f"https://localhost:{port}/v2/models/net/infer"
        with urllib.request.urlopen(url, body, context=context) as answer:
            assert json.load(answer)["outputs"][0]["data"] == [0, 2, 4, 6, 8, 10]
        [address] = re.findall(r"gRPC at 127.0.0.1:(\d+)", served.log)
        import tritonclient.grpc as rpc

        certificates = {"ssl": True, "root_certificates": str(certificate)}
        client = rpc.InferenceServerClient(f"localhost:{address}", **certificates)
        assert client.is_server_ready()
        client.close()
