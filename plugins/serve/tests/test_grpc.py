"""gRPC by tritonclient: in turn, asynchronous, in streams; and its statuses."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.grpc as rpc
import tritonclient.grpc.aio as rpc_aio
from serve_ways import Served, X
from tritonclient.utils import InferenceServerException

import engine


@pytest.fixture
def client(affine: Served) -> Iterator[rpc.InferenceServerClient]:
    found = rpc.InferenceServerClient(affine.grpc)
    yield found
    found.close()


def given(x: np.ndarray = X, datatype: str = "FP32") -> rpc.InferInput:
    tensor = rpc.InferInput("x", x.shape, datatype)
    tensor.set_data_from_numpy(x)
    return tensor


def test_health_and_metadata_are_told(client: rpc.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("affine", "1")
    assert not client.is_model_ready("nobody")
    assert client.get_server_metadata().version == engine.__version__
    [tensor] = client.get_model_metadata("affine").inputs
    assert (tensor.name, tensor.datatype, [*tensor.shape]) == ("x", "FP32", [-1, 3])


def test_a_configuration_is_completed_from_the_model(client: rpc.InferenceServerClient) -> None:
    config = client.get_model_config("affine").config
    assert (config.name, config.platform) == ("affine", "onnx_onnxv1")
    [tensor] = config.input
    assert (tensor.name, tensor.data_type, [*tensor.dims]) == ("x", 11, [-1, 3])


def test_an_inference_is_answered_with_its_id(client: rpc.InferenceServerClient) -> None:
    result = client.infer("affine", [given()], request_id="7", model_version="1")
    np.testing.assert_array_equal(result.as_numpy("y"), 2 * X + 1)
    answer = result.get_response()
    assert (answer.id, answer.model_name, answer.model_version) == ("7", "affine", "1")


def test_classes_are_asked_for_by_a_parameter(client: rpc.InferenceServerClient) -> None:
    wanted = rpc.InferRequestedOutput("y", class_count=1)
    result = client.infer("affine", [given()], outputs=[wanted])
    assert result.as_numpy("y").tolist() == [[b"5.000000:2"], [b"11.000000:2"]]


@pytest.mark.parametrize(
    ("model", "tensor", "status", "text"),
    [
        ("nobody", given(), "NOT_FOUND", "there is no model 'nobody'; models: affine"),
        ("affine", given(X.astype("f8"), "FP64"), "INVALID_ARGUMENT", r"expected FP32\[-1, 3\]"),
        ("affine", given(X.reshape(3, 2)), "INVALID_ARGUMENT", "input 'x'"),
    ],
)
def test_an_error_has_its_status_and_our_sentence(
    client: rpc.InferenceServerClient, model: str, tensor: rpc.InferInput, status: str, text: str
) -> None:
    with pytest.raises(InferenceServerException, match=text) as raised:
        client.infer(model, [tensor])
    assert raised.value.status() == f"StatusCode.{status}"


def test_statistics_and_settings_are_told(client: rpc.InferenceServerClient) -> None:
    client.infer("affine", [given()])
    [stats] = client.get_inference_statistics("affine").model_stats
    assert stats.inference_stats.success.count > 0
    assert stats.inference_stats.success.ns > 0
    assert client.get_log_settings().settings["log_file"].string_param == ""
    settings = client.update_log_settings({"log_verbose_level": 0}).settings
    assert settings["log_verbose_level"].uint32_param == 0
    assert client.get_trace_settings().settings["trace_level"].value == ["OFF"]
    with pytest.raises(InferenceServerException, match="OpenTelemetry") as raised:
        client.update_trace_settings(settings={"trace_rate": "1"})
    assert raised.value.status() == "StatusCode.UNIMPLEMENTED"


def test_requests_of_asyncio_run_together(affine: Served) -> None:
    async def ask() -> list[np.ndarray]:
        async with rpc_aio.InferenceServerClient(affine.grpc) as client:
            tensors = [given(X + number) for number in range(32)]
            found = await asyncio.gather(*(client.infer("affine", [x]) for x in tensors))
            return [result.as_numpy("y") for result in found]

    for number, y in enumerate(asyncio.run(ask())):
        np.testing.assert_array_equal(y, 2 * (X + number) + 1)


def test_a_stream_answers_each_request_before_the_next(client: rpc.InferenceServerClient) -> None:
    answers: queue.Queue = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for number in range(3):
        client.async_stream_infer("affine", [given(X + number)], request_id=str(number))
        result, error = answers.get(timeout=20)
        assert error is None
        assert result.get_response().id == str(number)
        np.testing.assert_array_equal(result.as_numpy("y"), 2 * (X + number) + 1)
    client.stop_stream()


def test_a_streams_answers_are_in_order_and_its_errors_are_messages(
    client: rpc.InferenceServerClient,
) -> None:
    answers: queue.Queue = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for number in range(100):
        name = "nobody" if number == 50 else "affine"
        client.async_stream_infer(name, [given(X + number)], request_id=str(number))
    for number in range(100):
        result, error = answers.get(timeout=20)
        if number == 50:
            assert "there is no model 'nobody'" in str(error)
        else:
            np.testing.assert_array_equal(result.as_numpy("y"), 2 * (X + number) + 1)
    client.stop_stream()


def test_a_final_response_is_marked_where_that_is_asked_for(
    client: rpc.InferenceServerClient,
) -> None:
    answers: queue.Queue = queue.Queue()
    client.start_stream(lambda result, error: answers.put(result))
    client.async_stream_infer("affine", [given()], enable_empty_final_response=True)
    answer = answers.get(timeout=20).get_response()
    assert answer.parameters["triton_final_response"].bool_param
    client.stop_stream()
