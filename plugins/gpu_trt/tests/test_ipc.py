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
from onnx import helper

import engine
import engine_gpu_trt as plugin
from engine import Model, ModelGroup, ModelGroupFlag, ModelType
from engine.errors import BackendUnavailable, CompiledFormError, ModelError
from engine.types import Device, DType, SharedWeights
from engine_gpu_trt import lending
from engine_gpu_trt.outside import take_out
from engine_testing import making, models
from engine_testing.level import Running, Trial

ROWS, COLUMNS = 256, 64
WEIGHT = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
X = np.random.default_rng(1).standard_normal((2, ROWS)).astype(np.float32)


def product(path: Path, factor: float, weight: Any = WEIGHT) -> Path:
    """A model of one large weight, that of all such models, and a small one of its own."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("Mul", ["xw", "factor"], ["y"]),
    ]
    ends = [making.tensor("x", ["n", ROWS])], [making.tensor("y", ["n", COLUMNS])]
    constants = {"w": weight, "factor": np.float32([factor])}
    return making.write(path.parent, path.stem, *ends, nodes, constants)


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
    trial: Trial, form: Path, precision: str
) -> None:
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


def test_a_form_whose_weights_were_changed_is_refused(trial: Trial, form: Path) -> None:
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


def test_a_handle_that_cuda_does_not_give_is_an_error(trial: Trial, emulated: Any) -> None:
    source = trial.source(lambda folder: product(folder / "refused.onnx", 2))
    executable: Any = trial.compile(source, X, lend="machine")
    with (
        emulated.fail("mem_get_ipc_handle"),
        pytest.raises(BackendUnavailable, match="cannot be lent"),
    ):
        plugin.engine_share_weights(executable)


LENDER = """
import sys
from pathlib import Path
from contextlib import ExitStack
from engine.backends import open_backend
from engine_testing.level import Running, Trial
from engine.types import ShapeRange
import engine_gpu_trt as plugin

shapes = {"x": ShapeRange((1, 256), (2, 256), (8, 256))}
for line in sys.stdin:
    path = Path(line.strip())
    with ExitStack() as closing:
        trial = Trial(open_backend("gpu_trt"), path.parent, closing)
        executable = trial.compile(lambda folder: path, shapes=shapes, lend="machine")
        shared = plugin.engine_share_weights(executable)
        print(shared.token.decode(), flush=True)
        sys.stdin.readline()  # until it is to be closed
        shared.owner.close()
    print("closed", flush=True)
"""


class Lender:
    """A process that lends the weights of one model at a time."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", LENDER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.is_lending = False

    def lend(self, path: Path) -> SharedWeights:
        token = self._ask(str(path)).encode()
        self.is_lending = True
        device = Device("gpu")
        return SharedWeights(backend="gpu_trt", device=device, nbytes=WEIGHT.nbytes, token=token)

    def close(self) -> None:
        if self.is_lending:
            assert self._ask("close") == "closed"
        self.is_lending = False

    def _ask(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


@pytest.fixture(scope="module")
def process() -> Iterator[Lender]:
    lender = Lender()
    yield lender
    lender.process.kill()
    lender.process.communicate()


@pytest.fixture
def lender(process: Lender) -> Iterator[Lender]:
    yield process
    process.close()


@pytest.fixture
def borrow(trial: Trial, tmp_path: Path, lender: Lender) -> Callable[[], Running]:
    """Open the model whose weights the other process lends."""
    path = product(tmp_path / "lent.onnx", 2)
    shared = lender.lend(path)
    return lambda: trial.open(trial.source(lambda folder: path), X, shared_weights=shared)


def test_a_borrower_copies_no_weight_and_closes_what_it_opened(
    borrow: Callable[[], Running], emulated: Any
) -> None:
    with emulated.counting() as counts:
        running = borrow()
    assert counts["host to device"] == 0
    assert emulated.live()["opened allocations"] == 1
    np.testing.assert_allclose(running.predict(X)[0], 2 * (X @ WEIGHT), rtol=1e-4)
    report = running.executable.memory()
    assert report.shared_bytes == WEIGHT.nbytes
    assert report.weights_bytes < WEIGHT.nbytes
    running.context.close()
    running.executable.close()
    assert "opened allocations" not in emulated.live()


def test_a_borrower_whose_lender_closed_its_model_is_told(
    borrow: Callable[[], Running], lender: Lender
) -> None:
    running = borrow()
    running.predict(X)
    lender.close()
    pid = lender.process.pid
    with pytest.raises(BackendUnavailable, match=f"process {pid} has closed the model that lent"):
        running.predict(X)
    with pytest.raises(BackendUnavailable, match=f"process {pid} has closed the model"):
        borrow()


def test_a_model_of_other_weights_borrows_nothing(
    borrow: Callable[[], Running], tmp_path: Path
) -> None:
    product(tmp_path / "lent.onnx", 2, WEIGHT + 1)
    with pytest.raises(ModelError, match=r"lacks 1 of the model's 1 shared weights, 'w'"):
        borrow()


def test_a_borrower_whose_lender_died_is_told(
    borrow: Callable[[], Running], lender: Lender
) -> None:
    """It is the last that needs the lender."""
    running = borrow()
    running.predict(X)
    lender.process.send_signal(signal.SIGKILL)
    lender.process.wait()
    lender.is_lending = False
    with pytest.raises(BackendUnavailable, match=f"process {lender.process.pid}, which lent them"):
        running.predict(X)
    with pytest.raises(BackendUnavailable, match="has ended"):
        borrow()


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
    loan = lending.Loan(Mock(), b"handle")
    lender = lending.Lender(os.getpid(), loan.descriptor, loan.mark)
    child = os.fork()
    if not child:
        loan.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    lender.check()
    other = os.dup(loan.descriptor)
    loan.close()
    with pytest.raises(BackendUnavailable, match="has closed the model that lent them"):
        lending.Lender(os.getpid(), other, loan.mark).check()
