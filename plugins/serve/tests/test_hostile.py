"""Damaged requests: an error of the client or a right answer, never a crash, others unharmed."""

from __future__ import annotations

import json
import random
from http.client import HTTPConnection

import grpc
import numpy as np
import pytest
from serve_ways import Served, X, ask, binary, connected, infer, tensor

from engine_serve.protocol import message

FORMS = [500, pytest.param(10_000, marks=pytest.mark.slow)]
HTTP = {200, 400, 404, 413}


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Return bytes with some changed, left out, doubled or put in."""
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(found) + 1)
        length = chance.choice((1, 1, 4, 20))
        match chance.randrange(5):
            case 0:
                found[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                del found[at : at + length]
            case 2:
                found[at:at] = found[at : at + length]
            case 3:
                found[at:at] = chance.randbytes(length)
            case 4:
                found[at : at + length] = chance.choice(
                    (b"-1", b"99999999999999999999", b"null", b"NaN", b"1e999", b"[[", b'"', b"{}")
                )
    return bytes(found)


def is_well(affine: Served) -> None:
    status, found = infer(affine.http, "affine", tensor(X))
    assert status == 200
    assert found["outputs"][0]["data"] == [1, 3, 5, 7, 9, 11]


@pytest.mark.parametrize("count", FORMS)
@pytest.mark.parametrize("form", ["json", "binary", "lengths"])
def test_damaged_rest_requests_are_errors_of_the_client(
    affine: Served, form: str, count: int
) -> None:
    chance = random.Random(f"{form} {count}")
    body, headers = binary(X, binary_data_output=True)
    if form == "json":
        given = {**tensor(X), "shape": [2, 3]}
        body = json.dumps({"id": "1", "inputs": [given], "outputs": [{"name": "y"}]}).encode()
        headers = {}
    seen = set()
    connection = HTTPConnection(affine.http, timeout=30)
    for _ in range(count):
        damaged, told = mutated(body, chance), dict(headers)
        if form == "lengths":
            told["Inference-Header-Content-Length"] = str(chance.randrange(-3, 3 * len(body)))
        connection.request("POST", "/v2/models/affine/infer", damaged, told)
        answer = connection.getresponse()
        content = answer.read()
        seen.add(answer.status)
        if answer.status != 200:
            assert json.loads(content)["error"]
    connection.close()
    assert seen <= HTTP
    assert 400 in seen
    is_well(affine)


@pytest.mark.parametrize("count", FORMS)
def test_damaged_http_is_refused(affine: Served, count: int) -> None:
    chance = random.Random(count)
    body = json.dumps({"inputs": [{**tensor(X), "shape": [2, 3]}]})
    head = f"POST /v2/models/affine/infer HTTP/1.1\r\nHost: [::1]\r\nContent-Length: {len(body)}"
    whole = f"{head}\r\nConnection: close\r\n\r\n{body}".encode()
    for _ in range(count):
        with connected(affine.http) as connection:
            connection.sendall(mutated(whole, chance))
            connection.shutdown(1)
            answer = b""
            try:
                while part := connection.recv(65536):
                    answer += part
            except ConnectionError:
                continue
        if answer:
            assert answer.startswith((b"HTTP/1.1 2", b"HTTP/1.1 4", b"HTTP/1.1 501")), answer
    is_well(affine)


@pytest.mark.parametrize("count", FORMS)
@pytest.mark.parametrize("form", ["raw", "typed"])
def test_damaged_messages_are_errors_of_the_client(affine: Served, form: str, count: int) -> None:
    chance = random.Random(f"{form} {count}")
    request = message("ModelInferRequest")(model_name="affine", id="1")
    given = request.inputs.add(name="x", datatype="FP32", shape=[2, 3])
    if form == "raw":
        request.raw_input_contents.append(X.tobytes())
    else:
        given.contents.fp32_contents.extend(X.ravel())
    request.outputs.add(name="y").parameters["classification"].int64_param = 1
    request.parameters["priority"].int64_param = 1
    data = request.SerializeToString()
    seen = set()
    with grpc.insecure_channel(affine.grpc) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for _ in range(count):
            try:
                answer = call(mutated(data, chance), timeout=30)
                message("ModelInferResponse").FromString(answer)
                seen.add("OK")
            except grpc.RpcError as error:
                seen.add(error.code().name)
    assert seen <= {"OK", "INVALID_ARGUMENT", "NOT_FOUND"}
    assert "INVALID_ARGUMENT" in seen
    is_well(affine)


@pytest.mark.parametrize("path", ["/v2/repository/models/affine/load", "/v2/logging",
                                  "/v2/trace/setting", "/v2/repository/index",
                                  "/v2/systemsharedmemory/region/r/register"])  # fmt: skip
@pytest.mark.parametrize("body", [b"[]", b"3", b"{", b'{"parameters": 3}', b'{"log_info": {}}',
                                  b'{"trace_level": {"a": 1}}', b'{"key": {}, "byte_size": []}',
                                  b'{"log_verbose_level": -1}'])  # fmt: skip
def test_wrong_bodies_elsewhere_are_errors_of_the_client(
    affine: Served, path: str, body: bytes
) -> None:
    status, _ = ask(affine.http, "POST", path, body)
    assert status in (200, 400, 501)
    is_well(affine)


def test_a_shape_that_multiplies_beyond_all_memory_is_refused_at_once(affine: Served) -> None:
    for shape in ([2**40, 2**40], [2**62, 0], [1] * 65, [2**63], [10**30]):
        given = {"name": "x", "shape": shape, "datatype": "FP32", "data": []}
        status, found = infer(affine.http, "affine", given)
        assert (status, found["error"].startswith("input 'x': ")) == (400, True), shape


def test_a_deep_or_long_json_is_refused(affine: Served) -> None:
    for data in ("[" * 500 + "]" * 500, "1" * 5000, "1e999"):
        body = f'{{"inputs": [{{"name": "x", "shape": [1], "datatype": "FP32", "data": {data}}}]}}'
        status, _ = ask(affine.http, "POST", "/v2/models/affine/infer", body)
        assert status == 400
    is_well(affine)


def test_a_client_that_breaks_off_harms_no_other(affine: Served) -> None:
    body, headers = binary(np.ones((1000, 3), np.float32))
    lines = "".join(f"{key}: {value}\r\n" for key, value in headers.items())
    head = f"POST /v2/models/affine/infer HTTP/1.1\r\nHost: [::1]\r\n{lines}"
    for sent in range(0, len(body), 2000):
        with connected(affine.http) as connection:
            text = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:sent]
            connection.sendall(text)
    is_well(affine)
    assert ask(affine.http, "GET", "/v2/health/ready")[0] == 200
