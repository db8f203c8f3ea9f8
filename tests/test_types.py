"""The contract's values as users see them printed."""

from __future__ import annotations

from engine.types import DType, TensorSpec, ValueKind


def test_a_spec_shows_its_name_type_and_shape() -> None:
    assert repr(TensorSpec("x", DType.FLOAT32, ("batch", 3))) == "TensorSpec(x: float32[batch, 3])"
    assert str(TensorSpec("x", DType.INT8, None, ValueKind.SEQUENCE)) == "sequence(int8[...])"
    assert str(TensorSpec("é", DType.BOOL, ())) == "bool[]"


def test_names_in_a_spec_never_drive_the_terminal() -> None:
    spec = TensorSpec("a\x1b[31m", DType.FLOAT32, ("b\n", 3))
    assert repr(spec) == r"TensorSpec(a\x1b[31m: float32[b\n, 3])"
