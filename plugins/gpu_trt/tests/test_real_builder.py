"""TensorRT's real ONNX parser and builder, on the processor, against the emulated ones.

TensorRT for RTX parses and builds without a GPU. With ENGINE_TENSORRT_RTX naming a folder of
unpacked `tensorrt_rtx_cu13_libs` and `tensorrt_rtx_cu13_bindings` wheels, this plugin's own load
and compile run on them, as far as there is no device: to the finished plan, which the runtime
then refuses for want of a driver.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MODELS = (
    "affine", "meeting", "scalar", "empty", "several", "unread", "shared_dims", "dense",
    "polynomial",
    "squares", "negated", "mixed_dtypes", "identity", "twins", "constant", "no_batch", "foldable",
    "branch", "turned", "waves", "sequences", "optionals", "vectorised", "external", "linked",
    "heavy", "slow", "pairs", "mismatched", "unknown_operator",
    *(f"doubled:{dtype}" for dtype in ("float16", "float64", "int32", "int64", "uint8", "int8")),
    *(f"moved:{dtype}" for dtype in ("bool", "uint8", "int8", "int16", "bfloat16", "string")),
)  # fmt: skip
LEDGER = {
    "nonzero": "TensorRT for RTX has no NonZero, which TensorRT and the emulator have",
    "around_unknown": "it has an operator of no domain that TensorRT knows",
    "truncated": "the core refuses it before a backend sees it",
}
"""Models of the kit that are not compared, and why."""


COLLECTIVES = (
    "all_reduce sum -1", "all_reduce avg -1", "all_reduce max -1", "all_gather none -1",
    "reduce_scatter sum -1", "broadcast none 0", "all_gather sum -1", "broadcast sum 0",
    "all_reduce none -1", "bogus sum -1", "all_reduce bogus -1",
)  # fmt: skip
"""Collectives inside a network: operation, reduction, root."""


def test_every_model_of_the_kit_is_compared_or_in_the_ledger() -> None:
    from engine_testing import heavy_models, models

    makers = {models.__name__, heavy_models.__name__}
    made = {
        name
        for name, maker in vars(models).items()
        if inspect.isfunction(maker) and maker.__module__ in makers and not name.startswith("_")
    }
    assert {name.partition(":")[0] for name in MODELS} | set(LEDGER) == made


@pytest.fixture(scope="module")
def answers(unpacked: Callable[[str], Path]) -> dict[str, dict[str, Any]]:
    """The outcome of each model: {"real" or "emulated": {model: answer}}."""
    folder, found = str(unpacked("ENGINE_TENSORRT_RTX")), {}
    for kind in ("real", "emulated"):
        path = os.pathsep.join([os.environ["PYTHONPATH"], folder])
        child = subprocess.run(
            [sys.executable, __file__, kind, *MODELS, *COLLECTIVES],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert child.returncode == 0, child.stderr[-2000:]
        found[kind] = json.loads(child.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", MODELS)
def test_real_and_emulated_parser_and_builder_agree(
    name: str, answers: dict[str, dict[str, Any]]
) -> None:
    real, emulated = answers["real"][name], answers["emulated"][name]
    assert emulated["unsupported"] == real["unsupported"]
    assert emulated["built"] == real["built"]
    for key in ("inputs", "bounds"):
        assert emulated[key] == real[key]
    for said, expected in zip(emulated["reasons"], real["reasons"], strict=True):
        # The text up to the place in TensorRT's source, which differs.
        assert said[:60] == expected[:60]


@pytest.mark.parametrize("name", COLLECTIVES)
def test_real_and_emulated_parser_agree_on_collectives_inside(
    name: str, answers: dict[str, dict[str, Any]]
) -> None:
    assert answers["emulated"][name] == answers["real"][name]


@pytest.mark.parametrize("name", ["affine", "dense", "external", "heavy"])
def test_weights_have_the_names_of_the_file(name: str, answers: dict[str, dict[str, Any]]) -> None:
    """Or the Refitter could not be told which to exchange."""
    real, emulated = answers["real"][name], answers["emulated"][name]
    assert real["refittable"] == emulated["refittable"] != []
    assert "no such weight" not in real["refittable"]


@pytest.mark.parametrize("name", ["affine", "dense", "shared_dims", "heavy", "slow"])
def test_layers_name_the_nodes_that_they_were_parsed_from(
    name: str, answers: dict[str, dict[str, Any]]
) -> None:
    """Or times of layers could not be told of nodes."""
    nodes = answers["real"][name]["named"]
    assert nodes == list(range(len(nodes))) != []


def _named(loaded: Any) -> list[int]:
    """Return the nodes that the real parser names in its layers' metadata; a gap is an index -1."""
    from engine_gpu_trt.layers import read_layers

    graph, network = loaded.source.graph, loaded.network
    if graph is None or network is None or loaded.unsupported or not hasattr(network, "get_layer"):
        return []
    with loaded.gpu:
        layers = [network.get_layer(index) for index in range(network.num_layers)]
        text = [{"Name": "__myl_0", "Metadata": layer.metadata} for layer in layers]
    found = {index for each in read_layers(graph, json.dumps({"Layers": text}))
             for index in each.nodes}  # fmt: skip
    return [node.index if node.index in found else -1 for node in graph.nodes]


def _refittable(loaded: Any) -> list[str]:
    """Return those of the model's initializers, and of a made-up one, that may be exchanged."""
    graph, network = loaded.source.graph, loaded.network
    if graph is None or network is None or loaded.unsupported:
        return []
    names = [*(parameter.name for parameter in graph.parameters), "no such weight"]
    with loaded.gpu:
        return sorted(name for name in names if network.mark_weights_refittable(name))


def _collective(name: str) -> dict[str, Any]:
    """Parse and build a network with a collective inside, for two ranks; return what was said."""
    import onnx.parser

    from engine_gpu_trt import messages, vendor
    from engine_gpu_trt.cuda import open_gpu
    from engine_gpu_trt.in_graph import set_ranks

    operation, reduction, root = name.split()
    trt = vendor.tensorrt()
    data = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 18]> g (float[4,4] x) => (float y) {{
            [c] y = DistCollective <collective_operation="{operation}", reduce_op="{reduction}",
                                    root={root}> (x)
        }}""")
    data.graph.output[0].type.tensor_type.ClearField("shape")
    with open_gpu(0):
        log = messages.logger(trt)
        builder = trt.Builder(log)
        network = builder.create_network(0)
        parser = trt.OnnxParser(network, log)
        is_parsed = parser.parse(data.SerializeToString())
        found = {"parsed": is_parsed, "errors": [
            parser.get_error(i).desc()[:60] for i in range(parser.num_errors)
        ]}  # fmt: skip
        if is_parsed:
            found["collectives"] = set_ranks(network, trt, 2)
            found["ranks"] = network.get_layer(0).num_ranks
            try:
                network.get_layer(0).num_ranks = 2
            except RuntimeError as error:
                found["twice"] = str(error)
            config = builder.create_builder_config()
            if hasattr(trt.PreviewFeature, "MULTIDEVICE_RUNTIME_10_16"):
                config.set_preview_feature(trt.PreviewFeature.MULTIDEVICE_RUNTIME_10_16, True)
            found["built"] = builder.build_serialized_network(network, config) is not None
            del config
        del parser, network, builder
    return found


def _answer(name: str, folder: Path, real: bool) -> dict[str, Any]:
    from engine.errors import EngineError
    from engine.formats import open_source
    from engine.types import CompileOptions, Device, DType
    from engine_gpu_trt import engine_compile, engine_load
    from engine_testing import models

    maker, _, dtype = name.partition(":")
    changes = {"dtype": DType(dtype)} if dtype else {}
    source = open_source(str(getattr(models, maker)(folder, **changes)))
    options = CompileOptions(device=Device("gpu"))
    loaded = engine_load(source, options)
    answer: dict[str, Any] = {
        "unsupported": sorted(loaded.unsupported),
        "reasons": [loaded.unsupported[index] for index in sorted(loaded.unsupported)],
        "inputs": sorted(loaded.names),
        "refittable": _refittable(loaded),
        "named": _named(loaded),
        "bounds": None,
        "built": False,
    }
    try:
        executable = engine_compile(loaded, options)
        answer["built"] = True
        executable.close()
    except EngineError as error:
        # Only the runtime needs the driver, and it comes after the plan is finished.
        answer["built"] = real and "cannot load this engine" in str(error) and "35" in str(error)
        if not answer["built"] and not loaded.unsupported:
            answer["reasons"] = [str(error).partition(": TensorRT error")[2]]
    loaded.close()
    return answer


if __name__ == "__main__":
    import tempfile

    if sys.argv[1] == "real":
        import tensorrt_rtx_bindings
        import tensorrt_rtx_libs  # noqa: F401  # loads the libraries

        from engine_gpu_trt import vendor

        vendor.tensorrt = lambda package="": tensorrt_rtx_bindings  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as work:
        answers_here = {
            each: _collective(each)
            if " " in each
            else _answer(each, Path(work), sys.argv[1] == "real")
            for each in sys.argv[2:]
        }
    print(json.dumps(answers_here))
