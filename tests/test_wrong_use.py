"""Wrong use of every public method: the right exception each, and nothing left broken.

Three tables: what each method of Model does in each state of a model's life, and what the methods
of Model, Tensor, Context and Converter say of arguments that are wrong. Every case asserts both:
what is raised, and that the object works afterwards. The tables are whole: a new method fails the
suite until it has its rows.
"""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
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
        assert [row.label for row in ARGUMENTS if row.of != "Model" and row.verdict(path)] == []

    assert in_a_forked_child(child) == ""
    works(model)


# ------------------------------------------------------------------------ arguments that are wrong


@dataclass(frozen=True)
class Row:
    """One wrong call of a method. `of` is the class, `name` the method or attribute."""

    of: str
    name: str
    call: Callable[[Any], object]
    kind: type[Exception]
    text: str = ""
    label: str = ""

    def verdict(self, path: str) -> str:
        """Return a complaint about the row's outcome or the object afterwards; "" for none."""
        if self.of == "Model":
            model = build(path)
            return complaint(lambda: self.call(model), self.kind, self.text) or complaint(
                lambda: works(model), None, ""
            )
        if self.of == "Tensor":
            tensor = Tensor(X.copy())
            before = str(tensor)
            said = complaint(lambda: self.call(tensor), self.kind, self.text)
            return said or complaint(lambda: unharmed(tensor, before), None, "")
        if self.of == "Converter":
            converter = Converter()
            said = complaint(lambda: self.call(converter), self.kind, self.text)
            return said or complaint(lambda: converts(converter, path), None, "")
        context = null_context()
        texts = described(context)
        said = complaint(lambda: self.call(context), self.kind, self.text)
        if not said and described(context) != texts:
            return f"it changed: {described(context)}"
        return said or complaint(lambda: runs(context, path), None, "")


def unharmed(tensor: Tensor, before: str) -> None:
    assert str(tensor) == before
    np.testing.assert_array_equal(tensor, X)
    tensor.set_data_from_numpy(Y)
    np.testing.assert_array_equal(tensor.get_data_to_numpy(), Y)


def converts(converter: Converter, path: str) -> None:
    assert str(converter) == str(Converter())
    with TemporaryDirectory() as folder:
        converter.convert(FmkType.ONNX, path, f"{folder}/out")
        works(build(f"{folder}/out.mindir"))


def runs(context: Context, path: str) -> None:
    model = Model()
    model.build_from_file(path, MINDIR, context)
    works(model)


def described(context: Context) -> list[str]:
    parts = (context, context.cpu, context.gpu, context.ascend, context.parallel)
    return [*map(str, parts), context.group_info_file, context.gpu.provider]


def passing(name: str, value: object) -> Callable[[Any], object]:
    return lambda target: getattr(target, name)(value)


def assigning(name: str, value: object) -> Callable[[Any], object]:
    *owners, last = name.split(".")

    def assign(target: Any) -> None:
        for owner in owners:
            target = getattr(target, owner)
        setattr(target, last, value)

    return assign


def rows(
    of: str, name: str, *cases: tuple[object, type[Exception], str], calls: bool = False
) -> list[Row]:
    """A row for each (value, error, text): the value assigned, or with `calls` passed alone."""
    made = []
    for value, kind, text in cases:
        call = passing(name, value) if calls else assigning(name, value)
        made.append(Row(of, name, call, kind, text, f"{of}.{name}: {value!r}"[:60]))
    return made


def called(
    of: str, name: str, *cases: tuple[Callable[[Any], object], type[Exception], str]
) -> list[Row]:
    return [
        Row(of, name, call, kind, text, f"{of}.{name} {place}")
        for place, (call, kind, text) in enumerate(cases)
    ]


READ_ONLY = "object has no setter"
INPUT, STATE = engine.InputError, ModelStateError

MODEL = [
    *called(
        "Model", "build_from_file",
        (lambda m: m.build_from_file(), TypeError, "missing 2 required positional arguments"),
        (lambda m: m.build_from_file("m.onnx"), TypeError, "missing 1 required positional"),
        (lambda m: m.build_from_file(1, MINDIR), TypeError, "model_path must be str"),
        (lambda m: m.build_from_file(MINDIR, "m.onnx"), TypeError, "model_path must be str"),
        (lambda m: m.build_from_file("m.onnx", 0), TypeError, "model_type must be ModelType"),
        (lambda m: m.build_from_file("m\0", MINDIR), RuntimeError, "model_path does not exist!"),
        (lambda m: m.build_from_file("m", MINDIR, target="cpu"), TypeError, "unexpected keyword"),
    ),
    *called(
        "Model", "build_from_buffer",
        (lambda m: m.build_from_buffer(), TypeError, "missing 1 required positional"),
        (lambda m: m.build_from_buffer("m.onnx"), TypeError, "model_bytes must be bytes"),
        (lambda m: m.build_from_buffer(b""), RuntimeError, "model_bytes is empty."),
        (lambda m: m.build_from_buffer(b"0", MINDIR), TypeError, "weight_bytes must be bytes"),
    ),
    *rows(
        "Model", "predict",
        ("x", TypeError, "inputs must be list or tuple"),
        (None, TypeError, "inputs must be list or tuple"),
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
        ([X.astype("f8")], INPUT, "data type not equal!"),
        ([X.astype(complex)], INPUT, "data type not equal!"),
        ([X.astype("datetime64[s]")], TypeError, "Unsupported numpy dtype value"),
        ([X.astype(object)], INPUT, "data type not equal!"),
        ([X[0]], INPUT, "data size not equal!"),
        ([X.reshape(3, 2)], INPUT, "data size not equal!"),
        ([X[None]], INPUT, "data size not equal!"),
        ({}, INPUT, "input 'x' is missing"),
        ({"y": X}, INPUT, "unknown input 'y'"),
        ({"x": X, "y": X}, INPUT, "unknown input 'y'"),
        ({1: X}, INPUT, "unknown input 1"),
        calls=True,
    ),
    *called(
        "Model", "predict",
        (lambda m: m.predict(), TypeError, "missing 1 required positional"),
        (lambda m: m.predict(x=X), TypeError, "unexpected keyword"),
        (lambda m: m.predict([X], Tensor()), TypeError, "outputs must be list"),
        (lambda m: m.predict([X], (Tensor(),)), TypeError, "outputs must be list"),
        (lambda m: m.predict([X], [X]), TypeError, "outputs element must be Tensor"),
        (lambda m: m.predict([X], [None]), TypeError, "outputs element must be Tensor"),
        (lambda m: m.predict([X], ()), TypeError, "outputs must be list"),
        (lambda m: m.predict([X], [Tensor(), Tensor()]), INPUT, "expected 1 outputs"),
        (lambda m: m.predict([X], [Tensor(Y[:1].copy())]), INPUT, "expected a buffer of float32"),
        (lambda m: m.predict([X], [Tensor(Y.astype("i4"))]), INPUT, "expected a buffer of float32"),
        (lambda m: m.predict([X], timeout_s="1"), TypeError, "timeout_s must be a number"),
        (lambda m: m.predict([X], timeout_s=True), TypeError, "timeout_s must be a number"),
        (lambda m: m.predict([X], timeout_s=0), ValueError, "timeout_s must be above 0 s"),
        (lambda m: m.predict([X], timeout_s=float("nan")), ValueError, "timeout_s must be above 0"),
    ),
    *called(
        "Model", "__call__",
        (lambda m: m(), INPUT, "input 'x' is missing"),
        (lambda m: m(X, X), INPUT, "model input len:1 not equal input len:2!"),
        (lambda m: m(X, x=X), TypeError, "all inputs by place or all by name"),
        (lambda m: m(y=X), INPUT, "unknown input 'y'"),
        (lambda m: m([[1.0]]), INPUT, "input 'x': expected float32[batch, 3], got float32[1, 1]"),
    ),
    *called("Model", "get_inputs", (lambda m: m.get_inputs(0), TypeError, "positional argument")),
    *called("Model", "get_outputs", (lambda m: m.get_outputs(0), TypeError, "positional argument")),
    *called(
        "Model", "resize",
        (lambda m: m.resize(), TypeError, "missing 2 required positional arguments"),
        (lambda m: m.resize([[2, 3]]), TypeError, "missing 1 required positional"),
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
        "Model", "get_model_info",
        (None, TypeError, "key must be str"), (1, TypeError, "key must be str"), calls=True,
    ),
    *rows(
        "Model", "update_weights",
        (None, TypeError, "weights must be list, but got"),
        ([None], TypeError, "weight must be list, but got"),
        ([[X]], TypeError, "weights element must be Tensor, but got"), calls=True,
    ),
    *rows("Model", "inputs", ((), AttributeError, READ_ONLY)),
    *rows("Model", "outputs", ((), AttributeError, READ_ONLY)),
    *called("Model", "summary", (lambda m: m.summary("cpu"), TypeError, "positional argument")),
    *rows("Model", "metadata", ({}, AttributeError, READ_ONLY)),
    *rows("Model", "placement", ([], AttributeError, READ_ONLY)),
    *rows("Model", "model_path_", ("m.onnx", AttributeError, READ_ONLY)),
    *rows("Model", "provider", ("ge", AttributeError, READ_ONLY)),
    *rows("Model", "lora_name_map", ({}, AttributeError, READ_ONLY)),
    *called("Model", "memory", (lambda m: m.memory("cpu"), TypeError, "positional argument")),
    *called("Model", "profile", (lambda m: m.profile([X], "2"), TypeError, "predicts must be int")),
    *called(
        "Model", "predict_async",
        (lambda m: asyncio.run(m.predict_async(5)), TypeError, "inputs must be list or tuple"),
        (lambda m: asyncio.run(m.predict_async([Y[0]])), INPUT, "expected float32[batch, 3]"),
        (lambda m: asyncio.run(m.predict_async([X], timeout_s="1")), TypeError, "must be a number"),
        (lambda m: asyncio.run(m.predict_async([X], cancel=1)), TypeError, "cancel must be Cancel"),
    ),
    *called("Model", "close", (lambda m: m.close(1), TypeError, "positional argument")),
    *called("Model", "__enter__", (lambda m: m.__enter__(1), TypeError, "positional argument")),
    *called("Model", "__str__", (lambda m: m.__str__(1), TypeError, "")),
]  # fmt: skip

TENSOR = [
    *rows("Tensor", "name", (1, TypeError, "name must be str"), (None, TypeError, "name must be")),
    *rows("Tensor", "dtype", (1, TypeError, "dtype must be DataType"),
          ("float32", TypeError, "dtype must be"), (np.float32, TypeError, "dtype must be")),
    *rows("Tensor", "shape", (2, TypeError, "shape must be list or tuple"),
          (None, TypeError, "shape must be list"), ([2, "3"], TypeError, "shape element must be"),
          ([2.0, 3], TypeError, "shape element must be int"), (X, TypeError, "shape must be")),
    *rows("Tensor", "format", (0, TypeError, "format must be Format"),
          ("NCHW", TypeError, "format must be Format"), (DataType.INT8, TypeError, "format must")),
    *rows("Tensor", "element_num", (6, AttributeError, READ_ONLY)),
    *rows("Tensor", "data_size", (24, AttributeError, READ_ONLY)),
    *rows("Tensor", "device", ("gpu:0", AttributeError, READ_ONLY)),
    *called("Tensor", "numpy", (lambda t: t.numpy(np.float32), TypeError, "positional argument")),
    *called("Tensor", "get_data_to_numpy",
            (lambda t: t.get_data_to_numpy(np.float32), TypeError, "positional argument")),
    *rows(
        "Tensor", "set_data_from_numpy",
        (None, TypeError, "numpy_obj must be numpy.ndarray"),
        ([[1.0]], TypeError, "numpy_obj must be numpy.ndarray"),
        (Tensor(X), TypeError, "numpy_obj must be numpy.ndarray"),
        (X.astype("f8"), RuntimeError, "data type not equal! Numpy type: "),
        (X.astype("datetime64[s]"), TypeError, "Unsupported numpy dtype value"),
        (X[:1], RuntimeError, "data size not equal! Numpy size: 12, Tensor size: 24"),
        calls=True,
    ),
    *called(
        "Tensor", "__init__",
        (lambda t: Tensor([1.0]), TypeError, "tensor must be MindSpore Lite's Tensor._tensor or"),
        (lambda t: Tensor(t, shape=[3, 2]), TypeError, "user set shape is not equal"),
        (lambda t: Tensor(t, dtype=DataType.INT8), TypeError, "user set dtype is not equal"),
        (lambda t: Tensor(X, [3, 2]), TypeError, "user set shape is not equal numpy shape"),
        (lambda t: Tensor(X, None, DataType.INT8), TypeError, "user set dtype is not equal"),
        (lambda t: Tensor(shape=2), TypeError, "shape must be list or tuple"),
        (lambda t: Tensor(shape=[2], dtype="float32"), TypeError, "dtype must be DataType"),
        (lambda t: Tensor(X, device=0), TypeError, "device must be str"),
    ),
]  # fmt: skip


def counts(name: str, text: str, prefix: str = "") -> list[Row]:
    return rows(
        "Context", name,
        ("1", TypeError, f"{text} must be int"), (1.0, TypeError, f"{text} must be int"),
        (None, TypeError, f"{text} must be int"),
        (-1, ValueError, f"{prefix}{text} must be a non-negative int."),
    )  # fmt: skip


def words(name: str, text: str) -> list[Row]:
    return rows("Context", name, *[(value, TypeError, text) for value in (1, None, [])])


def choices(name: str, text: str) -> list[Row]:
    return [*words(name, text), *rows("Context", name, ("fp8", ValueError, f"{text} must be in ["))]


CONTEXT = [
    *rows(
        "Context", "target",
        ("cpu", TypeError, "target must be list"), (("cpu",), TypeError, "target must be list"),
        (5, TypeError, "target must be list"), ([5], TypeError, "at index 0"),
        (np.array(["cpu", "gpu"]), TypeError, "target must be list"),
        (["cpu", None], TypeError, "target element must be str"),
        (["tpu"], ValueError, "target elements must be in ['cpu', 'gpu', 'ascend'], but got tpu."),
    ),
    *rows("Context", "cpu", (None, TypeError, "cpu must be CpuSettings")),
    *rows("Context", "gpu", ("gpu", TypeError, "gpu must be GpuSettings")),
    *rows("Context", "ascend", (Context().gpu, TypeError, "ascend must be AscendSettings")),
    *rows("Context", "parallel", ({}, TypeError, "parallel must be ParallelSettings")),
    *words("group_info_file", "group_info_file must be str"),
    *rows("Context", "extensions",
          (["trace"], TypeError, "extensions must be dict"), (None, TypeError, "must be dict"),
          ({"trace": "port=1"}, TypeError, "options of trace must be dict"),
          ({1: {}}, TypeError, "extensions' name must be str"),
          ({"trace": {1: "a"}}, TypeError, "trace's option must be str")),
    *choices("cpu.precision_mode", "cpu_precision_mode"),
    *counts("cpu.thread_num", "cpu_thread_num"),
    *counts("cpu.inter_op_parallel_num", "cpu_inter_op_parallel_num"),
    *rows("Context", "cpu.thread_affinity_mode",
          ("1", TypeError, "cpu_thread_affinity_mode must be int")),
    *rows("Context", "cpu.thread_affinity_core_list",
          (1, TypeError, "cpu_thread_affinity_core_list must be list"),
          ((1,), TypeError, "must be list"), ([0, "1"], TypeError, "int, but got <class 'str'>")),
    *choices("gpu.precision_mode", "gpu_precision_mode"),
    *counts("gpu.device_id", "gpu_device_id"),
    *words("gpu.provider", "gpu_provider must be str"),
    *rows("Context", "gpu.rank_id", (1, AttributeError, READ_ONLY)),
    *rows("Context", "gpu.group_size", (1, AttributeError, READ_ONLY)),
    *choices("ascend.precision_mode", "ascend_precision_mode"),
    *counts("ascend.device_id", "ascend_device_id"),
    *counts("ascend.rank_id", "ascend_rank_id"),
    *words("ascend.provider", "ascend_provider must be str"),
    *counts("parallel.workers_num", "workers_num", "Set parallel failed, "),
    *rows("Context", "parallel.config_info",
          ([], TypeError, "config_info must be dict"),
          ({1: {}}, TypeError, "config_info_key must be str"),
          ({"a": 1}, TypeError, "config_info_value must be dict"),
          ({"a": {"b": 1}}, TypeError, "config_info_value_value must be str")),
    *rows("Context", "parallel.config_path", (1, TypeError, "config_path must be str"),
          ("nowhere", ValueError, "Set parallel failed, config_path does not exist!")),
    *rows("Context", "parallel.device_ids", (1, TypeError, "device_ids must be list"),
          (["1"], TypeError, "device_ids element must be int"),
          ([0, -1], ValueError, "Set parallel failed, device_ids contain a negative number.")),
]  # fmt: skip

CONVERTER = [
    *[
        row
        for name in ("decrypt_key", "encrypt_key")
        for row in (
            *rows("Converter", name, (None, TypeError, f"{name} must be str")),
            *called("Converter", name,
                    (lambda c, name=name: getattr(c, name), TypeError, f"{name} is write-only.")),
        )
    ],
    *[
        row
        for name in ("enable_encryption", "infer", "weight_fp16")
        for row in rows("Converter", name, (1, TypeError, f"{name} must be bool"),
                        ("on", TypeError, f"{name} must be bool"))
    ],
    *[
        row
        for name in ("input_data_type", "output_data_type")
        for row in rows("Converter", name, ("FLOAT32", TypeError, f"{name} must be DataType"),
                        (DataType.INT64, ValueError, f"{name} must be in [DataType.FLOAT32, "))
    ],
    *[
        row
        for name in ("device_id", "rank_id")
        for row in rows("Converter", name, ("0", TypeError, f"{name} must be int"),
                        (-1, ValueError, f"{name} must be a non-negative int."))
    ],
    *rows("Converter", "decrypt_mode", ("AES", ValueError, "decrypt_mode must be in [AES-GCM, AES"),
          (None, TypeError, "decrypt_mode must be str")),
    *rows("Converter", "device", ("cpu", ValueError, "device must be in [Ascend]"),
          (["Ascend"], TypeError, "device must be str")),
    *rows("Converter", "input_format", ("NHWC", TypeError, "input_format must be Format"),
          (engine.Format.NC, ValueError, "input_format must be in [Format.NCHW, Format.NHWC]")),
    *rows("Converter", "input_shape", ("x:1,3", TypeError, "input_shape must be dict"),
          ({"x": X}, TypeError, "input_shape value must be list"),
          ({"x": [1.0]}, TypeError, "input_shape value's element must be int")),
    *rows("Converter", "optimize", ("O3", ValueError, "optimize must be 'none', 'general', "),
          (3, TypeError, "optimize must be str")),
    *rows("Converter", "save_type", ("MINDIR", TypeError, "save_type must be ModelType")),
    *rows("Converter", "report", (None, AttributeError, READ_ONLY)),
    *called(
        "Converter", "set_config_info",
        (lambda c: c.set_config_info(1, {}), TypeError, "section must be str"),
        (lambda c: c.set_config_info("a", "b"), TypeError, "config_info must be dict"),
        (lambda c: c.set_config_info("a", {"b": 1}), TypeError, "config_info val must be str"),
    ),
    *called("Converter", "get_config_info",
            (lambda c: c.get_config_info("a"), TypeError, "positional argument")),
    *called(
        "Converter", "convert",
        (lambda c: c.convert(), TypeError, "missing 3 required positional arguments"),
        (lambda c: c.convert("m", FmkType.ONNX, "o"), TypeError, "fmk_type must be FmkType"),
        (lambda c: c.convert(FmkType.ONNX, b"m", "o"), TypeError, "model_file must be str"),
        (lambda c: c.convert(FmkType.ONNX, "m\0", "o"), RuntimeError, "model_file does not exist!"),
        (lambda c: c.convert(FmkType.ONNX, ".", "o"), RuntimeError, "without a saved_model.pb"),
        (lambda c: c.convert(FmkType.ONNX, "m", "o", infer=True), TypeError, "unexpected keyword"),
    ),
]  # fmt: skip

ARGUMENTS: Sequence[Row] = [*MODEL, *TENSOR, *CONTEXT, *CONVERTER]


def test_every_method_and_setting_has_rows() -> None:
    rowed = {name: set[str]() for name in ("Model", "Tensor", "Context", "Converter")}
    for row in ARGUMENTS:
        rowed[row.of].add(row.name)
    assert rowed["Model"] == set(USES)
    assert rowed["Tensor"] == {n for n in vars(Tensor) if not n.startswith("_")} | {"__init__"}
    assert rowed["Converter"] == {n for n in vars(Converter) if not n.startswith("_")}
    names = {name for name in vars(Context) if not name.startswith("_")}
    for group in ("cpu", "gpu", "ascend", "parallel"):
        kind = type(getattr(Context(), group))
        names |= {f"{group}.{name}" for name in vars(kind) if not name.startswith("_")}
    assert rowed["Context"] == names


@pytest.mark.parametrize("row", ARGUMENTS, ids=lambda row: row.label.split(" at 0x")[0])
def test_a_wrong_argument_is_refused_and_breaks_nothing(row: Row, path: str) -> None:
    assert row.verdict(path) == ""


def test_it_is_so_in_another_thread_too(path: str) -> None:
    found: list[str] = []
    in_a_thread(lambda: found.extend(row.label for row in ARGUMENTS if row.verdict(path)))
    assert found == []


def test_one_model_survives_all_of_it(path: str) -> None:
    model = build(path)
    for row in MODEL:
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
