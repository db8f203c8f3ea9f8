"""Collectives inside the engine: which models have them there, and what TensorRT demands of it.

Results of ranks, and their failing together, are in test_model_ranks.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
from onnx import helper

from engine.formats import open_source
from engine.types import CompileOptions, Device, DType
from engine_gpu_trt import nccl
from engine_gpu_trt.cuda import open_gpu
from engine_gpu_trt.options import read_settings
from engine_testing import making
from engine_testing.level import Trial

ON = {"in_graph_collectives": "on"}


def part(folder: Path, *nodes: onnx.NodeProto, shape: Sequence[Any] = (4, 4),
         dtype: DType = DType.FLOAT32) -> Any:  # fmt: skip
    """A rank's part: x -> what nodes make of a -> y, which the file does not describe."""
    x, y = making.tensor("x", shape, dtype), helper.make_tensor_value_info("y", dtype.onnx, None)
    nodes = (helper.make_node("Neg", ["x"], ["a"]), *nodes)
    domains = {"com.microsoft": 1}
    path = making.write(folder, "part", [x], [y], nodes, domains=domains, valid=False)
    model = onnx.load(path)
    model.opset_import[0].version = 18
    onnx.save(model, path)
    return open_source(str(path))


def collective(op: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, ["a"], ["y"], name="c", domain="com.microsoft", **attributes)


def reasons(trial: Trial, source: Any, world_size: int = 2, **options: str) -> dict[int, str]:
    wanted = CompileOptions(device=Device("gpu"), options={**ON, **options}, world_size=world_size)
    loaded = trial.backend.load(source, wanted)
    try:
        return dict(loaded.unsupported)
    finally:
        loaded.close()


@pytest.mark.parametrize(
    "node",
    [
        collective("AllReduce"),
        collective("AllReduce", reduction="mean"),
        collective("AllGather", group_size=2),
        collective("ReduceScatter", reduction="max"),
        collective("Broadcast", root=1),
    ],
    ids=lambda node: node.op_type,
)
def test_what_tensorrt_has_a_layer_for_is_inside(
    node: onnx.NodeProto, trial: Trial, tmp_path: Path
) -> None:
    assert reasons(trial, part(tmp_path, node)) == {}


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (collective("AllToAll"), "TensorRT has no layer that is its like"),
        (collective("AllGather", axis=1), "another axis than the first"),
        (collective("AllReduce", group="g", group_ranks=[0, 1]), "of a group of some ranks"),
        (collective("AllReduce", reduction="band"), "does not reduce by band"),
    ],
    ids=lambda given: getattr(given, "op_type", None),
)
def test_one_that_it_has_none_for_leaves_all_of_them_to_the_core(
    node: onnx.NodeProto, why: str, trial: Trial, tmp_path: Path
) -> None:
    fits = helper.make_node("AllReduce", ["a"], ["b"], name="fits", domain="com.microsoft")
    found = reasons(trial, part(tmp_path, fits, node))
    assert sorted(found) == [1, 2]
    assert all(why in reason for reason in found.values())


REDUCE = collective("AllReduce")


@pytest.mark.parametrize(
    ("node", "changes", "wish", "why"),
    [
        (REDUCE, {"shape": ("n", 4)}, {}, "the shape of 'a' is open"),
        (REDUCE, {"dtype": DType.BOOL}, {}, "which is bool"),
        (collective("ReduceScatter"), {}, {"world_size": 3}, "no equal part for each of 3"),
        (REDUCE, {}, {"in_graph_collectives": "off"}, "in_graph_collectives is off"),
        (REDUCE, {}, {"precision_mode": "preferred_fp16"}, "preferred_fp16"),
        (REDUCE, {}, {"world_size": 1}, "there is one rank"),
    ],
    ids=["open", "bool", "unequal parts", "off", "float16", "alone"],
)
def test_one_that_cannot_be_inside_or_is_not_to_be_is_left_to_the_core(
    node: Any, changes: Any, wish: Any, why: str, trial: Trial, tmp_path: Path
) -> None:
    [reason] = reasons(trial, part(tmp_path, node, **changes), **wish).values()
    assert why in reason


def test_recorded_executions_and_collectives_inside_exclude_each_other() -> None:
    options = CompileOptions(device=Device("gpu"), options={**ON, "cuda_graphs": "on"})
    with pytest.raises(ValueError, match="exclude each other"):
        read_settings(options)


def test_an_engine_depends_on_how_many_ranks_there_are(trial: Trial) -> None:
    keys = [
        trial.backend.bind("engine_compiled_key")(
            CompileOptions(device=Device("gpu"), options=ON, world_size=count)
        )
        for count in (2, 4)
    ]
    assert keys[0] != keys[1]


def capsule_of(comm: ctypes.c_void_p) -> Any:
    from engine_gpu_trt.graph_group import _CAPSULE, _new_capsule

    return _new_capsule(comm, _CAPSULE, None)


@pytest.fixture
def network(context: Any, trt: Any) -> Iterator[Callable[[], tuple[Any, Any]]]:
    """Makes a builder and a parsed network with one all-reduce inside."""
    kept: list[Any] = []

    def make() -> tuple[Any, Any]:
        log = trt.Logger()
        builder = trt.Builder(log)
        parsed = builder.create_network(0)
        parser = trt.OnnxParser(parsed, log)
        kept.extend((builder, parsed, parser))
        model = onnx.parser.parse_model("""
            <ir_version: 9, opset_import: ["": 18]> g (float[4,4] x) => (float[4,4] y) {
                y = DistCollective <collective_operation="all_reduce", reduce_op="sum", root=-1> (x)
            }""")
        assert parser.parse(model.SerializeToString())
        return builder, parsed

    yield make
    kept.clear()


def test_the_number_of_ranks_is_set_once(network: Callable[[], tuple[Any, Any]]) -> None:
    _, parsed = network()
    layer = parsed.get_layer(0)
    assert layer.num_ranks == 1
    layer.num_ranks = 2
    with pytest.raises(RuntimeError, match="num_ranks"):
        layer.num_ranks = 2
    assert layer.num_ranks == 2


def test_nothing_runs_without_a_communicator_and_none_is_taken_that_does_not_block(
    network: Callable[[], tuple[Any, Any]], capsys: pytest.CaptureFixture[str], trt: Any
) -> None:
    builder, parsed = network()
    parsed.get_layer(0).num_ranks = 2
    config = builder.create_builder_config()
    if hasattr(trt.PreviewFeature, "MULTIDEVICE_RUNTIME_10_16"):
        assert builder.build_serialized_network(parsed, config) is None
        config.set_preview_feature(trt.PreviewFeature.MULTIDEVICE_RUNTIME_10_16, True)
    plan = builder.build_serialized_network(parsed, config)
    runtime = trt.Runtime(trt.Logger())
    engine = runtime.deserialize_cuda_engine(plan)
    running = engine.create_execution_context()
    with open_gpu(0) as gpu:
        memory, stream = gpu.allocate(64), gpu.stream()
        for name in "xy":
            assert running.set_tensor_address(name, memory.pointer)
        assert not running.execute_async_v3(stream.handle)
        assert "No communicator is set" in capsys.readouterr().out
        library = nccl.library()
        for is_blocking in (False, True):
            comm, unique_id = ctypes.c_void_p(), nccl.UniqueId()
            library.ncclGetUniqueId(ctypes.byref(unique_id))
            config_of = nccl.Config.of(is_blocking=is_blocking)
            library.ncclCommInitRankConfig(
                ctypes.byref(comm), 1, unique_id, 0, ctypes.byref(config_of)
            )
            assert not running.set_communicator(capsule_of(comm)), "of one rank, not two"
            said = capsys.readouterr().out
            assert ("of {2} ranks" if is_blocking else "in progress when they return") in said
            library.ncclCommAbort(comm)
        stream.close()
        memory.close()
    del running, engine, runtime, plan, config, parsed, builder
