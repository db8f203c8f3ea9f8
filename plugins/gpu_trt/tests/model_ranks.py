"""A rank of a model in test_model_ranks.py: `model_ranks.py SCENARIO[,...] FOLDER [inside]`.

Collectives are nodes of the model, which the core runs on the device by NCCL (emulated), or, with
the third word, TensorRT inside its engine (emulated). Each line that a rank prints is JSON.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

import engine
from engine.distributed.ranks import _open
from engine.errors import CommunicatorError
from engine.types import DType
from engine_testing import making

RANK, RANKS = int(os.environ["ENGINE_RANK"]), int(os.environ["ENGINE_WORLD_SIZE"])
FOLDER = Path(sys.argv[2])
INSIDE = sys.argv[3:] == ["inside"]
IS_LAST = RANK == RANKS - 1
X = np.ones((2, 3), np.float32)


def tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def node(op: str, reads: str, writes: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, reads.split(), writes.split(), name=f"make {writes}", **attributes)


def together(op: str, reads: str, writes: str, **attributes: Any) -> onnx.NodeProto:
    made = node(op, reads, writes, **attributes)
    made.domain = "com.microsoft"
    return made


def load(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[Any]],
    outputs: Mapping[str, Sequence[Any]],
    constants: Mapping[str, Any] | None = None,
    dtype: DType = DType.FLOAT32,
) -> engine.Model:
    """Build a model on this rank's GPU; it has a file of its own for each rank."""
    ends = [
        [making.tensor(key, shape, dtype) for key, shape in side.items()]
        for side in (inputs, outputs)
    ]
    path = making.write(
        FOLDER, f"{name}{RANK}", *ends, nodes, dict(constants or {}), valid=False,
        domains={"com.microsoft": 1},
    )  # fmt: skip
    config = {"gpu_context": {"batch_range": "1~4~64", "dim_range": "1~4~64"}}
    if INSIDE:
        config["gpu_trt_context"] = {"in_graph_collectives": "on"}
    return engine.load(str(path), target="gpu", device_id=RANK, config=config)


def total(name: str = "total") -> engine.Model:
    """y = -(the sum of -x over the ranks); n is open where collectives are not inside."""
    nodes = [node("Neg", "x", "a"), together("AllReduce", "a", "b"), node("Neg", "b", "y")]
    rows = 2 if INSIDE else "n"
    return load(name, nodes, {"x": [rows, 3]}, {"y": [rows, 3]})


def left() -> dict[str, int]:
    """Return what is on the emulated device at the end, but for the contexts that stay."""
    try:
        from emulated_gpu import live, violations
    except ImportError:  # test_hardware.py runs `results` on real devices
        return {}

    gc.collect()
    assert violations() == []
    return {kind: count for kind, count in live().items() if kind != "primary contexts"}


def results() -> None:
    """Every kind of node, types, groups of ranks; tells where the collectives ran."""
    _kinds()
    for dtype in (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.INT32):
        _sum_of(dtype)
    _groups()
    _stages()
    tell(left=left())


def _of_rank(rank: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    """Return a rank's contribution: whole numbers, which all types here hold exactly."""
    return np.asarray((np.arange(16).reshape(4, 4) * (rank + 2)) % 5 + rank, dtype)


def _kinds() -> None:
    kinds = {
        "total": together("AllReduce", "neg", "p0"),
        "highest": together("AllReduce", "neg", "p1", reduction="max"),
        "mean": together("AllReduce", "neg", "p2", reduction="avg"),
        "rows": together("AllGather", "neg", "p3"),
        "columns": together("AllGather", "neg", "p4", axis=-1, group_size=RANKS),
        "scattered": together("ReduceScatter", "neg", "p5", reduction="sum"),
        "turned": together("AllToAll", "neg", "p6", split_axis=1, concat_axis=0),
        "first": together("Broadcast", "neg", "p7", root=0),
    }
    parts = [_of_rank(rank) for rank in range(RANKS)]
    rows, columns = slice(RANK * 4 // RANKS, (RANK + 1) * 4 // RANKS), 4 // RANKS
    turned = [part[:, columns * RANK : columns * (RANK + 1)] for part in parts]
    expected = {
        "total": sum(parts),
        "highest": np.minimum.reduce(parts),  # -max(-x)
        "mean": sum(parts) / np.float32(RANKS),
        "rows": np.concatenate(parts),
        "columns": np.concatenate(parts, 1),
        "scattered": sum(parts)[rows],  # type: ignore[index]
        "turned": np.concatenate(turned),
        "first": parts[0],
    }
    placed = _run_kinds(kinds, expected, together("Barrier", "neg", "met"))
    operators = ("AllReduce", "AllGather", "ReduceScatter", "Broadcast")
    tell(placed=[(op, device) for op, _, device in placed if op in operators])


def _run_kinds(
    kinds: Mapping[str, onnx.NodeProto], expected: Mapping[str, Any], *more: onnx.NodeProto
) -> list[tuple[str, str, str]]:
    """Run collectives on -x, each with its negated result; return operators, backends, devices."""
    nodes = [node("Neg", "x", "neg")]
    for number, (name, collective) in enumerate(kinds.items()):
        nodes += [collective, node("Neg", f"p{number}", name)]
    shapes = {name: [*np.shape(value)] for name, value in expected.items()}
    with load("kinds", [*nodes, *more], {"x": [4, 4]}, shapes) as model:
        for turn in range(3):
            found = model(x=_of_rank(RANK))
            for name, value in expected.items():
                np.testing.assert_array_equal(found[name], value, err_msg=f"{name} {turn}")
        return sorted({(node.op_type, node.backend, node.device) for node in model.placement})


def _sum_of(dtype: DType) -> None:
    nodes = [together("AllReduce", "x", "s"), node("Identity", "s", "y")]
    with load(f"sum_{dtype}", nodes, {"x": [4, 4]}, {"y": [4, 4]}, dtype=dtype) as model:
        found = model(x=_of_rank(RANK, dtype.numpy))["y"]
    assert found.dtype == dtype.numpy
    parts = [_of_rank(rank, np.float64) for rank in range(RANKS)]
    np.testing.assert_array_equal(np.asarray(found, np.float64), sum(parts))
    tell(summed=str(dtype), rounds=_rounds(dtype))


def _rounds(dtype: DType) -> bool:
    """A sum that the type cannot hold is rounded, as the type itself rounds it."""
    if dtype not in (DType.FLOAT16, DType.BFLOAT16) or RANKS != 2:
        return True
    ends = [np.full(3, value, dtype.numpy) for value in (1.0, 2.0**-12)]
    nodes = [together("AllReduce", "x", "s"), node("Identity", "s", "y")]
    with load(f"rounded_{dtype}", nodes, {"x": [3]}, {"y": [3]}, dtype=dtype) as model:
        found = model(x=ends[RANK])["y"]
    return bool((found == ends[0] + ends[1]).all())


def _groups() -> None:
    """A sum over each pair of ranks, then the highest of all."""
    if RANKS != 4:
        return
    pair = [0, 1] if RANK < 2 else [2, 3]
    nodes = [
        together("AllReduce", "x", "p", group=f"pair {pair}", group_ranks=pair),
        together("AllReduce", "p", "y", reduction="max"),
    ]
    with load("groups", nodes, {"x": ["n"]}, {"p": ["n"], "y": ["n"]}) as model:
        found = model(x=np.float32([RANK, 10 - RANK]))
    tell(pair=found["p"].tolist(), highest=found["y"].tolist())


def _stages() -> None:
    """Rank 0 sends to the last rank, which sends back; the others have nothing to do."""
    if RANKS != 2:
        return
    there = [node("Neg", "x", "a"), together("Send", "a", "sent", rank=1),
             together("Receive", "", "y", rank=1, to=TensorProto.FLOAT, sizes=[4])]  # fmt: skip
    back = [together("Receive", "", "a", rank=0, to=TensorProto.FLOAT, sizes=[4]),
            node("Exp", "a", "y"), together("Send", "y", "sent", rank=0)]  # fmt: skip
    with load("stages", back if RANK else there, {"x": [4]}, {"y": [4]}) as model:
        found = model(x=np.float32([0, 1, 2, 3]))["y"]
    np.testing.assert_allclose(found, np.exp(-np.float32([0, 1, 2, 3])), rtol=1e-6)
    tell(stages="equal")


def stays() -> None:
    """Values between segments and collectives stay on the device; so do a caller's tensors."""
    from emulated_gpu import counting

    x = np.full((8, 3), RANK + 1, np.float32)
    with total() as model:
        for _ in range(3):
            with counting() as counts:
                y = model(x=x)["y"]
        np.testing.assert_array_equal(y, np.full((8, 3), RANKS * (RANKS + 1) / 2))
        tell(up=counts["host to device"] / x.nbytes, down=counts["device to host"] / y.nbytes)
        place = f"gpu:{RANK}"
        given, taken = (engine.Tensor(array, device=place) for array in (x, np.zeros_like(x)))
        for _ in range(3):
            with counting() as counts:
                model.predict([given], [taken])
        tell(up=counts["host to device"], down=counts["device to host"])
        np.testing.assert_array_equal(taken.get_data_to_numpy(), y)
    del given, taken
    tell(left=left())


def once() -> None:
    """Three segments and two collectives are queued, and waited for once."""
    from emulated_gpu import counting

    nodes = [node("Neg", "x", "a"), together("AllReduce", "a", "b"), node("Neg", "b", "c"),
             together("AllReduce", "c", "d", reduction="max"), node("Neg", "d", "y")]  # fmt: skip
    x = np.full((8, 3), RANK + 1, np.float32)
    with load("chain", nodes, {"x": ["n", 3]}, {"y": ["n", 3]}) as model:
        for _ in range(5):
            with counting() as counts:
                y = model(x=x)["y"]
            np.testing.assert_array_equal(y, np.full((8, 3), -RANKS * (RANKS + 1) / 2))
            tell(waits=counts["synchronisations"])
        taken = engine.Tensor(np.zeros_like(x), device=f"gpu:{RANK}")
        for _ in range(3):
            with counting() as counts:
                model.predict([engine.Tensor(x, device=f"gpu:{RANK}")], [taken])
            np.testing.assert_array_equal(taken.get_data_to_numpy(), y)
    del taken
    tell(left=left())


def inside() -> None:
    """Every kind of collective that TensorRT has a layer for, in one engine; a sliced product."""
    kinds = {
        "total": together("AllReduce", "neg", "p0"),
        "highest": together("AllReduce", "neg", "p1", reduction="max"),
        "mean": together("AllReduce", "neg", "p2", reduction="avg"),
        "rows": together("AllGather", "neg", "p3"),
        "scattered": together("ReduceScatter", "neg", "p4", reduction="sum"),
        "last": together("Broadcast", "neg", "p5", root=RANKS - 1),
    }
    parts = [_of_rank(rank) for rank in range(RANKS)]
    expected = {
        "total": sum(parts),
        "highest": np.minimum.reduce(parts),  # -max(-x)
        "mean": sum(parts) / np.float32(RANKS),
        "rows": np.concatenate(parts),
        "scattered": sum(parts)[RANK * 4 // RANKS : (RANK + 1) * 4 // RANKS],  # type: ignore[index]
        "last": parts[-1],
    }
    tell(placed=[(op, backend) for op, backend, _ in _run_kinds(kinds, expected)])
    _product()
    tell(left=left())


def _product() -> None:
    """A product in halves, summed: what the whole model gives, also in a tensor on the device."""
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(shape, np.float32) for shape in ((4, 8), (8, 6)))
    half = slice(RANK * 8 // RANKS, (RANK + 1) * 8 // RANKS)
    nodes = [node("MatMul", "x w", "part"), together("AllReduce", "part", "y")]
    with load("product", nodes, {"x": [4, 8 // RANKS]}, {"y": [4, 6]}, {"w": w[half]}) as model:
        y = model(x=x[:, half])["y"]
        np.testing.assert_allclose(y, x @ w, rtol=1e-5, atol=1e-5)
        place = f"gpu:{RANK}"
        given = engine.Tensor(np.ascontiguousarray(x[:, half]), device=place)
        taken = engine.Tensor(np.zeros((4, 6), np.float32), device=place)
        model.predict([given], [taken])
        np.testing.assert_array_equal(taken.get_data_to_numpy(), y)
    del given, taken
    tell(product="equal")


def differs() -> None:
    """The last rank's tensor has another shape; files that do not say so get past the join."""
    rows = 3 if IS_LAST else 2
    nodes = [node("Neg", "x", "a"), together("AllReduce", "a", "b"), node("Neg", "b", "y")]
    model = load("differs", nodes, {"x": [rows, 3]}, {"y": [rows, 3]})
    try:
        model(x=np.ones((rows, 3), np.float32))
    except CommunicatorError as error:
        tell(error=str(error))
    model.close()
    tell(left=left())


def mixed() -> None:
    """The last rank does not have its collectives inside."""
    global INSIDE
    INSIDE = not IS_LAST
    nodes = [node("Neg", "x", "a"), together("AllReduce", "a", "b"), node("Neg", "b", "y")]
    try:
        load("mixed", nodes, {"x": [2, 3]}, {"y": [2, 3]})
    except CommunicatorError as error:
        tell(error=str(error))
    tell(left=left())


def _fails(model: engine.Model, call: Callable[[], object]) -> None:
    """Tell how a predict failed, that the next does so at once, and that nothing is left."""
    from emulated_gpu import MACHINE

    begin_s = time.monotonic()
    try:
        call()
    except CommunicatorError as error:
        tell(error=str(error), ranks=error.ranks, spent_s=time.monotonic() - begin_s)
    try:
        model(x=X)
    except CommunicatorError as error:
        tell(again=str(error))
    model.close()
    tell(left=left(), aborted=MACHINE.counted["aborted communicators"])


def ready() -> engine.Model:
    """Return the model after a predict of all ranks."""
    model = total()
    model(x=X)
    return model


def dies() -> None:
    """The last rank is killed when the others are in the all-reduce."""
    from engine_gpu_trt import nccl

    model = ready()
    if IS_LAST and INSIDE:
        from emulated_gpu.loader import nccl as emulated

        emulated().inside = _die
    elif IS_LAST:
        for name in ("ncclAllReduce", "ncclReduce"):  # the second where the order is to be kept
            setattr(nccl.library(), name, _die)
    _fails(model, lambda: model(x=X))


def _die(*given: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def breaks() -> None:
    """NCCL says of the last rank's communicator, while it works, that its network has failed."""
    from emulated_gpu import fail

    model = ready()
    with fail("NCCL's kernel") if IS_LAST else nullcontext():
        _fails(model, lambda: model(x=X))


def _wait_no_longer_than(timeout_s: float) -> None:
    """Shorten ENGINE_RANKS_TIMEOUT_S now that all ranks have come together."""
    for ranks in list(_open):
        ranks.timeout_s = timeout_s


def late() -> None:
    """The last rank does not come in time."""
    model = ready()
    _wait_no_longer_than(2.0)
    if IS_LAST:
        sys.stdin.readline()  # until the others have given up
        model.close()
        tell(left=left())
        return
    _fails(model, lambda: model(x=X))


def stalls() -> None:
    """The last rank has come to the all-reduce, and its device never gets to it."""
    from emulated_gpu import MACHINE, fail

    model = ready()
    _wait_no_longer_than(2.0)
    with fail("NCCL's kernel, silently") if IS_LAST else nullcontext():
        _fails(model, lambda: model(x=X))
    assert MACHINE.counted["aborted communicators"]


def outlived() -> None:
    """Rank 0 ends in good order while the others still look at what they have finished."""
    from engine_gpu_trt.communicator import NcclCommunicator

    if RANK:
        check = NcclCommunicator.check

        def slow(self: NcclCommunicator) -> None:
            while self.membership.gone("all 999") is None:
                time.sleep(0.1)
            self._state = lambda: 6  # type: ignore[method-assign]  # ncclRemoteError
            check(self)

        NcclCommunicator.check = slow  # type: ignore[method-assign]
    [y] = total()(x=(RANK + 1) * X).values()
    tell(summed=y.tolist())


def cancels() -> None:
    """Rank 0's script ends with an error of its own between two predicts."""
    model = ready()
    (FOLDER / f"through {RANK}").touch()  # a failure ends a predict that is still under way
    if IS_LAST:
        while len(list(FOLDER.glob("through *"))) < RANKS:
            time.sleep(0.01)
        raise RuntimeError("out of coffee")
    _fails(model, lambda: model(x=X))


if __name__ == "__main__":
    threading.excepthook = lambda given: tell(thread=repr(given.exc_value))
    for scenario in sys.argv[1].split(","):
        tell(scenario=scenario)
        globals()[scenario]()
