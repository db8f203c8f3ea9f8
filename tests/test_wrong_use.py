"""Wrong use of every method of Model: the right exception each, and nothing left broken.

Two tables: what each method does in each state of a model's life, and what it says of arguments
that are wrong. Every case asserts both: what is raised, and that the model works afterwards. The
tables are whole: a new method fails the suite until it has its rows. Tensor, Context and Converter
have their tables in tests/api.
"""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from engine import Context, Converter, DataType, FmkType, Model, ModelStateError, ModelType, Tensor
from engine_testing import models

pytestmark = pytest.mark.usefixtures("null_backend")

X = np.arange(6, dtype=np.float32).reshape(2, 3)
Y = 2 * X + 1
MINDIR = ModelType.MINDIR


def null_context() -> Context:
    context = Context()
    context.target = ["null"]
    return context


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(models.affine(tmp_path))


def build(path: str) -> Model:
    model = Model()
    model.build_from_file(path, MINDIR, null_context())
    return model


def works(model: Model) -> None:
    """Raise unless a built model gives the right numbers, whatever was done to it before."""
    np.testing.assert_array_equal(model.predict([X])[0], Y)
    inputs = model.get_inputs()
    inputs[0].set_data_from_numpy(X)
    buffer = np.zeros_like(X)
    assert model.predict(inputs, [Tensor(buffer)])
    np.testing.assert_array_equal(buffer, Y)
    np.testing.assert_array_equal(model(x=X)["y"], Y)


def complaint(call: Callable[[], object], kind: type[Exception] | None, text: str) -> str:
    """Return a complaint about a call; "" if it raised `kind` with `text`, or nothing."""
    try:
        call()
    except Exception as error:
        if kind is not None and isinstance(error, kind) and text in str(error):
            return "" if "\n" not in str(error) else f"several lines: {error}"
        return f"expected {kind} with {text!r}, got {type(error)}: {error}"
    return "" if kind is None else f"expected {kind} with {text!r}, and nothing was raised"


def in_a_thread(work: Callable[[], object]) -> None:
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def in_a_forked_child(work: Callable[[], object]) -> str:
    """Return the text of what work raised in a child process; "" if nothing."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(read)
            work()
            status = 0
        except BaseException:
            os.write(write, traceback.format_exc().encode()[-60000:])
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode()
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return said or ("" if ended == 0 else f"the child ended with {ended}")


# ------------------------------------------------------------------------- Model: state by state

NOT_BUILT = "the model is not built; call build_from_file first"
BUILT = "the model is already built; make another Model"
CLOSED = "the model is closed; build a new one"
FORKED = "this process was forked after the model was built"
WORKS = None


@dataclass(frozen=True)
class Use:
    """The right use of a method, and what it says in each state; None where it works there."""

    call: Callable[[Model, str], object]
    before: str | None = NOT_BUILT
    built: str | None = WORKS
    closed: str | None = CLOSED
    forked: str | None = FORKED


def from_bytes(model: Model, path: str) -> None:
    model.build_from_buffer(Path(path).read_bytes(), context=null_context())


FILE, BUFFER = "build_from_file failed! Error is ", "build_from_buffer failed! Error is "
PREDICT, RESIZE = "predict failed! ", "resize failed! Error is "
UPDATE = "update weight failed! Error is "
USES = {
    "build_from_file": Use(
        lambda model, path: model.build_from_file(path, MINDIR, null_context()),
        WORKS, FILE + BUILT, FILE + CLOSED, FILE + FORKED,
    ),
    "build_from_buffer": Use(
        from_bytes, WORKS, BUFFER + BUILT, BUFFER + CLOSED, BUFFER + FORKED
    ),
    "predict": Use(
        lambda model, path: model.predict([X], [Tensor()]),
        PREDICT + NOT_BUILT, WORKS, PREDICT + CLOSED, PREDICT + FORKED,
    ),
    "__call__": Use(
        lambda model, path: model(x=X),
        PREDICT + NOT_BUILT, WORKS, PREDICT + CLOSED, PREDICT + FORKED,
    ),
    "predict_async": Use(
        lambda model, path: asyncio.run(model.predict_async([X])),
        PREDICT + NOT_BUILT, WORKS, PREDICT + CLOSED, PREDICT + FORKED,
    ),
    "get_inputs": Use(lambda model, path: model.get_inputs(), WORKS),
    "get_outputs": Use(lambda model, path: model.get_outputs(), WORKS),
    "resize": Use(
        lambda model, path: model.resize([Tensor()], [[2, 3]]),
        RESIZE + NOT_BUILT, WORKS, RESIZE + CLOSED, RESIZE + FORKED,
    ),
    "update_weights": Use(
        lambda model, path: model.update_weights({"two": X}),
        UPDATE + NOT_BUILT, UPDATE + "no weight of this model was declared variable",
        UPDATE + CLOSED, UPDATE + FORKED,
    ),
    "get_model_info": Use(
        lambda model, path: model.get_model_info("input_shape"), WORKS, WORKS, WORKS, WORKS
    ),
    "inputs": Use(lambda model, path: model.inputs),
    "outputs": Use(lambda model, path: model.outputs),
    "metadata": Use(lambda model, path: model.metadata),
    "summary": Use(lambda model, path: model.summary()),
    "placement": Use(lambda model, path: model.placement),
    "memory": Use(lambda model, path: model.memory()),
    "profile": Use(lambda model, path: model.profile([X], 1)),
    "explain": Use(lambda model, path: model.explain([X])),
    "model_path_": Use(lambda model, path: model.model_path_, WORKS, WORKS, WORKS, WORKS),
    "provider": Use(lambda model, path: model.provider, WORKS, WORKS, WORKS, WORKS),
    "lora_name_map": Use(lambda model, path: model.lora_name_map, WORKS, WORKS, WORKS, WORKS),
    "close": Use(lambda model, path: model.close(), WORKS, WORKS, WORKS, WORKS),
    "__enter__": Use(lambda model, path: model.__enter__(), WORKS, WORKS, WORKS, WORKS),
    "__str__": Use(lambda model, path: str(model), WORKS, WORKS, WORKS, WORKS),
}  # fmt: skip
SPECIAL = {"__call__", "__enter__", "__str__"}


def refused(text: str | None) -> type[Exception] | None:
    return None if text is None else ModelStateError


def test_the_table_has_every_public_method() -> None:
    public = {name for name in dir(Model) if not name.startswith("_") and hasattr(Model, name)}
    assert set(USES) == public | SPECIAL


@pytest.mark.parametrize("name", USES)
def test_before_building(name: str, path: str, caplog: pytest.LogCaptureFixture) -> None:
    use, model = USES[name], Model()
    assert complaint(lambda: use.call(model, path), refused(use.before), use.before or "") == ""
    if name in ("get_inputs", "get_outputs"):
        assert len(use.call(model, path)) == 0  # type: ignore[arg-type]
        assert NOT_BUILT in caplog.text
    if not name.startswith("build"):
        model.build_from_file(path, MINDIR, null_context())
    works(model)


@pytest.mark.parametrize("name", USES)
def test_twice_and_again(name: str, path: str) -> None:
    use, model = USES[name], build(path)
    for _ in range(2):
        assert complaint(lambda: use.call(model, path), refused(use.built), use.built or "") == ""
    if name == "close":
        return  # the next test's
    works(model)


@pytest.mark.parametrize("name", USES)
def test_after_closing(name: str, path: str) -> None:
    use, model = USES[name], build(path)
    result = model.predict([X])[0]
    for _ in range(2):
        model.close()
        assert complaint(lambda: use.call(model, path), refused(use.closed), use.closed or "") == ""
    np.testing.assert_array_equal(result, Y)
    works(build(path))


@pytest.mark.parametrize("name", USES)
def test_in_another_thread_than_the_one_that_built(name: str, path: str) -> None:
    use, model = USES[name], build(path)
    found: list[str] = []
    in_a_thread(
        lambda: found.append(
            complaint(lambda: use.call(model, path), refused(use.built), use.built or "")
        )
    )
    assert found == [""]
    if name != "close":
        in_a_thread(lambda: works(model))
        works(model)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_after_a_fork(path: str) -> None:
    model, unbuilt = build(path), Model()
    works(model)

    def child() -> None:
        for name, use in USES.items():
            call = partial(use.call, model, path)
            assert complaint(call, refused(use.forked), use.forked or "") == "", name
        unbuilt.build_from_file(path, MINDIR, null_context())
        works(unbuilt)
        Converter().convert(FmkType.ONNX, path, f"{path}.converted")

    assert in_a_forked_child(child) == ""
    works(model)


# ------------------------------------------------------------------------ arguments that are wrong


@dataclass(frozen=True)
class Row:
    """One wrong call of a method, or assignment to an attribute."""

    name: str
    call: Callable[[Any], object]
    kind: type[Exception]
    text: str = ""
    label: str = ""

    def verdict(self, path: str) -> str:
        """Return a complaint about the row's outcome or the model afterwards; "" for none."""
        model = build(path)
        return complaint(lambda: self.call(model), self.kind, self.text) or complaint(
            lambda: works(model), None, ""
        )


def rows(name: str, *cases: tuple[object, type[Exception], str]) -> list[Row]:
    """A row for each (value, error, text): the value passed alone."""
    return [
        Row(name, lambda m, value=value: getattr(m, name)(value), kind, text,
            f"{name}: {value!r}"[:60])
        for value, kind, text in cases
    ]  # fmt: skip


def called(name: str, *cases: tuple[Callable[[Any], object], type[Exception], str]) -> list[Row]:
    return [
        Row(name, call, kind, text, f"{name} {place}")
        for place, (call, kind, text) in enumerate(cases)
    ]


INPUT = engine.InputError

INPUTS: list[tuple[object, type[Exception], str]] = [
    ("x", TypeError, "inputs must be list or tuple, but got <class 'str'>"),
    (None, TypeError, "inputs must be list or tuple, but got <class 'NoneType'>"),
    (5, TypeError, "inputs must be list or tuple"),
    (iter([X]), TypeError, "inputs must be list or tuple"),
    ({X.shape}, TypeError, "inputs must be list or tuple"),
    ([], INPUT, "model input len:1 not equal input len:0!"),
    ((X, X), INPUT, "model input len:1 not equal input len:2!"),
    ([None], TypeError, "inputs element must be Tensor, of numpy."),
    ([[1.0]], INPUT, "input 'x': expected float32[batch, 3], got float32[1]"),
    ([[X]], INPUT, "input 'x': expected float32[batch, 3], got float32[1, 2, 3]"),
    ([["1.0"]], INPUT, "got elements of type str, which float32 cannot hold"),
    ([[[1.0], [1.0, 2.0]]], INPUT, "lists that are not of one length"),
    ([[[1, 2, 2**70]]], INPUT, "int with more than 64 bits, which float32 cannot hold"),
    ([[object()]], TypeError, "inputs element must be Tensor, of numpy."),
    ([DataType.FLOAT32], TypeError, "inputs element must be Tensor, of numpy."),
    ([Tensor(shape=[-1, 3], dtype=DataType.FLOAT32)], INPUT, "the tensor has no data"),
    ([[None, 0.5]], TypeError, "inputs element must be Tensor, of numpy."),
    ([X.astype("f8")], INPUT, "data type not equal! Numpy type: <class 'numpy.float64'>"),
    ([Tensor(X.astype("i4"))], INPUT, "predict failed! data type not equal! Numpy type: <cl"),
    ([X.astype(complex)], INPUT, "data type not equal!"),
    ([X.astype("M8[s]")], TypeError, "Unsupported numpy dtype value 'datetime64[s]'"),
    ([X.astype(object)], INPUT, "data type not equal!"),
    ([X[0]], INPUT, "data size not equal!"),
    ([X.reshape(3, 2)], INPUT, "data size not equal! Numpy size: 24, Tensor size: open"),
    ([X[None]], INPUT, "data size not equal!"),
    ({}, INPUT, "input 'x' is missing"),
    ({"y": X}, INPUT, "unknown input 'y'"),
    ({"x": X, "y": X}, INPUT, "unknown input 'y'"),
    ({1: X}, INPUT, "unknown input 1"),
]  # fmt: skip
ARGUMENTS = [
    *called(
        "build_from_file",
        (lambda m: m.build_from_file(MINDIR, "m.onnx"), TypeError, "model_path must be str"),
        (lambda m: m.build_from_file("m\0", MINDIR), RuntimeError, "model_path does not exist!"),
    ),
    *rows("build_from_buffer", ("m.onnx", TypeError, "model_bytes must be bytes")),
    *rows("predict", *INPUTS),
    *[
        Row("predict", lambda m, value=value: m.predict(value, [Tensor()]), kind, text,
            f"predict, with outputs: {value!r}"[:60])
        for value, kind, text in INPUTS
    ],
    *called(
        "predict",
        (lambda m: m.predict([X], Tensor()), TypeError, "outputs must be list"),
        (lambda m: m.predict([X], (Tensor(),)), TypeError, "outputs must be list, but got <cl"),
        (lambda m: m.predict([X], [X]), TypeError, "outputs element must be Tensor"),
        (lambda m: m.predict([X], [None]), TypeError, "outputs element must be Tensor"),
        (lambda m: m.predict([X], ()), TypeError, "outputs must be list"),
        (lambda m: m.predict([X], [Tensor(), Tensor()]), INPUT, "expected 1 outputs ('y'), got 2"),
        (lambda m: m.predict([X], [Tensor(Y[:1].copy())]), INPUT, "expected a buffer of float32"),
        (lambda m: m.predict([X], [Tensor(Y.astype("i4"))]), INPUT, "expected a buffer of float32"),
        (lambda m: m.predict([X], timeout_s="1"), TypeError, "timeout_s must be a number"),
        (lambda m: m.predict([X], timeout_s=True), TypeError, "timeout_s must be a number"),
        (lambda m: m.predict([X], timeout_s=0), ValueError, "timeout_s must be above 0 s"),
        (lambda m: m.predict([X], timeout_s=float("nan")), ValueError, "timeout_s must be above 0"),
        (lambda m: m.predict([X], priority="1"), TypeError, "priority must be an int of -100 to"),
        (lambda m: m.predict([X], priority=None), TypeError, "priority must be an int of -100 to"),
        (lambda m: m.predict([X], priority=101), ValueError, "priority must be -100 to 100, but g"),
        (lambda m: m.predict([X], request_id=7), TypeError, "request_id must be a str, but got <c"),
        (lambda m: m.predict([X], request_id=None), TypeError, "request_id must be a str, but got"),
    ),
    *called(
        "__call__",
        (lambda m: m(), INPUT, "input 'x' is missing"),
        (lambda m: m(X, X), INPUT, "model input len:1 not equal input len:2!"),
        (lambda m: m(X, x=X), TypeError, "all inputs by place or all by name"),
        (lambda m: m(y=X), INPUT, "unknown input 'y'"),
        (lambda m: m([[1.0]]), INPUT, "input 'x': expected float32[batch, 3], got float32[1, 1]"),
    ),
    *called(
        "resize",
        (lambda m: m.resize([[2, 3]], m.get_inputs()), TypeError, "inputs element must be Tensor"),
        (lambda m: m.resize({}, {}), TypeError, "inputs must be list or tuple of Lite Tensor"),
        (lambda m: m.resize(m.get_inputs(), None), TypeError, "dims must be list or tuple of"),
        (lambda m: m.resize(m.get_inputs(), X), TypeError, "dims must be list or tuple of shape"),
        (lambda m: m.resize(m.get_inputs(), [2, 3]), TypeError, "dims element must be list or"),
        (lambda m: m.resize(m.get_inputs(), [[2.0, 3]]), TypeError, "element must be int, but got"),
        (lambda m: m.resize(m.get_inputs(), []), ValueError, "inputs' size does not match dims'"),
        (lambda m: m.resize([], []), INPUT, "model input len:1 not equal input len:0"),
        (lambda m: m.resize(m.get_inputs(), [[]]), INPUT, "expected 2 dims"),
        (lambda m: m.resize(m.get_inputs(), [[2, 0]]), INPUT, "the model fixes it to 3"),
        (lambda m: m.resize(m.get_inputs(), [[2, -1]]), INPUT, "the model fixes it to 3"),
        (lambda m: m.resize(m.get_inputs(), [[2**31, 3]]), INPUT, "Error is Invalid shape!"),
    ),
    *rows(
        "get_model_info",
        (None, TypeError, "key must be str, but got <class 'NoneType'>"),
        (["user_info"], TypeError, "key must be str, but got <class 'list'>"),
    ),
    *rows(
        "update_weights",
        (None, TypeError, "weights must be list, but got"),
        ([None], TypeError, "weight must be list, but got"),
        ([[X]], TypeError, "weights element must be Tensor, but got"),
    ),
    *[
        Row(name, lambda m, name=name: setattr(m, name, ()), AttributeError, "has no setter", name)
        for name in ("inputs", "outputs", "metadata", "placement", "model_path_", "provider",
                     "lora_name_map")
    ],
    *called("profile", (lambda m: m.profile([X], "2"), TypeError, "predicts must be int")),
    *called(
        "explain",
        (lambda m: m.explain("x"), TypeError, "inputs must be list or tuple"),
        (lambda m: m.explain([X, X]), INPUT, "model input len:1 not equal input len:2!"),
        (lambda m: m.explain([X[0]]), INPUT, "expected float32[batch, 3], got float32[3]"),
        (lambda m: m.explain([X.astype(complex)]), INPUT, "data type not equal!"),
        (lambda m: m.explain([X], profile="yes"), TypeError, "profile must be bool"),
    ),
    *called(
        "predict_async",
        (lambda m: asyncio.run(m.predict_async(5)), TypeError, "inputs must be list or tuple"),
        (lambda m: asyncio.run(m.predict_async([Y[0]])), INPUT, "expected float32[batch, 3]"),
        (lambda m: asyncio.run(m.predict_async([X], timeout_s="1")), TypeError, "must be a number"),
        (lambda m: asyncio.run(m.predict_async([X], cancel=1)), TypeError, "cancel must be Cancel"),
        (lambda m: asyncio.run(m.predict_async([X], priority=0.0)), TypeError, "must be an int of"),
        (lambda m: asyncio.run(m.predict_async([X], request_id=0)), TypeError, "must be a str, bu"),
    ),
]  # fmt: skip

WITHOUT_ARGUMENTS = {
    "get_inputs", "get_outputs", "summary", "memory", "close", "__enter__", "__str__",
}  # fmt: skip


def test_every_method_has_rows() -> None:
    assert {row.name for row in ARGUMENTS} == set(USES) - WITHOUT_ARGUMENTS


@pytest.mark.parametrize("row", ARGUMENTS, ids=lambda row: row.label.split(" at 0x")[0])
def test_a_wrong_argument_is_refused_and_breaks_nothing(row: Row, path: str) -> None:
    assert row.verdict(path) == ""


def test_it_is_so_in_another_thread_too(path: str) -> None:
    found: list[str] = []
    in_a_thread(lambda: found.extend(row.label for row in ARGUMENTS if row.verdict(path)))
    assert found == []


def test_one_model_survives_all_of_it(path: str) -> None:
    model = build(path)
    for row in ARGUMENTS:
        assert complaint(lambda row=row: row.call(model), row.kind, row.text) == ""
    works(model)


def test_an_error_quotes_a_page_of_what_came_at_most(tmp_path: Path) -> None:
    """Of whatever class, however long the text is that it was given."""
    junk = "z" * 290_000

    def classes(top: type[engine.EngineError]) -> list[type[engine.EngineError]]:
        return [top, *(found for sub in top.__subclasses__() for found in classes(sub))]

    error = engine.EngineError(f"expected a name, got {junk!r}; correct it")
    assert len(str(error)) < 8000
    assert str(error).startswith("expected a name, got 'zzz")
    assert str(error).endswith("zzz'; correct it")
    for kind in classes(engine.EngineError):
        assert kind.__str__ is engine.EngineError.__str__, kind
    with pytest.raises(engine.ModelError) as caught:
        engine.load(junk)
    assert len(str(caught.value)) < 8000
