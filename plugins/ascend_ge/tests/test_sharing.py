"""Weights on the device once for several models, and for several processes. Emulated."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import engine
from engine import Model, ModelGroup, ModelGroupFlag, ModelType
from engine.errors import BackendUnavailable
from engine.types import Capability, ShapeRange
from engine_ascend_ge import lending
from engine_testing import making
from engine_testing.shared_memory import left_since, names

ROWS, COLUMNS = 256, 64
WEIGHT = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
X = np.random.default_rng(1).standard_normal((2, ROWS)).astype(np.float32)


def product(path: Path, factor: float) -> Path:
    """A model of one large weight, that of all such models, and a small one of its own."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("Mul", ["xw", "factor"], ["y"]),
    ]
    ends = [making.tensor("x", [2, ROWS])], [making.tensor("y", [2, COLUMNS])]
    constants = {"w": WEIGHT, "factor": making.floats([factor])}
    return making.write(path.parent, path.stem, *ends, nodes, constants)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ENGINE_CACHE_DIR", str(tmp_path / "cache"))


def test_a_group_has_equal_weights_on_the_device_once(
    machine: Any, ascend: engine.Context, tmp_path: Path
) -> None:
    group, pair, used = ModelGroup(ModelGroupFlag.SHARE_WEIGHT), (Model(), Model()), [0]
    group.add_model(list(pair))
    for factor, model in enumerate(pair, 2):
        path = product(tmp_path / f"part{factor}.onnx", factor)
        model.build_from_file(str(path), ModelType.MINDIR, ascend)
        used.append(machine.memory.used_bytes(0))
    first, second = np.diff(used)
    assert first >= WEIGHT.nbytes
    assert second < first - WEIGHT.nbytes // 2, "the large weight is not there twice"
    for factor, model in enumerate(pair, 2):  # what the first one brought outlives it
        np.testing.assert_allclose(model(x=X)["y"], factor * (X @ WEIGHT), rtol=1e-4)
        model.close()
    assert machine.memory.used_bytes(0) == 0


def test_models_of_no_group_keep_their_weights_to_themselves(machine: Any, tmp_path: Path) -> None:
    path = product(tmp_path / "alone.onnx", 2)
    with engine.load(path, "ascend") as one, engine.load(path, "ascend") as other:
        assert machine.memory.used_bytes(0) >= 2 * WEIGHT.nbytes
        assert one.memory().shared_bytes == other.memory().shared_bytes == 0


SLAVE = """
import sys
import numpy as np
import engine as mslite

context = mslite.Context()
context.target = ["ascend"]
model = mslite.Model()
print(model.get_model_info("current_pid"), flush=True)
handle = sys.stdin.readline().strip()
config = {"ascend_context": {"shareable_weight_mem_handle": handle}}
model.build_from_file(sys.argv[1], mslite.ModelType.MINDIR, context, config_dict=config)

from emulated_ascend import machine

print(machine.copied["to device"], flush=True)
[y] = model.predict([np.load(sys.argv[2])])
np.save(sys.argv[3], y.get_data_to_numpy())
model.close()
assert not machine.live(), machine.live()
assert not machine.faults, machine.faults
"""


def slave(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SLAVE, *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_slave_uses_the_masters_memory_and_copies_no_weight(
    machine: Any, ascend: engine.Context, tmp_path: Path
) -> None:
    path, before = product(tmp_path / "lent.onnx", 2), names()
    np.save(tmp_path / "x.npy", X)
    child = slave(path, tmp_path / "x.npy", tmp_path / "y.npy")
    assert child.stdout is not None
    pid = child.stdout.readline().strip()
    config = {"ascend_context": {"shareable_weight_pid_list": pid}}
    master = Model()
    master.build_from_file(str(path), ModelType.MINDIR, ascend, config_dict=config)
    handle = master.get_model_info("shareable_weight_mem_handle")
    out, errors = child.communicate(f"{handle}\n", timeout=60)
    assert child.returncode == 0, errors
    assert int(out.split()[0]) == 0, "bytes that went to the device while the slave was built"
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), 2 * (X @ WEIGHT), rtol=1e-4)
    master.close()
    assert machine.live() == {}
    assert not left_since(before)


def lent(build: Any, backend: Any, path: Path, pids: list[int]) -> Any:
    executable = build(path, lend="machine", shapes={"x": ShapeRange(*[(2, ROWS)] * 3)})
    return backend.bind("engine_share_weights")(executable, pids)


@pytest.mark.parametrize("is_listed", [True, False])
def test_the_driver_lets_listed_processes_in_and_no_other(
    backend: Any, build: Any, predict: Any, tmp_path: Path, is_listed: bool
) -> None:
    path = product(tmp_path / "lent.onnx", 3)
    shared = lent(build, backend, path, [os.getpid() if is_listed else 1])
    lending._own.clear()  # as if it were another process's
    if is_listed:
        borrower = build(path, shared_weights=shared)
        [y] = predict(borrower.open_context(), X)
        np.testing.assert_allclose(y, 3 * (X @ WEIGHT), rtol=1e-4)
        assert borrower.memory().shared_bytes >= WEIGHT.nbytes
        assert borrower.memory().weights_bytes == 0
        borrower.close()
    else:
        message = rf"ACL_ERROR_RT_NO_PERMISSION 207006.*process {os.getpid()} is not in the list"
        with pytest.raises(BackendUnavailable, match=message):
            build(path, shared_weights=shared)
    shared.owner.close()
    shared.owner.close()


def test_within_one_process_what_is_lent_is_used_as_it_is(
    machine: Any, backend: Any, build: Any, predict: Any, tmp_path: Path
) -> None:
    path = product(tmp_path / "lent.onnx", 3)
    shared = lent(build, backend, path, [os.getpid()])
    used = machine.memory.used_bytes(0)
    borrower = build(path, shared_weights=shared)
    assert machine.memory.used_bytes(0) - used < WEIGHT.nbytes
    shared.owner.close()
    [y] = predict(borrower.open_context(), X)  # the memory is there as long as one needs it
    np.testing.assert_allclose(y, 3 * (X @ WEIGHT), rtol=1e-4)
    assert machine.calls["rt.ipc_mem_import_by_key"] == 0


def test_weights_of_another_model_are_refused(backend: Any, build: Any, tmp_path: Path) -> None:
    shared = lent(build, backend, product(tmp_path / "lent.onnx", 3), [os.getpid()])
    with pytest.raises(engine.ModelError, match="what is lent lacks 1 of the model's 2 weights"):
        build(product(tmp_path / "other.onnx", 4), shared_weights=shared)
    shared.owner.close()


def test_an_om_file_has_nothing_to_lend(backend: Any, affine: Any) -> None:
    with pytest.raises(BackendUnavailable, match="its weights are inside"):
        backend.bind("engine_share_weights")(affine(lend="machine"), [1])


def test_every_call_of_the_loan_may_fail_and_nothing_stays(
    machine: Any, backend: Any, build: Any, tmp_path: Path
) -> None:
    path = product(tmp_path / "lent.onnx", 3)
    for name in (
        "rt.ipc_mem_get_export_key", "rt.ipc_mem_set_import_pid", "mdl.load_with_config",
        "mdl.set_config_opt", "mdl.create_config_handle", "aclmdlSetExternalWeightAddress",
    ):  # fmt: skip
        machine.fail(name, 500000)
        with pytest.raises((BackendUnavailable, engine.ModelError)):
            lent(build, backend, path, [os.getpid()])
        machine.heal()


def test_an_older_cann_cannot_share(machine: Any) -> None:
    from emulated_ascend import libraries

    from engine_ascend_ge import devices

    libraries.missing.add("libascendcl.so")
    [first, _] = devices.find().found
    assert "no aclmdlSetExternalWeightAddress" in first.lacks[Capability.SHARE_WEIGHTS]
