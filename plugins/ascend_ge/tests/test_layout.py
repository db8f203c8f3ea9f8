"""A model file and its compiled form are brought together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.errors import ModelError
from engine.types import DType, GraphInfo, TensorSpec
from engine_ascend_ge.layout import of_graph, resolved, settled
from engine_ascend_ge.om import Description, Port, tensor_name
from engine_ascend_ge.shapes import Shapes

F32 = DType.FLOAT32


def graph(inputs: dict[str, tuple[Any, ...]], outputs: dict[str, tuple[Any, ...]]) -> GraphInfo:
    def specs(shapes: dict[str, tuple[Any, ...]]) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(name, F32, shape) for name, shape in shapes.items())

    return GraphInfo(
        name="g", inputs=specs(inputs), outputs=specs(outputs), nodes=(), parameters=(),
        opsets={}, ir_version=8,
    )  # fmt: skip


def port(index: int, name: str, *dims: int) -> Port:
    return Port(index, name, F32, dims, 0)


X = port(0, "x", 2)


@pytest.mark.parametrize(
    ("called", "name"),
    [
        ("Conv_0:0:y", "y"),
        ("Conv_0:0:scope/y:0", "scope/y:0"),
        ("y", "y"),
        ("Conv_0:0", "Conv_0:0"),
        ("a:b:c", "a:b:c"),
    ],
)
def test_outputs_have_their_onnx_name(called: str, name: str) -> None:
    assert tensor_name(called) == name


def test_a_shape_is_the_declared_one_where_that_is_complete_and_as_large() -> None:
    assert settled((), (1,)) == ()
    assert settled((2, 3), (6,)) == (2, 3)
    assert settled((2, 3), (2, 4)) == (2, 4)
    assert settled(("n", 3), (5, 3)) == (5, 3)
    assert settled(None, (5,)) == (5,)


def test_symbols_are_put_in_where_all_are_known() -> None:
    assert resolved(("n", 3), {"n": 5}) == (5, 3)
    assert resolved((), {}) == ()
    assert resolved(("m", 3), {"n": 5}) is None
    assert resolved((None, 3), {}) is None
    assert resolved(None, {}) is None


@pytest.mark.parametrize(
    ("names", "expected"),
    [(("b", "a"), [("a", 1), ("b", 0)]), (("p", "q"), [("a", 0), ("b", 1)])],
    ids=["by name", "by place where the names are not there"],
)
def test_outputs_follow_the_file(names: tuple[str, str], expected: list[Any]) -> None:
    outputs = tuple(port(index, name, 2) for index, name in enumerate(names))
    file = graph({"x": (2,)}, {"a": (2,), "b": (2,)})
    layout = of_graph(Description((X,), outputs), file, Shapes({"x": (2,)}), "m.onnx")
    assert [(out.spec.name, out.port.index) for out in layout.outs] == expected


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (Description((port(0, "z", 2),), (port(0, "y", 2),)),
         r"wants inputs \['z'\], which the file does not have"),
        (Description((X,), (port(0, "y", 2), port(1, "w", 2))), "has 2 outputs, the file 1"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_a_model_error(found: Description, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        of_graph(found, graph({"x": (2,)}, {"y": (2,)}), Shapes({"x": (2,)}), "m.onnx")


@pytest.mark.parametrize(
    ("flags", "name", "answer", "message"),
    [
        ({"input_shape": "x:-1,3", "dynamic_dims": "1;2"}, "get_input_dynamic_gear_count", (0, 0),
         "compiled with --dynamic_batch_size or"),
        ({"input_shape": "x:1,3"}, "get_input_data_type", 29,
         "input 'x' has element type 29 of CANN"),
    ],
    ids=["gears of another kind", "an element type that no array has"],
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(
    machine: Any, build: Any, make_om: Any, path: Path, monkeypatch: pytest.MonkeyPatch,
    flags: dict[str, str], name: str, answer: Any, message: str,
) -> None:  # fmt: skip
    import acl

    om = make_om(path, **flags)
    monkeypatch.setattr(acl.mdl, name, lambda desc, index: answer)
    with pytest.raises(ModelError, match=message):
        build(om)
    assert machine.live() == {}
