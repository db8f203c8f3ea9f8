"""Weights on the device once for several models and processes, by CUDA IPC; emulated."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import engine
import engine_gpu_trt as plugin
from engine import Model, ModelGroup, ModelGroupFlag, ModelType
from engine.errors import BackendUnavailable, CompiledFormError, ModelError
from engine.types import Device, DType, SharedWeights
from engine_gpu_trt.lending import Lender, Loan
from engine_gpu_trt.outside import take_out
from engine_testing import models
from engine_testing.level import Trial

ROWS, COLUMNS = 256, 64
WEIGHT = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
X = np.random.default_rng(1).standard_normal((2, ROWS)).astype(np.float32)


def product(path: Path, factor: float, weight: Any = WEIGHT) -> Path:
    """A model of one large weight, that of all such models, and a small one of its own."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("Mul", ["xw", "factor"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, path.stem,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", ROWS])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", COLUMNS])],
        [numpy_helper.from_array(weight, "w"),
         numpy_helper.from_array(np.float32([factor]), "factor")],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, ir_version=9, opset_imports=opsets), path)
    return path


def context() -> engine.Context:
    made = engine.Context()
    made.target = ["gpu"]
    return made


def used() -> int:
    from emulated_gpu import live

    return live().get("device bytes", 0)


def expect(model: Model, factor: float) -> None:
    [y] = model.predict([X])
    np.testing.assert_allclose(y.get_data_to_numpy(), factor * (X @ WEIGHT), rtol=1e-4)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ENGINE_CACHE_DIR", str(tmp_path / "cache"))


# ------------------------------------------------------------------------------------ one process


def test_a_group_has_equal_weights_on_the_device_once(tmp_path: Path) -> None:
    group = ModelGroup(ModelGroupFlag.SHARE_WEIGHT)
    group_models = [Model(), Model()]
    group.add_model(group_models)
    taken = [used()]
    for number, model in enumerate(group_models):
        path = product(tmp_path / f"part{number}.onnx", number + 2)
        model.build_from_file(str(path), ModelType.MINDIR, context())
        taken.append(used())
    first, second = np.diff(taken)
    assert first >= WEIGHT.nbytes
    assert second < WEIGHT.nbytes // 2, "the large weight is not there twice"
    for number, model in enumerate(group_models):
        expect(model, number + 2)
        assert model.memory().shared_bytes >= WEIGHT.nbytes
    group_models[0].close()
    expect(group_models[1], 3)  # what the first one brought is still there
    group_models[1].close()
    assert used() == 0


def test_models_of_no_group_keep_their_weights_inside(tmp_path: Path) -> None:
    path = product(tmp_path / "alone.onnx", 2)
    with engine.load(str(path), "gpu") as one, engine.load(str(path), "gpu") as other:
        assert used() >= 2 * WEIGHT.nbytes
        assert one.memory().shared_bytes == other.memory().shared_bytes == 0


@pytest.mark.parametrize("precision", ["enforce_fp32", "preferred_fp16"])
def test_a_form_with_weights_outside_is_loaded_again(
    trial: Trial, tmp_path: Path, precision: str
) -> None:
    form = tmp_path / "form"
    form.mkdir()
    source = trial.source(lambda folder: product(folder / "formed.onnx", 2))
    wish = {"lend": "machine", "precision": precision}
    cold = trial.open(source, X, save_to=form, **wish)
    warm = trial.open(replace(source, compiled=form), X, **wish)
    for running in (cold, warm):
        np.testing.assert_allclose(running.predict(X)[0], 2 * (X @ WEIGHT), rtol=1e-1)
        report = running.executable.memory()
        nbytes = WEIGHT.nbytes if precision == "enforce_fp32" else WEIGHT.nbytes // 2
        assert nbytes <= report.weights_bytes < nbytes + 1000
    np.testing.assert_array_equal(cold.predict(X)[0], warm.predict(X)[0])


def test_a_form_whose_weights_were_changed_is_refused(trial: Trial, tmp_path: Path) -> None:
    form = tmp_path / "form"
    form.mkdir()
    source = trial.source(lambda folder: product(folder / "damaged.onnx", 2))
    trial.compile(source, X, save_to=form, lend="machine").close()
    data = bytearray((form / "weights.bin").read_bytes())
    data[1000] ^= 1
    (form / "weights.bin").write_bytes(data)
    with pytest.raises(CompiledFormError, match="not what was written"):
        trial.compile(replace(source, compiled=form), X, lend="machine")
    (form / "weights.bin").write_bytes(data[:-1])
    with pytest.raises(CompiledFormError, match="ends before weight 'w' does"):
        trial.compile(replace(source, compiled=form), X, lend="machine")


def test_only_weights_that_products_and_look_ups_read_are_taken_out(
    trial: Trial, model: Callable[..., Any]
) -> None:
    large = np.ones((128, 64), np.float32)
    nodes = [
        ("MatMul", ["x", "alone"], ["a"]),
        ("MatMul", ["x", "twice"], ["b"]),
        ("Add", ["b", "twice"], ["c"]),
        ("Gather", ["table", "i"], ["d"]),
        ("MatMul", ["x", "given"], ["e"]),
        ("MatMul", ["small", "x"], ["f"]),
    ]
    constants = dict.fromkeys(("alone", "twice", "table", "given"), large)
    outputs: list[Any] = [(name, None) for name in "acdef"]
    maker = model(
        nodes, [("x", [128, 128]), ("i", [2], DType.INT64)], [*outputs, ("given", None)],
        {**constants, "small": np.ones((2, 128), np.float32)},
    )  # fmt: skip
    source = trial.source(maker)
    _, found = take_out(source, b"", ())
    assert set(found) == {"alone", "table"}
    assert set(take_out(source, b"", ("alone",))[1]) == {"table"}


def test_weights_in_files_of_their_own_are_taken_out(trial: Trial, tmp_path: Path) -> None:
    whole = onnx.load(product(tmp_path / "external.onnx", 2))
    onnx.save(whole, tmp_path / "external.onnx", save_as_external_data=True, size_threshold=0)
    source = trial.source(lambda folder: tmp_path / "external.onnx")
    running = trial.open(source, X, lend="machine")
    np.testing.assert_allclose(running.predict(X)[0], 2 * (X @ WEIGHT), rtol=1e-4)
    assert running.executable.memory().weights_bytes >= WEIGHT.nbytes


def test_a_model_that_was_not_compiled_for_it_is_not_lent(trial: Trial) -> None:
    executable: Any = trial.compile(models.affine)
    with pytest.raises(BackendUnavailable, match="compile the model to be lent"):
        plugin.engine_share_weights(executable)


def test_a_model_without_large_weights_lends_nothing_and_says_so(
    trial: Trial, caplog: pytest.LogCaptureFixture
) -> None:
    executable: Any = trial.compile(models.affine, lend="machine")
    shared = plugin.engine_share_weights(executable)
    assert (shared.nbytes, shared.owner) == (0, None)
    assert "bytes of weights are not shared: they are inside the engine" in caplog.text
    borrower: Any = trial.open(models.affine, shared_weights=shared)
    x = np.ones((1, 3), np.float32)
    np.testing.assert_array_equal(borrower.predict(x)[0], 2 * x + 1)
    assert borrower.executable.memory().shared_bytes == 0


def test_a_loan_in_the_same_process_is_the_same_memory(trial: Trial, tmp_path: Path) -> None:
    source = trial.source(lambda folder: product(folder / "same.onnx", 2))
    executable: Any = trial.compile(source, X, lend="machine")
    shared = plugin.engine_share_weights(executable)
    before = used()
    borrower = trial.context(trial.compile(source, X, shared_weights=shared))
    taken = used() - before - borrower.executable.memory().workspace_bytes
    assert taken < WEIGHT.nbytes // 2
    np.testing.assert_allclose(borrower.predict(X)[0], 2 * (X @ WEIGHT), rtol=1e-4)
    shared.owner.close()  # type: ignore[attr-defined]
    shared.owner.close()  # type: ignore[attr-defined]


def test_a_handle_that_cuda_does_not_give_is_an_error(trial: Trial) -> None:
    from emulated_gpu import fail

    source = trial.source(lambda folder: product(folder / "refused.onnx", 2))
    executable: Any = trial.compile(source, X, lend="machine")
    with fail("mem_get_ipc_handle"), pytest.raises(BackendUnavailable, match="cannot be lent"):
        plugin.engine_share_weights(executable)


# -------------------------------------------------------------------------------- several processes

LENDER = """
import sys
from pathlib import Path
from contextlib import ExitStack
from engine.backends import open_backend
from engine_testing.level import Trial
from engine.types import ShapeRange
import engine_gpu_trt as plugin
import numpy as np

with ExitStack() as closing:
    trial = Trial(open_backend("gpu_trt"), Path(sys.argv[2]), closing)
    shapes = {"x": ShapeRange((1, 256), (2, 256), (8, 256))}
    executable = trial.compile(lambda folder: Path(sys.argv[1]), shapes=shapes, lend="machine")
    shared = plugin.engine_share_weights(executable)
    print(shared.token.decode(), flush=True)
    while line := sys.stdin.readline().strip():
        if line == "close":
            shared.owner.close()
            executable.close()
        print("done", flush=True)
"""


class Other:
    """A process that lends the weights of a model."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", LENDER, str(path), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        token = self._line()
        self.shared = SharedWeights(
            backend="gpu_trt",
            device=Device("gpu"),
            nbytes=WEIGHT.nbytes,
            token=token.encode(),
        )

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        assert self._line() == "done"

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def lender(tmp_path: Path) -> Iterator[Other]:
    other = Other(product(tmp_path / "lent.onnx", 2), tmp_path)
    yield other
    other.end()


def borrowed(trial: Trial, tmp_path: Path, lender: Other) -> Any:
    return trial.open(
        trial.source(lambda folder: tmp_path / "lent.onnx"), X, shared_weights=lender.shared
    )


def test_a_borrower_copies_no_weight_and_closes_what_it_opened(
    trial: Trial, tmp_path: Path, lender: Other
) -> None:
    from emulated_gpu import counting, live

    with counting() as counts:
        running = borrowed(trial, tmp_path, lender)
    assert counts["host to device"] == 0
    assert live()["opened allocations"] == 1
    np.testing.assert_allclose(running.predict(X)[0], 2 * (X @ WEIGHT), rtol=1e-4)
    report = running.executable.memory()
    assert report.shared_bytes == WEIGHT.nbytes
    assert report.weights_bytes < WEIGHT.nbytes
    running.context.close()
    running.executable.close()
    assert "opened allocations" not in live()


def test_a_borrower_whose_lender_closed_its_model_is_told(
    trial: Trial, tmp_path: Path, lender: Other
) -> None:
    running = borrowed(trial, tmp_path, lender)
    running.predict(X)
    lender.tell("close")
    pid = lender.process.pid
    with pytest.raises(BackendUnavailable, match=f"process {pid} has closed the model that lent"):
        running.predict(X)
    with pytest.raises(BackendUnavailable, match=f"process {pid} has closed the model"):
        borrowed(trial, tmp_path, lender)


def test_a_borrower_whose_lender_died_is_told(trial: Trial, tmp_path: Path, lender: Other) -> None:
    running = borrowed(trial, tmp_path, lender)
    running.predict(X)
    lender.process.send_signal(signal.SIGKILL)
    lender.process.wait()
    with pytest.raises(BackendUnavailable, match=f"process {lender.process.pid}, which lent them"):
        running.predict(X)
    with pytest.raises(BackendUnavailable, match="has ended"):
        borrowed(trial, tmp_path, lender)


def test_a_model_of_other_weights_borrows_nothing(
    trial: Trial, tmp_path: Path, lender: Other
) -> None:
    product(tmp_path / "lent.onnx", 2, WEIGHT + 1)
    with pytest.raises(ModelError, match=r"lacks 1 of the model's 1 shared weights, 'w'"):
        borrowed(trial, tmp_path, lender)


SLAVE = """
import sys
import numpy as np
import engine as mslite

context = mslite.Context()
context.target = ["gpu"]
model = mslite.Model()
print(model.get_model_info("current_pid"), flush=True)
handle = sys.stdin.readline().strip()
config = {"gpu_context": {"shareable_weight_mem_handle": handle}}
model.build_from_file(sys.argv[1], mslite.ModelType.MINDIR, context, config_dict=config)

from emulated_gpu import MACHINE, live, violations

print(MACHINE.counted["host to device"], model.memory().shared_bytes, flush=True)
[y] = model.predict([np.load(sys.argv[2])])
np.save(sys.argv[3], y.get_data_to_numpy())
model.close()
kept = {"primary contexts"}
assert set(live()) <= kept, live()
assert not violations()
"""


@pytest.mark.slow
def test_the_tutorials_master_and_slave_share_the_devices_memory(tmp_path: Path) -> None:
    path = product(tmp_path / "lent.onnx", 2)
    np.save(tmp_path / "x.npy", X)
    words = [str(path), str(tmp_path / "x.npy"), str(tmp_path / "y.npy")]
    child = subprocess.Popen(
        [sys.executable, "-c", SLAVE, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    pid = child.stdout.readline().strip()
    config = {"gpu_context": {"shareable_weight_pid_list": pid}}
    master = Model()
    master.build_from_file(str(path), ModelType.MINDIR, context(), config_dict=config)
    handle = master.get_model_info("shareable_weight_mem_handle")
    out, errors = child.communicate(f"{handle}\n", timeout=240)
    assert child.returncode == 0, errors
    copied, shared = map(int, out.split()[-2:])
    assert copied == 0, "bytes that went to the device while the slave was built"
    assert shared >= WEIGHT.nbytes
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), 2 * (X @ WEIGHT), rtol=1e-4)
    expect(master, 2)
    master.close()
    assert used() == 0


def test_a_forked_child_that_ends_ends_no_loan() -> None:
    loan = Loan(Mock(), b"handle")
    lender = Lender(os.getpid(), loan.descriptor, loan.mark)
    child = os.fork()
    if not child:
        loan.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    lender.check()
    other = os.dup(loan.descriptor)
    loan.close()
    with pytest.raises(BackendUnavailable, match="has closed the model that lent them"):
        Lender(os.getpid(), other, loan.mark).check()
