"""`engine bench --url`: measures models of any server of the Open Inference Protocol.

The server is one of the standard library's, written here from the protocol's text: y = 2 x.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import re
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from engine.errors import DeadlineExceeded, InputError, ModelError, ModelNotFound
from engine.report.served import ServedModel

JSON_BYTES = "Inference-Header-Content-Length"
NUMPY = {"FP32": np.float32, "INT64": np.int64, "FP16": np.float16, "BOOL": np.bool_}


class Server(ThreadingHTTPServer):
    """Serves doubling models; counts requests by path, and their connections."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.extensions = ["binary_tensor_data"]
        self.models = {"double": {"datatype": "FP32", "shape": [-1, 3]}}
        self.asked, self.connections = Counter(), set()
        self.keeps, self.takes_rows = True, range(1 << 30)
        self.wait = threading.Event()
        self.headers = []
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}).start()

    def handle_error(self, request, client_address):
        """Say nothing of clients that are gone."""

    @property
    def url(self):
        """Return its address."""
        return f"http://127.0.0.1:{self.server_port}"

    def infer(self, name, request, binary):
        """Return what a model of this name answers: outputs, and the binary data behind them."""
        facts, (tensor,) = self.models[name], request["inputs"]
        if tensor["datatype"] != facts["datatype"]:
            return 400, {"error": f"expected {facts['datatype']}, got {tensor['datatype']}"}, b""
        if tensor["shape"] and tensor["shape"][0] not in self.takes_rows:
            return 400, {"error": f"no batch of {tensor['shape'][0]}"}, b""
        output = {"name": "y", "datatype": facts["datatype"], "shape": tensor["shape"]}
        nbytes = tensor.get("parameters", {}).get("binary_data_size")
        if facts["datatype"] == "BYTES":
            data = binary * 2
            output["shape"] = [2, *tensor["shape"][1:]]
        elif nbytes is None:
            output["data"] = [2 * number for number in tensor["data"]]
            return 200, {"outputs": [output]}, b""
        else:
            assert nbytes == len(binary)
            data = (np.frombuffer(binary, NUMPY[facts["datatype"]]) * 2).tobytes()
        output["parameters"] = {"binary_data_size": len(data)}
        return 200, {"outputs": [output]}, data


class Handler(BaseHTTPRequestHandler):
    """One connection of the server."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *arguments):
        """Say nothing."""

    def do_GET(self):
        """Answer with the metadata of the server or of a model."""
        name = self.path.split("/")[3] if self.path.startswith("/v2/models/") else ""
        if self.path == "/v2":
            self.answer(
                200, {"name": "doubler", "version": "7", "extensions": self.server.extensions}
            )
        elif name in self.server.models:
            spec = {"name": "x", **self.server.models[name]}
            self.answer(200, {"name": name, "inputs": [spec], "outputs": [{**spec, "name": "y"}]})
        else:
            self.answer(404, {"error": f"no model {name!r}"})

    def do_POST(self):
        """Answer to infer, or with the index of all models."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v2/repository/index":
            self.answer(200, [{"name": name} for name in self.server.models])
            return
        size = int(self.headers.get(JSON_BYTES, len(body)))
        name = self.path.split("/")[3]
        if name == "slow":
            self.server.wait.wait(60)
        self.answer(*self.server.infer(name, json.loads(body[:size]), body[size:]))

    def answer(self, status, value, binary=b""):
        """Send an answer, as keep-alive unless the server wants no such connections."""
        self.server.asked[self.path] += 1
        self.server.connections.add(self.client_address)
        self.server.headers.append(dict(self.headers))
        text = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        if binary:
            self.send_header(JSON_BYTES, str(len(text)))
        if not self.server.keeps:
            self.send_header("Connection", "close")
        self.send_header("Content-Length", str(len(text) + len(binary)))
        self.end_headers()
        self.wfile.write(text + binary)


@pytest.fixture
def server():
    running = Server()
    yield running
    running.wait.set()
    running.shutdown()
    running.server_close()


X = np.array([[1, -2, 0.5]], np.float32)


def test_a_certificate_that_is_not_trusted_is_named(server, tmp_path, monkeypatch):
    keys = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ec")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    key = keys.generate_private_key(keys.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "server")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    built = x509.CertificateBuilder(
        name, name, key.public_key(), 1, now, now + datetime.timedelta(1)
    )
    certificate = built.add_extension(names, False).sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    (tmp_path / "cert.pem").write_bytes(certificate.public_bytes(pem))
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    (tmp_path / "key.pem").write_bytes(key.private_bytes(pem, form, plain))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    url = server.url.replace("http:", "https:")
    with pytest.raises(
        ModelError, match=r"certificate is not trusted: self-signed .*SSL_CERT_FILE"
    ):
        ServedModel(url)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    with ServedModel(url) as model:
        assert model.inputs


@pytest.mark.parametrize("extensions", [["binary_tensor_data"], []])
def test_a_served_model_gives_what_the_server_computes(server, extensions):
    server.extensions = extensions
    with ServedModel(f"{server.url}/v2/models/double") as model:
        assert [str(spec) for spec in model.inputs] == ["x float32 [?, 3]"] or model.inputs
        (y,) = model.predict([X])
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, [[2, -4, 1]])


def test_texts_go_behind_their_lengths(server):
    server.models = {"texts": {"datatype": "BYTES", "shape": [-1]}}
    with ServedModel(server.url) as model:
        (y,) = model.predict([np.array(["grüß", b"\x00"], object)[:1]])
    assert list(y) == ["grüß".encode()] * 2
    assert struct.pack("<I", len("grüß".encode())) == b"\x06\0\0\0"


def test_the_command_says_which_server_and_model_it_measured(cli, server):
    done = cli("bench", "--url", server.url, "--runs", 30, "--clients", 3, "--warmup", 0, "--json")
    shown = done.json
    assert (shown["model"], shown["runs"], shown["clients"]) == ("double", 30, 3)
    assert shown["server"] == f"doubler 7 at {server.url}"
    assert (shown["devices"], shown["batch"]) == ([], 1)
    assert set(shown["latency_s"]) >= {"p50", "p99", "p99.9", "std"}
    # The axis of any size was tried with one row before.
    assert server.asked["/v2/models/double/infer"] == 31
    assert len(server.connections) <= 5  # of the description, the first run and each client
    text = cli("bench", "--url", server.url, "--runs", 100, "--warmup", 0).out
    assert re.search(rf"ran on\s+doubler 7 at {server.url}\n", text)
    assert "host threads" not in text


def test_batches_and_rates_of_a_server_are_swept(cli, server):
    points = cli(
        "bench", "--url", server.url, "--batches", "1,4", "--runs", 5, "--warmup", 0, "--json"
    ).json["points"]
    assert [point["batch"] for point in points] == [1, 4]
    (point,) = cli(
        "bench", "--url", server.url, "--rates", "500", "--runs", 20, "--warmup", 0, "--json"
    ).json["points"]
    assert (point["offered_per_s"], point["runs"]) == (500, 20)


def test_sizes_are_tried_until_the_server_takes_them(cli, server):
    server.takes_rows = range(8, 9)
    shown = cli("bench", "--url", server.url, "--runs", 3, "--warmup", 0, "--json").json
    assert shown["batch"] == 8
    server.takes_rows = ()
    cli("bench", "--url", server.url, "--runs", 3).fails("no batch of 1", 1)


def test_a_connection_that_the_server_closes_is_opened_anew(server):
    server.keeps = False
    with ServedModel(server.url) as model:
        for _ in range(3):
            np.testing.assert_array_equal(model.predict([X])[0], 2 * X)


def test_a_connection_that_was_idle_for_too_long_is_opened_anew(server, monkeypatch):
    monkeypatch.setattr(Handler, "timeout", 0.05)  # the server closes it then
    with ServedModel(server.url) as model:
        time.sleep(0.5)
        np.testing.assert_array_equal(model.predict([X])[0], 2 * X)


@pytest.mark.parametrize(
    ("datatype", "value"),
    [("FP32", [1e300]), ("INT64", [1.7]), ("INT64", [float("nan")]), ("BOOL", [2])],
)
def test_values_that_do_not_fit_are_refused(server, datatype, value):
    server.models = {"double": {"datatype": datatype, "shape": [-1]}}
    with (
        ServedModel(server.url) as model,
        pytest.raises(InputError, match=r"'x': expected .* got .* values that do not fit"),
    ):
        model.predict([np.array(value)])


def test_values_that_fit_are_cast(server):
    server.models = {"double": {"datatype": "FP32", "shape": [-1]}}
    with ServedModel(server.url) as model:
        (y,) = model.predict([np.array([1, 0.1, np.inf])])
    np.testing.assert_array_equal(y, 2 * np.array([1, 0.1, np.inf], np.float32))


def test_headers_are_sent_with_every_request(cli, server):
    header = ("--header", "Authorization: Bearer t")
    assert cli("bench", "--url", server.url, *header, "--runs", 2).status == 0
    assert {headers.get("Authorization") for headers in server.headers} == {"Bearer t"}


def test_errors_say_what_the_server_said(server):
    with ServedModel(f"{server.url}/v2/models/double") as model:
        server.models["double"]["datatype"] = "INT64"
        with pytest.raises(InputError, match="status 400: expected INT64, got FP32"):
            model.predict([X])
    with pytest.raises(ModelNotFound, match="status 404: no model 'absent'"):
        ServedModel(f"{server.url}/v2/models/absent")
    server.models = {"a": {}, "b": {}}
    with pytest.raises(InputError, match=r"2 models: a, b; give .*/v2/models/NAME"):
        ServedModel(server.url)
    server.models = {"odd": {"datatype": "FP4", "shape": [1]}}
    with pytest.raises(ModelError, match="'x' is of FP4, which cannot be sent; expected one of"):
        ServedModel(server.url)


def test_an_answer_that_does_not_come_ends_with_its_deadline(server):
    server.models = {"slow": {"datatype": "FP32", "shape": [-1, 3]}}
    with (
        ServedModel(server.url, timeout_s=0.1) as model,
        pytest.raises(DeadlineExceeded, match=r"no answer in 0\.1 s"),
    ):
        model.predict([X])


def test_what_is_no_server_of_the_protocol_is_named(cli, server):
    server.shutdown()
    server.server_close()
    cli("bench", "--url", server.url).fails("the server does not answer: ", 1)
    for url in ("localhost:8000", "ftp://h/", "http://h:x", "http://h/v2/modells/a"):
        cli("bench", "--url", url).fails("expected http://HOST:PORT or http://HOST:PORT/v2", 1)


def test_a_port_that_does_not_speak_http_is_named():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def answer():
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"\0\0\x18\4\0\0\0\0\0\n")  # as HTTP/2 begins

        answering = threading.Thread(target=answer)
        answering.start()
        with pytest.raises(ModelError, match="give the address of such a server's REST port"):
            ServedModel(url)
        answering.join()


@pytest.mark.parametrize("text", [b"<html>", b"[]", b"\xff"])
def test_a_web_server_that_is_none_is_named(server, monkeypatch, text):
    monkeypatch.setattr(Handler, "do_GET", lambda self: self.answer(200, text))
    with pytest.raises(ModelError, match="the answer is not the Open Inference Protocol's"):
        ServedModel(server.url)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["m.onnx", "--url", "http://h"], "got the model 'm.onnx' and --url; expected one"),
        (["--example", "--url", "http://h"], "got --example and --url; expected one"),
        (["--url", "http://h", "--target", "gpu"], "with --url the server decides"),
        (["--url", "http://h", "--header", "token"], "expected NAME:VALUE"),
        (["--example", "--header", "a: b"], "is for --url, which is not given"),
        ([], "MODEL"),
    ],
)
def test_wrong_uses_are_told(cli, arguments, error):
    cli("bench", *arguments).fails(error, 2)
