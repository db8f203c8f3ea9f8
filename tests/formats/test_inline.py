"""External data in memory, and the model that it is put into."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine.errors import ModelError
from engine.formats import open_source
from engine.formats.onnx import limits, read_model
from engine.formats.onnx.inline import inlined
from engine.types import ModelSource

A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.array([1, -2, 3], np.int64)
C = np.array([0.5], np.float16)


def _external(name: str, array: np.ndarray, **where: object) -> TensorProto:
    tensor = numpy_helper.from_array(array, name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in where.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _source(
    tensors: list[TensorProto],
    files: dict[str, bytes | memoryview],
    folder: Path | None = None,
) -> ModelSource:
    """A model that gives its constants back."""
    graph = onnx.GraphProto(name="g", initializer=tensors)
    for i, tensor in enumerate(tensors):
        graph.node.append(helper.make_node("Identity", [tensor.name], [f"y{i}"]))
        graph.output.append(helper.make_tensor_value_info(f"y{i}", tensor.data_type, tensor.dims))
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, ir_version=8, opset_imports=opsets, producer_name="p")
    helper.set_model_props(model, {"key": "after the graph"})
    data = model.SerializeToString()
    path = None if folder is None else folder / "m.onnx"
    info = read_model(memoryview(data), path, "model bytes", files).graph
    return ModelSource(format="onnx", data=data, folder=folder, graph=info, files=files)


def test_data_in_memory_is_put_where_the_model_names_it() -> None:
    both = b"????" + A.tobytes() + B.tobytes()
    tensors = [
        _external("a", A, location="both", offset=4, length=A.nbytes),
        numpy_helper.from_array(C, "c"),
        _external("b", B, location="both", offset=4 + A.nbytes),
        _external("whole", A, location="w"),
    ]
    whole = inlined(_source(tensors, {"both": memoryview(both), "w": A.tobytes()}))
    assert whole.files == {}
    model = onnx.load_from_string(whole.data or b"")
    onnx.checker.check_model(model)
    found = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    for name, expected in {"a": A, "c": C, "b": B, "whole": A}.items():
        np.testing.assert_array_equal(found[name], expected, strict=True)
    assert (model.producer_name, model.metadata_props[0].value) == ("p", "after the graph")
    assert [node.output[0] for node in model.graph.node] == ["y0", "y1", "y2", "y3"]
    assert read_model(memoryview(whole.data or b""), None, "again").graph == whole.graph


def test_data_that_lies_in_a_folder_stays_there(tmp_path: Path) -> None:
    (tmp_path / "b.bin").write_bytes(B.tobytes())
    tensors = [_external("a", A, location="a.bin"), _external("b", B, location="b.bin")]
    source = _source(tensors, {"a.bin": A.tobytes()}, tmp_path)
    (tmp_path / "whole.onnx").write_bytes(inlined(source).data or b"")
    first, second = onnx.load(tmp_path / "whole.onnx").graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(first), A)
    np.testing.assert_array_equal(numpy_helper.to_array(second), B)


def test_a_model_without_such_data_is_itself() -> None:
    source = _source([numpy_helper.from_array(A, "a")], {})
    assert inlined(source) is source


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ({"location": "a", "offset": 1}, r"wants bytes 1 to 25 of 'a', which has 24 bytes"),
        ({"location": "a", "length": 12}, r"needs 24 bytes of external data, but .* says 12"),
        ({"location": "b"}, r"in the file 'b', but a model given as bytes has no folder"),
    ],
)
def test_data_in_memory_has_to_be_there_and_fit(where: dict[str, object], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        _source([_external("a", A, **where)], {"a": A.tobytes()})


def test_a_model_that_protobuf_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    source = _source([_external("a", A, location="a")], {"a": A.tobytes()})
    assert source.data is not None
    monkeypatch.setattr(limits, "MODEL_BYTES", len(source.data))
    with pytest.raises(ModelError, match=r"as one ONNX model, and protobuf's limit is"):
        inlined(source)


def test_a_file_cannot_name_memory_that_it_was_not_given(tmp_path: Path) -> None:
    source = _source([_external("a", A, location="%0")], {"%0": A.tobytes()})
    (tmp_path / "stranger.onnx").write_bytes(source.data or b"")
    with pytest.raises(ModelError, match="'%0', which cannot be read"):
        open_source(tmp_path / "stranger.onnx")
