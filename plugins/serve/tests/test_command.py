"""`engine serve` as a process: it says where it listens, ends in good order, and logs JSON."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import pytest
from serve_process import PORTS, process
from serve_ways import X, ask, binary, connected, scaled, slow, tensor

from engine.cli import main
from engine_serve import __version__ as version


def refused(*words: object) -> tuple[int, str]:
    command = [sys.executable, "-m", "engine.cli", "serve", *PORTS, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


def test_sigterm_lets_a_request_that_runs_end_with_its_answer(tmp_path: Path) -> None:
    path = slow(tmp_path / "slow.onnx")
    body, headers = binary(np.zeros(1 << 18, np.float32), binary_data_output=True)
    found = []
    with process(path) as served:
        connection = HTTPConnection(served.http, timeout=60)
        connection.request("POST", "/v2/models/slow/infer", body, headers)

        def read() -> None:
            answer = connection.getresponse()
            found.append((answer.status, len(answer.read()) > 4 << 18))

        reading = threading.Thread(target=read)
        reading.start()
        status, _ = served.end()
        reading.join()
        connection.close()
    assert (status, found) == (0, [(200, True)])


def test_sigint_ends_an_idle_server_with_status_0(tmp_path: Path) -> None:
    with process(scaled(tmp_path / "net.onnx", 2)) as served:
        assert ask(served.http, "GET", "/v2/health/ready")[0] == 200
        status, log = served.end(signal.SIGINT)
    assert status == 0
    assert "ending" in log


def test_a_server_that_polls_loads_what_comes_and_ends_in_good_order(tmp_path: Path) -> None:
    with process(scaled(tmp_path / "net.onnx", 2).parent, "--poll", "0.05") as served:
        scaled(tmp_path / "later/1/model.onnx", 3)
        path, body = "/v2/models/later/infer", {"inputs": [tensor(X)]}
        until = time.monotonic() + 30
        while (found := ask(served.http, "POST", path, body))[0] != 200:
            assert time.monotonic() < until, found
        assert found[1]["outputs"][0]["data"] == (3 * X).ravel().tolist()
        assert served.end()[0] == 0


def test_logs_are_lines_of_json_that_say_what_happens(tmp_path: Path) -> None:
    two = scaled(tmp_path / "two/1/model.onnx", 3).parent.parent
    with process(scaled(tmp_path / "net.onnx", 2), two, "--json") as served:
        (two / "2").mkdir()
        (two / "2/model.onnx").write_text("no model")
        assert ask(served.http, "POST", "/v2/repository/models/two/load")[0] == 500
        status, rest = served.end()
    assert status == 0
    lines = [json.loads(line) for line in (served.log + rest).splitlines()]
    assert all({"time", "level", "logger", "message"} <= {*line} for line in lines)
    assert not any("exception" in line for line in lines)  # the fault is the file's
    said = [(line["level"], line["message"].split(str(tmp_path))[0]) for line in lines]
    assert said == [
        (
            "info",
            f"inference-engine {version}: REST at http://{served.http}, gRPC at {served.grpc}",
        ),
        ("info", "model 'net' is loaded: version 1"),
        ("info", "model 'two' is loaded: version 1"),
        ("info", "ready"),
        ("error", "model 'two' could not be loaded: "),
        ("info", "ending: 30.0 s for requests that run"),
        ("info", "model 'net' is unloaded"),
        ("info", "model 'two' is unloaded"),
        ("info", "ended"),
    ]


def test_all_lines_are_json_where_a_model_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    status, log = refused(tmp_path / "bad.onnx", "--json")
    assert status == 1
    levels = [json.loads(line)["level"] for line in log.splitlines()]
    assert levels.count("error") == 1


def test_a_model_that_cannot_be_loaded_ends_the_server_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    status, log = refused(scaled(tmp_path / "net.onnx", 2), tmp_path / "bad.onnx")
    assert status == 1
    [line] = [line for line in log.splitlines() if " error: " in line]
    assert "model 'bad' could not be loaded: bad.onnx: is a text file" in line.replace(
        f"{tmp_path}/", ""
    )


def test_a_port_that_is_taken_is_an_error(tmp_path: Path) -> None:
    path = scaled(tmp_path / "net.onnx", 2)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        for option in ("--http-port", "--grpc-port"):
            assert refused(path, option, port) == (
                1,
                f"error: cannot listen at 127.0.0.1:{port}: Address already in use; {option} "
                "chooses another port, 0 one that is free\n",
            )


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        ([], 2, "missing argument 'MODEL... | FOLDER'"),
        (["nowhere.onnx"], 1, "nowhere.onnx: no such model or folder"),
        (["x", "--no-http", "--no-grpc"], 2, "leave nothing to serve"),
        (["x", "--tls-cert", "c"], 2, "--tls-cert and --tls-key go together"),
        (
            ["x", "--tls-cert", "nowhere", "--tls-key", "k"],
            1,
            "--tls-cert nowhere, --tls-key k: expected a certificate and its key, PEM",
        ),
        (["x", "--tls-cert", __file__, "--tls-key", __file__], 1, "and its key, PEM"),
        (["x", "--token-file", "nowhere"], 1, "--token-file nowhere: cannot be read"),
        (["net=", "--target", "cpu"], 1, "'net=' names no file; expected FILE or NAME=FILE"),
        (["x", "--target", "tpu"], 1, "error: --target tpu: target elements must be in ["),
        (["x", "--config", "nowhere"], 1, "error: --config nowhere: no such file; give a conf"),
        (["x", "--queue-limit", "0"], 2, "--queue-limit"),
        (["x", "--highest-priority", "0"], 2, "--highest-priority"),
        (["x", "--drain", "0"], 2, "--drain"),
        (["x", "--keep-alive", "0"], 2, "--keep-alive"),
        (["x", "--grpc-connection-age", "-1"], 2, "--grpc-connection-age"),
        (["x", "--poll", "0"], 2, "--poll"),
        (["x", "--allow-uploads", "-1"], 2, "--allow-uploads"),
        (["x", "--stream-idle", "0"], 2, "--stream-idle"),
        (["x", "--grpc-keepalive", "0"], 2, "--grpc-keepalive"),
    ],
)
def test_wrong_usage_is_an_error(
    words: list[str],
    status: int,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("engine_serve.command.to_stderr", lambda **_: None)  # it lasts
    monkeypatch.setattr("engine_serve.command.run", lambda *_: pytest.fail("it is served"))
    assert main(["serve", *words]) == status
    assert text in capsys.readouterr().err


def test_https_is_served_with_a_certificate(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
               "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-out", certificate,
               "-keyout", key]  # fmt: skip
    subprocess.run(request, capture_output=True, check=True)
    path = scaled(tmp_path / "net.onnx", 2)
    words = (path, "--tls-cert", certificate, "--tls-key", key, "--read-timeout", 1)
    with process(*words) as served, connected(served.http) as silent:
        port = served.http.partition(":")[2]
        body = json.dumps({"inputs": [{**tensor(X), "shape": [*X.shape]}]}).encode()
        context = ssl.create_default_context(cafile=str(certificate))
        url = f"https://localhost:{port}/v2/models/net/infer"
        with urllib.request.urlopen(url, body, context=context) as answer:
            assert json.load(answer)["outputs"][0]["data"] == [0, 2, 4, 6, 8, 10]
        address = served.grpc.partition(":")[2]
        import tritonclient.grpc as rpc

        certificates = {"ssl": True, "root_certificates": str(certificate)}
        client = rpc.InferenceServerClient(f"localhost:{address}", **certificates)
        assert client.is_server_ready()
        client.close()
        assert silent.recv(1) == b"", "its handshake does not come"
