"""REST as the protocol's text and its binary extension have it, by plain requests."""

from __future__ import annotations

import json

import numpy as np
import pytest
from serve_ways import Served, X, ask, ask_raw, binary, infer, tensor

import engine


def test_health_is_told_without_a_model_being_asked(affine: Served) -> None:
    assert ask(affine.http, "GET", "/v2/health/live") == (200, {"live": True})
    assert ask(affine.http, "GET", "/v2/health/ready") == (200, {"ready": True})
    path = "/v2/models/affine/versions/1/ready"
    assert ask(affine.http, "GET", path) == (200, {"name": "affine", "ready": True})
    assert ask(affine.http, "GET", "/v2/models/nobody/ready")[0] == 503


def test_the_server_says_its_name_version_and_extensions(affine: Served) -> None:
    status, found = ask(affine.http, "GET", "/v2")
    assert status == 200
    assert found["name"] == "inference-engine"
    assert found["version"] == engine.__version__
    assert {"binary_tensor_data", "classification", "model_repository"} <= {*found["extensions"]}


def test_an_array_of_another_rank_is_refused(affine: Served) -> None:
    status, found = infer(affine.http, "affine", {**tensor(X), "shape": [6]})
    assert status == 400
    assert found["error"] == "input 'x': expected FP32[-1, 3], got FP32[6]"


@pytest.mark.parametrize("body", [{"id": "\ud800"}, {"outputs": {}}])
def test_an_id_is_text_and_outputs_are_a_list(affine: Served, body: dict[str, object]) -> None:
    whole = json.dumps({"inputs": [tensor(X)], **body}).encode()
    assert ask(affine.http, "POST", "/v2/models/affine/infer", whole)[0] == 400


def test_a_models_metadata_has_open_axes_as_minus_one(affine: Served) -> None:
    status, found = ask(affine.http, "GET", "/v2/models/affine")
    assert status == 200
    assert found["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
    assert found["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}]
    assert (found["name"], found["versions"]) == ("affine", ["1"])
    assert found["platform"] == "onnx_onnxv1"


@pytest.mark.parametrize("nested", [True, False])
def test_values_in_json_are_nested_or_flat(affine: Served, nested: bool) -> None:
    given = tensor(X)
    if nested:
        given["data"] = X.tolist()
    status, found = infer(affine.http, "affine", given, id="42")
    assert status == 200
    assert found == {
        "model_name": "affine",
        "model_version": "1",
        "id": "42",
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [2, 3], "data": [1, 3, 5, 7, 9, 11]}
        ],
    }


@pytest.mark.parametrize("asked", ["of_all", "of_one", "of_another"])
def test_an_output_is_binary_where_it_is_asked_for(affine: Served, asked: str) -> None:
    body, headers = binary(X, binary_data_output=asked == "of_all")
    if asked != "of_all":
        length = int(headers["Inference-Header-Content-Length"])
        head = json.loads(body[:length])
        wanted = {"name": "y", "parameters": {"binary_data": asked == "of_one"}}
        text = json.dumps({**head, "outputs": [wanted]}).encode()
        body = text + body[length:]
        headers = {"Inference-Header-Content-Length": str(len(text))}
    path = "/v2/models/affine/infer"
    status, content, told = ask_raw(affine.http, "POST", path, body, headers)
    assert status == 200
    if asked == "of_another":
        assert told["content-type"] == "application/json"
        assert json.loads(content)["outputs"][0]["data"] == [1, 3, 5, 7, 9, 11]
        return
    length = int(told["inference-header-content-length"])
    [output] = json.loads(content[:length])["outputs"]
    assert output["parameters"] == {"binary_data_size": 24}
    assert told["content-type"] == "application/octet-stream"
    np.testing.assert_array_equal(np.frombuffer(content[length:], "f4"), 2 * X.ravel() + 1)


def test_a_body_without_json_is_the_only_inputs_bytes(affine: Served) -> None:
    headers = {"Inference-Header-Content-Length": "0"}
    path = "/v2/models/affine/infer"
    status, content, told = ask_raw(affine.http, "POST", path, X.tobytes(), headers)
    length = int(told["inference-header-content-length"])
    assert status == 200
    assert json.loads(content[:length])["outputs"][0]["shape"] == [2, 3]
    np.testing.assert_array_equal(np.frombuffer(content[length:], "f4"), 2 * X.ravel() + 1)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_body_may_be_compressed(affine: Served, encoding: str) -> None:
    import gzip
    import zlib

    body = json.dumps({"inputs": [tensor(X)]}).encode()
    packed = gzip.compress(body) if encoding == "gzip" else zlib.compress(body)
    path, headers = "/v2/models/affine/infer", {"Content-Encoding": encoding}
    status, found = ask(affine.http, "POST", path, packed, headers)
    assert (status, found["outputs"][0]["data"][0]) == (200, 1)


def test_a_body_may_come_in_chunks_without_a_length(affine: Served) -> None:
    body, headers = binary(X)
    parts = iter([body[:7], body[7:]])
    path = "/v2/models/affine/infer"
    status, found = ask(affine.http, "POST", path, parts, headers)
    assert (status, found["outputs"][0]["data"][-1]) == (200, 11)


@pytest.mark.parametrize(
    ("change", "status", "text"),
    [
        ({"name": "z"}, 400, "model 'affine' has no input 'z'; its inputs: x"),
        ({"datatype": "FP64"}, 400, "input 'x': expected FP32[-1, 3], got FP64[2, 3]"),
        ({"datatype": "float"}, 400, "input 'x': datatype must be one of BOOL, "),
        ({"shape": [2, 4]}, 400, "input 'x': shape [2, 4] takes 8 elements, got 6"),
        ({"shape": [3, 2]}, 400, "input 'x': "),
        ({"shape": [2, -3]}, 400, "input 'x': shape must be a list of whole numbers from 0"),
        ({"shape": [2, True]}, 400, "input 'x': shape must be a list of whole numbers from 0"),
        ({"shape": "23"}, 400, "input 'x': shape must be a list of sizes, got '23'"),
        ({"data": ["a"] * 6}, 400, "input 'x': an element of FP32 cannot be 'a'"),
        ({"data": None}, 400, "input 'x': shape [2, 3] takes 6 elements, got 1"),
        ({"data": [1e39] * 6}, 400, "input 'x': an element of FP32 cannot be 1e+39"),
        ({"parameters": {"binary_data_size": 24}}, 400, "input 'x': takes one of 'data', "),
        ({"parameters": []}, 400, "input 'x': parameters must be an object, got list"),
        ({"name": 3}, 400, "'inputs': name must be text, got 3"),
    ],
)
def test_a_wrong_input_is_named(
    affine: Served, change: dict[str, object], status: int, text: str
) -> None:
    got, found = infer(affine.http, "affine", {**tensor(X), **change})
    assert got == status
    assert found["error"].startswith(text) or text in found["error"]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{", "the request's JSON cannot be read"),
        (b"[1e400]", "the number 1e400 is beyond FP64; write Infinity for infinity"),
        (b"[]", "the request must be a JSON object, got list"),
        (b"", "the request's JSON cannot be read"),
        (b"\xff", "the request's JSON cannot be read"),
        (b"[" * 100_000, "the request's JSON cannot be read"),
        (b'{"x": [1]}', "the request has no 'inputs'; expected"),
        (b'{"inputs": 3}', "'inputs' must be a list of objects, got int"),
        (b'{"id": 3, "inputs": []}', "id must be text, got 3"),
        (b'{"inputs": []}', "input 'x': expected FP32[-1, 3], got none"),
        (b'{"inputs": [], "outputs": [{"name": "q"}]}', "input 'x': expected"),
    ],
)
def test_what_is_no_request_is_an_error_of_the_client(
    affine: Served, body: bytes, text: str
) -> None:
    status, found = ask(affine.http, "POST", "/v2/models/affine/infer", body)
    assert status == 400
    assert text in found["error"]


def test_an_output_that_the_model_lacks_is_named(affine: Served) -> None:
    status, found = infer(affine.http, "affine", tensor(X), outputs=[{"name": "q"}])
    assert status == 400
    assert found["error"] == "model 'affine' has no output 'q'; its outputs: y"


@pytest.mark.parametrize(
    ("length", "size", "text"),
    [
        (None, 20, "FP32[2, 3] takes 24 bytes, got 20"),
        (None, 28, "binary_data_size is 28, but 24 bytes are left in the body"),
        (None, -1, "binary_data_size is -1, but 24 bytes"),
        (None, "24", "binary_data_size is '24', but 24 bytes"),
        ("99999", 24, "Inference-Header-Content-Length is 99999, but the body is"),
        ("-3", 24, "Inference-Header-Content-Length must be a whole number"),
        ("9" * 30, 24, "Inference-Header-Content-Length must be a whole number"),
    ],
)
def test_lengths_that_lie_are_errors(
    affine: Served, length: str | None, size: object, text: str
) -> None:
    given = {"name": "x", "shape": [2, 3], "datatype": "FP32"}
    head = json.dumps({"inputs": [{**given, "parameters": {"binary_data_size": size}}]}).encode()
    headers = {"Inference-Header-Content-Length": length or str(len(head))}
    path = "/v2/models/affine/infer"
    status, found = ask(affine.http, "POST", path, head + X.tobytes(), headers)
    assert status == 400
    assert text in found["error"]


def test_bytes_that_no_input_takes_are_an_error(affine: Served) -> None:
    body, headers = binary(X)
    status, found = ask(affine.http, "POST", "/v2/models/affine/infer", body + b"more", headers)
    assert (status, found["error"]) == (400, "4 bytes are left in the body behind the inputs")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v2/models/nobody/infer", 404),
        ("POST", "/v2/models/affine/versions/7/infer", 404),
        ("GET", "/v2/models/nobody", 404),
        ("GET", "/v2/models/affine/versions/7", 404),
        ("GET", "/v2/nothing", 404),
        ("GET", "/v2/models/affine/infer", 405),
        ("PUT", "/v2/models/affine/versions/1/infer", 405),
        ("DELETE", "/v2/models/affine", 405),
    ],
)
def test_what_is_not_there_is_said_in_json(
    affine: Served, method: str, path: str, status: int
) -> None:
    body = {"inputs": [tensor(X)]} if method == "POST" else None
    got, found = ask(affine.http, method, path, body)
    assert got == status
    assert set(found) == {"error"}


def test_classes_are_the_highest_elements_with_their_places(affine: Served) -> None:
    values = np.array([[0.05, 4.5, 2], [7, 7, 0]], np.float32)
    wanted = [{"name": "y", "parameters": {"classification": 2}}]
    status, found = infer(affine.http, "affine", tensor(values), outputs=wanted)
    assert status == 200
    [output] = found["outputs"]
    assert (output["datatype"], output["shape"]) == ("BYTES", [2, 2])
    assert output["data"] == ["10.000000:1", "5.000000:2", "15.000000:0", "15.000000:1"]


def test_statistics_count_requests_runs_and_samples(serve: object, affine: Served) -> None:
    path = "/v2/models/affine/versions/1/stats"
    [before] = ask(affine.http, "GET", path)[1]["model_stats"]
    for _ in range(3):
        assert infer(affine.http, "affine", tensor(X))[0] == 200
    assert infer(affine.http, "affine", tensor(X, "FP64"))[0] == 400
    [after] = ask(affine.http, "GET", path)[1]["model_stats"]
    assert after["inference_count"] - before["inference_count"] == 6
    assert after["execution_count"] - before["execution_count"] == 3
    stats, old = after["inference_stats"], before["inference_stats"]
    assert stats["success"]["count"] - old["success"]["count"] == 3
    assert stats["fail"]["count"] - old["fail"]["count"] == 1
    assert stats["success"]["ns"] > stats["compute_infer"]["ns"] > 0


def test_metrics_have_tritons_names(affine: Served) -> None:
    infer(affine.http, "affine", tensor(X))
    status, content, kind = ask_raw(affine.http, "GET", "/metrics")
    assert (status, kind["content-type"].partition(";")[0]) == (200, "text/plain")
    text = content.decode()
    labels = '{model="affine",version="1"}'
    for name in ("request_success", "count", "exec_count", "request_duration_us"):
        assert f"# TYPE nv_inference_{name} counter\n" in text
        [value] = [line.split()[1] for line in text.splitlines()
                   if line.startswith(f"nv_inference_{name}{labels}")]  # fmt: skip
        assert float(value) > 0
    assert "# TYPE nv_inference_pending_request_count gauge\n" in text
    assert 'nv_inference_request_failure{model="affine",reason="REJECTED",version="1"}' in text
    assert "nv_cpu_memory_total_bytes" in text


def test_log_settings_are_changed_and_read(affine: Served) -> None:
    status, before = ask(affine.http, "GET", "/v2/logging")
    assert status == 200
    status, found = ask(affine.http, "POST", "/v2/logging", {"log_verbose_level": 1})
    assert (status, found["log_verbose_level"], found["log_info"]) == (200, 1, True)
    wrong = ask(affine.http, "POST", "/v2/logging", {"log_verbose_level": "1"})
    assert wrong == (400, {"error": "log setting 'log_verbose_level' must be int, got '1'"})
    assert ask(affine.http, "POST", "/v2/logging", {"log_verbose_level": 0})[0] == 200
    assert ask(affine.http, "POST", "/v2/logging", {"other": 0})[0] == 400
    assert before["log_file"] == ""


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("trace_level", ["TIMESTAMPS"], "ENGINE_EXTENSIONS=opentelemetry switch them on"),
        ("trace_rate", "1", "expected '1000', got '1': traces are OpenTelemetry's here, and fixed"),
        ("trace_rate", "OFF", "OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG say how many"),
        ("trace_file", "x", "OTEL_EXPORTER_OTLP_ENDPOINT says where they go"),
    ],
)
def test_a_trace_setting_is_fixed_and_its_error_says_where_it_is_set(
    affine: Served, key: str, value: object, text: str
) -> None:
    status, found = ask(affine.http, "POST", "/v2/trace/setting", {key: value})
    assert (status, text in found["error"]) == (501, True), found


def test_trace_settings_as_they_are_can_be_set(affine: Served) -> None:
    settings = ask(affine.http, "GET", "/v2/trace/setting")[1]
    assert settings["trace_level"] == ["OFF"]
    assert ask(affine.http, "POST", "/v2/trace/setting", settings) == (200, settings)
