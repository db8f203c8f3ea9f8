"""Every element type goes in and out unchanged: raw, in JSON, typed over gRPC, as BYTES."""

from __future__ import annotations

import json
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as rpc
import tritonclient.http as rest
from onnx import TensorProto
from serve_ways import Served, ask_raw, identity, infer, served

from engine_serve.protocol import message
from engine_serve.tensors import from_raw, to_raw

VALUES = {
    "BOOL": np.array([True, False, True]),
    "UINT8": np.array([0, 7, 255], np.uint8),
    "UINT16": np.array([0, 7, 65535], np.uint16),
    "UINT32": np.array([0, 7, 2**32 - 1], np.uint32),
    "UINT64": np.array([0, 7, 2**64 - 1], np.uint64),
    "INT8": np.array([-128, 7, 127], np.int8),
    "INT16": np.array([-(2**15), 7, 2**15 - 1], np.int16),
    "INT32": np.array([-(2**31), 7, 2**31 - 1], np.int32),
    "INT64": np.array([-(2**63), 7, 2**63 - 1], np.int64),
    "FP16": np.array([-65504, 0.1, 6e-8], np.float16),
    "FP32": np.array([-3e38, 0.1, np.inf], np.float32),
    "FP64": np.array([-1e308, 0.1, 5e-324]),
    "BYTES": np.array(["", "a", "grüße\0x"], object),
    "BF16": np.array([-3e38, 0.1, 1], ml_dtypes.bfloat16),
    "FP8_E4M3FN": np.array([-448, 0.1, 1], ml_dtypes.float8_e4m3fn),
    "FP8_E5M2": np.array([-57344, 0.1, 1], ml_dtypes.float8_e5m2),
}
NUMBERS = {
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
    "BF16": TensorProto.BFLOAT16,
    "FP8_E4M3FN": TensorProto.FLOAT8E4M3FN,
    "FP8_E5M2": TensorProto.FLOAT8E5M2,
}
TYPED = [name for name in VALUES if name not in ("FP16", "BF16") and not name.startswith("FP8")]


@pytest.fixture(scope="module")
def all_types(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A model y = x for each type, by the type's name."""
    folder = tmp_path_factory.mktemp("types")
    for name in VALUES:
        identity(folder / f"{name}.onnx", NUMBERS.get(name) or getattr(TensorProto, name))
    with served(folder) as found:
        yield found


@pytest.mark.parametrize("name", VALUES)
def test_raw_bytes_come_back_over_rest(all_types: Served, name: str) -> None:
    raw = bytes(to_raw(VALUES[name]))
    given = {
        "name": "x",
        "shape": [3],
        "datatype": name,
        "parameters": {"binary_data_size": len(raw)},
    }
    head = {"inputs": [given], "parameters": {"binary_data_output": True}}
    text = json.dumps(head).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    path = f"/v2/models/{name}/infer"
    status, content, told = ask_raw(all_types.http, "POST", path, text + raw, headers)
    assert status == 200, content
    length = int(told["inference-header-content-length"])
    [output] = json.loads(content[:length])["outputs"]
    assert (output["datatype"], output["shape"]) == (name, [3])
    assert content[length:] == raw


@pytest.mark.parametrize("name", VALUES)
def test_json_holds_each_value(all_types: Served, name: str) -> None:
    data = (
        VALUES[name].tolist()
        if name[:2] not in ("BF", "FP")
        else VALUES[name].astype(float).tolist()
    )
    given = {"name": "x", "shape": [3], "datatype": name, "data": data}
    status, found = infer(all_types.http, name, given)
    assert status == 200, found
    [output] = found["outputs"]
    assert output["datatype"] == name
    assert output["data"] == data


@pytest.mark.parametrize("name", VALUES)
def test_raw_contents_come_back_over_grpc(all_types: Served, name: str) -> None:
    request = message("ModelInferRequest")(model_name=name)
    request.inputs.add(name="x", datatype=name, shape=[3])
    request.raw_input_contents.append(bytes(to_raw(VALUES[name])))
    answer = asked(all_types, request)
    assert answer.outputs[0].datatype == name
    assert [*answer.raw_output_contents] == [bytes(to_raw(VALUES[name]))]


@pytest.mark.parametrize("name", TYPED)
def test_typed_contents_come_back_typed_over_grpc(all_types: Served, name: str) -> None:
    fields = {"INT": "int_contents", "UIN": "uint_contents", "FP3": "fp32_contents",
              "FP6": "fp64_contents", "BOO": "bool_contents", "BYT": "bytes_contents"}  # fmt: skip
    field = f"{name.lower()}_contents" if name.endswith("INT64") else fields[name[:3]]
    request = message("ModelInferRequest")(model_name=name)
    values = VALUES[name].tolist()
    if name == "BYTES":
        values = [value.encode() for value in values]
    contents = request.inputs.add(name="x", datatype=name, shape=[3]).contents
    getattr(contents, field).extend(values)
    answer = asked(all_types, request)
    assert not answer.raw_output_contents
    assert [*getattr(answer.outputs[0].contents, field)] == values


def asked(server: Served, request: object) -> object:
    import grpc

    with grpc.insecure_channel(server.grpc) as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=lambda given: given.SerializeToString(),
            response_deserializer=message("ModelInferResponse").FromString,
        )
        return call(request, timeout=30)


@pytest.mark.parametrize("client", [rest, rpc], ids=["http", "grpc"])
@pytest.mark.parametrize("name", [name for name in VALUES if not name.startswith("FP8")])
def test_tritons_client_carries_each_of_its_types(
    all_types: Served, client: object, name: str
) -> None:
    address = all_types.http if client is rest else all_types.grpc
    values = VALUES[name]
    given = client.InferInput("x", [3], name)
    given.set_data_from_numpy(values)
    connection = client.InferenceServerClient(address)
    try:
        found = connection.infer(name, [given]).as_numpy("y")
    finally:
        connection.close()
    if name == "BYTES":
        assert [value.decode() for value in found] == values.tolist()
    else:
        np.testing.assert_array_equal(found, values)
        assert found.dtype == values.dtype


def test_fp8_may_come_as_uint8(all_types: Served) -> None:
    raw = VALUES["FP8_E5M2"].view(np.uint8)
    given = {"name": "x", "shape": [3], "datatype": "UINT8", "data": raw.tolist()}
    status, found = infer(all_types.http, "FP8_E5M2", given)
    assert status == 200
    assert found["outputs"][0]["data"] == VALUES["FP8_E5M2"].astype(float).tolist()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("UINT8", [1, 2, 300]),
        ("UINT8", [1, 2, -1]),
        ("INT64", [1, 2, 2**63]),
        ("INT32", [1, 2, 0.5]),
        ("INT64", [1, 2, 1e300]),
        ("FP16", [1, 2, 65520]),
        ("BF16", [1, 2, 1e39]),
        ("BOOL", [True, False, 1]),
        ("BYTES", ["a", "b", 3]),
        ("FP32", [1, 2, "3"]),
        ("FP32", [1, 2, True]),
    ],
)
def test_a_value_that_the_type_cannot_hold_is_refused(
    all_types: Served, name: str, data: list[object]
) -> None:
    given = {"name": "x", "shape": [3], "datatype": name, "data": data}
    status, found = infer(all_types.http, name, given)
    assert status == 400
    assert f"input 'x': an element of {name} cannot be" in found["error"] or (
        f"input 'x': {name} cannot hold it" in found["error"]
    )


@pytest.mark.parametrize(
    "raw",
    [b"", b"\1\0\0", b"\1\0\0\0", b"\xff\xff\xff\xffabc", b"\1\0\0\0ab", b"\1\0\0\0\xff" * 3],
)
def test_bytes_with_wrong_lengths_are_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match="input 'x': "):
        from_raw("BYTES", [3], raw, "x")


def test_a_bool_is_any_byte_but_zero() -> None:
    assert from_raw("BOOL", [3], b"\0\1\x07", "x").tolist() == [False, True, True]
