"""load_distributed_checkpoint: a training job's weights in models that predict."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from graphs import of_nodes
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from sliced_jobs import Array, Job, assert_equal

import engine
from engine import sharding
from engine.errors import InputError, ModelError, ModelStateError
from engine.sharding import Layout, network

RANDOM = np.random.default_rng(0)
FULL = {
    "fc1.weight": RANDOM.standard_normal((8, 16)).astype(np.float32),
    "fc1.bias": RANDOM.standard_normal(16).astype(np.float32),
    "fc2.weight": RANDOM.standard_normal((16, 4)).astype(np.float32),
}
TRAINED = Job(
    4,
    [
        {
            "fc1.weight": Layout((2, 2), (-1, 0), (), 0, 2, 2),
            "fc1.bias": Layout((2, 2), (0,), (), 0, 2, 2),
            "fc2.weight": Layout((2, 2), (0, -1)),
        }
    ],
)
PREDICTS = {"fc1.weight": Layout((2,), (-1, 0)), "fc1.bias": Layout((2,), (0,)),
            "fc2.weight": Layout((2,), (0, -1))}  # fmt: skip


def mlp(shapes: dict[str, tuple[int, ...]], dtype: Any = np.float32) -> onnx.ModelProto:
    """y = (x @ fc1.weight + fc1.bias) @ fc2.weight, the weights zero; `axes` is no weight."""
    nodes = [
        helper.make_node("MatMul", ["x", "fc1.weight"], ["a"]),
        helper.make_node("Add", ["a", "fc1.bias"], ["b"]),
        helper.make_node("MatMul", ["b", "fc2.weight"], ["c"]),
        helper.make_node("Unsqueeze", ["c", "axes"], ["y"]),
    ]
    zeros = {name: np.zeros(shape, dtype) for name, shape in shapes.items()}
    dtypes = dict.fromkeys("xy", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    outputs = {"y": [1, "n", 4]}
    return of_nodes(nodes, {"x": ["n", 8]}, outputs, {**zeros, "axes": [0]}, dtypes=dtypes)


WHOLE = {name: array.shape for name, array in FULL.items()}
X = RANDOM.standard_normal((3, 8)).astype(np.float32)


def weights_of(model: onnx.ModelProto) -> dict[str, Array]:
    return {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
        if tensor.name != "axes"
    }


def assert_loaded(expected: dict[str, Array], *given: Any, **more: Any) -> None:
    """Load weights into a model that has these shapes, and compare them."""
    model = mlp({name: array.shape for name, array in expected.items()})
    sharding.load_distributed_checkpoint(model, *given, **more)
    assert_equal(weights_of(model), expected)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    TRAINED.write(FULL, tmp_path / "trained")
    return [tmp_path / "trained" / f"rank_{rank}" / "net.ckpt" for rank in range(4)]


@pytest.fixture
def strategy(tmp_path: Path) -> Path:
    return TRAINED.write_strategy(tmp_path / "train.ckpt")


def test_one_device_gets_the_whole_weights(files: list[Path], strategy: Path) -> None:
    model = mlp(WHOLE)
    assert sharding.load_distributed_checkpoint(model, files, None, strategy) is True
    assert_equal(weights_of(model), FULL)
    onnx.checker.check_model(model)


def test_each_rank_gets_its_slices(files: list[Path], strategy: Path, tmp_path: Path) -> None:
    job = Job(2, [PREDICTS])
    as_file = job.write_strategy(tmp_path / "predict.json")
    as_lists = {name: [list(part) if isinstance(part, tuple) else part for part in layout[:6]]
                for name, layout in PREDICTS.items()}  # fmt: skip
    for rank in range(2):
        expected = job.expected(FULL, rank)
        for predict in (PREDICTS, as_file, as_lists):
            assert_loaded(expected, files, predict, strategy, rank_id=rank)


def test_the_rank_is_that_of_the_process(
    files: list[Path], strategy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_RANK", "1")
    monkeypatch.setenv("ENGINE_WORLD_SIZE", "2")
    expected = Job(2, [PREDICTS]).expected(FULL, 1)
    assert_loaded(expected, files, PREDICTS, strategy)


def test_a_file_is_written_anew(files: list[Path], strategy: Path, tmp_path: Path) -> None:
    onnx.save(mlp(WHOLE), tmp_path / "net.onnx")
    before = (tmp_path / "net.onnx").read_bytes()
    seen: list[tuple[str, int, int | None]] = []
    sharding.load_distributed_checkpoint(
        tmp_path / "net.onnx", files, None, strategy, output_file=tmp_path / "new.onnx",
        progress=lambda *step: seen.append(step),
    )  # fmt: skip
    assert (tmp_path / "net.onnx").read_bytes() == before
    written = onnx.load(tmp_path / "new.onnx")
    onnx.checker.check_model(written)
    assert_equal(weights_of(written), FULL)
    assert seen == [("loading", number, 3) for number in (1, 2, 3)]
    got = ReferenceEvaluator(written).run(None, {"x": X})[0]
    expected = (X @ FULL["fc1.weight"] + FULL["fc1.bias"]) @ FULL["fc2.weight"]
    np.testing.assert_allclose(got[0], expected, rtol=1e-5)


@pytest.mark.parametrize("is_external", [False, True])
def test_the_weights_of_a_large_model_lie_beside_it(
    is_external: bool,
    files: list[Path],
    strategy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(network, "INLINE_BYTES", 64)
    monkeypatch.setattr(network, "_APART_BYTES", 64)
    onnx.save(
        mlp(WHOLE), tmp_path / "net.onnx", save_as_external_data=is_external,
        location="net.bin", size_threshold=0,
    )  # fmt: skip
    (tmp_path / "out").mkdir()
    out = tmp_path / "out" / "new.onnx"
    sharding.load_distributed_checkpoint(
        tmp_path / "net.onnx", files, None, strategy, output_file=out
    )
    assert sorted(path.name for path in out.parent.iterdir()) == ["new.onnx", "new.onnx.data"]
    assert out.stat().st_size < 1000
    written = onnx.load(out)
    assert_equal(weights_of(written), FULL)
    assert numpy_helper.to_array(written.graph.initializer[-1]).tolist() == [0]


def test_a_built_model_predicts_with_the_new_weights(
    files: list[Path], strategy: Path, tmp_path: Path
) -> None:
    pytest.importorskip("engine_cpu", reason="needs the cpu backend")
    onnx.save(mlp(WHOLE), tmp_path / "net.onnx")
    model = engine.load(tmp_path / "net.onnx", variable_weights=list(FULL))
    sharding.load_distributed_checkpoint(model, files, None, strategy)
    expected = (X @ FULL["fc1.weight"] + FULL["fc1.bias"]) @ FULL["fc2.weight"]
    np.testing.assert_allclose(model(x=X)["y"][0], expected, rtol=1e-5)
    plain = engine.load(tmp_path / "net.onnx")
    with pytest.raises(ModelStateError, match="build it with variable_weights="):
        sharding.load_distributed_checkpoint(plain, files, None, strategy)


def test_data_parallel_and_integrated_checkpoints_are_whole(tmp_path: Path) -> None:
    paths = [tmp_path / f"rank{rank}.safetensors" for rank in range(2)]
    for path in paths:
        sharding.save_checkpoint(FULL, path)
    job = Job(2, [PREDICTS])
    for given in (paths, paths[:1]):
        for rank in range(2):
            assert_loaded(job.expected(FULL, rank), given, PREDICTS, rank_id=rank)


def test_files_that_differ_are_not_taken_for_whole_ones(files: list[Path], tmp_path: Path) -> None:
    says = "give train_strategy_filename.*or, where rank 0's weights are meant, its file alone"
    model = mlp({name: array.shape for name, array in TRAINED.expected(FULL, 0).items()})
    before = weights_of(model)
    for rank in range(2):
        with pytest.raises(ModelError, match=rf"'fc.*' of rank . differs from rank 0's.*{says}"):
            sharding.load_distributed_checkpoint(model, files, rank_id=rank)
    with pytest.raises(ModelError, match=says):
        sharding.load_distributed_checkpoint(None, files, dst_safetensors_dir=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert_equal(weights_of(model), before)


def test_only_the_weights_that_the_model_takes_are_compared_and_statistics_are_rank_0s(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths = [tmp_path / f"rank{rank}.safetensors" for rank in range(2)]
    mean = "fc1.moving_mean"  # in the place of fc1.bias
    for rank, path in enumerate(paths):
        moments = np.full(3, rank, np.float32)
        sharding.save_checkpoint(FULL | {"moments": moments, mean: FULL["fc1.bias"] + rank}, path)
    with caplog.at_level(logging.WARNING):
        assert_loaded(FULL, paths, rank_id=1)
    assert "statistics" not in caplog.text
    mapped = {mean: "fc1.bias"}
    with caplog.at_level(logging.WARNING):
        assert_loaded(FULL, paths, rank_id=1, name_map=mapped)
    assert "1 statistics that each rank has of its own batches are taken from rank 0" in caplog.text
    sharding.save_checkpoint({"fc1.weight": FULL["fc1.weight"]}, paths[1])
    with pytest.raises(ModelError, match=r"'fc1.bias' of rank 1 is missing, and is in rank 0's"):
        sharding.load_distributed_checkpoint(mlp(WHOLE), paths)


def test_each_rank_compares_its_own_file_and_rank_0_all_of_them(tmp_path: Path) -> None:
    paths = [tmp_path / f"rank{rank}.safetensors" for rank in range(3)]
    for path in paths:
        sharding.save_checkpoint(FULL, path)
    sharding.save_checkpoint(FULL | {"fc1.bias": FULL["fc1.bias"] + 1}, paths[1])
    assert_loaded(FULL, paths, rank_id=2)
    for rank in range(2):
        with pytest.raises(ModelError, match=r"'fc1\.bias' of rank 1 differs from rank 0's"):
            sharding.load_distributed_checkpoint(mlp(WHOLE), paths, rank_id=rank)


def test_a_stage_opens_only_the_files_of_its_stage(tmp_path: Path) -> None:
    whole = {name: Layout((2,), (-1,) * array.ndim) for name, array in FULL.items()}
    first = {name: whole[name] for name in ("fc1.weight", "fc1.bias")}
    job = Job(2, [first, {"fc2.weight": Layout((2,), (0, -1))}])
    strategy = job.write_strategy(tmp_path / "train.ckpt")
    job.write(FULL, tmp_path / "in")
    paths = [tmp_path / "in" / f"rank_{rank}" / "net.ckpt" for rank in range(4)]
    target = Job(1, [dict.fromkeys(first, Layout()), {"fc2.weight": Layout()}])
    predict = target.write_strategy(tmp_path / "predict.ckpt")
    for path in paths[:2]:
        path.unlink()
    model = mlp(WHOLE)
    sharding.load_distributed_checkpoint(model, paths, predict, strategy, rank_id=1)
    got = weights_of(model)
    np.testing.assert_array_equal(got["fc2.weight"], FULL["fc2.weight"])
    assert not got["fc1.weight"].any()
    with pytest.raises(ModelError, match=r"rank_0.net\.ckpt: no such file"):
        sharding.load_distributed_checkpoint(mlp(WHOLE), paths, predict, strategy, rank_id=0)


def test_types_and_prefixes_are_fitted_unless_loading_is_strict(tmp_path: Path) -> None:
    path = tmp_path / "net.ckpt"
    sharding.save_checkpoint({f"network.{name}": array for name, array in FULL.items()}, path)
    model = mlp(WHOLE, np.float16)
    sharding.load_distributed_checkpoint(model, [path])
    assert_equal(
        weights_of(model), {name: array.astype(np.float16) for name, array in FULL.items()}
    )
    with pytest.raises(InputError, match=r"none of the 3 parameters .*'network\.fc1\.weight'"):
        sharding.load_distributed_checkpoint(mlp(WHOLE), [path], strict_load=True)
    sharding.save_checkpoint(
        {name: array.astype(ml_dtypes.bfloat16) for name, array in FULL.items()}, path
    )
    with pytest.raises(InputError, match="with strict_load types must be equal"):
        sharding.load_distributed_checkpoint(mlp(WHOLE), [path], strict_load=True)
    short = {name: array.astype(ml_dtypes.bfloat16) for name, array in FULL.items()}
    assert_loaded({name: array.astype(np.float32) for name, array in short.items()}, [path])


def test_names_can_be_mapped(tmp_path: Path) -> None:
    path = tmp_path / "net.ckpt"
    sharding.save_checkpoint({"w": FULL["fc1.weight"]}, path)
    got = sharding.load_distributed_checkpoint(
        mlp(WHOLE), [path], name_map={"w": "fc1.weight"}, return_param_dict=True
    )
    assert isinstance(got, dict)
    assert_equal({name: value.data for name, value in got.items()},
                 {"fc1.weight": FULL["fc1.weight"]})  # fmt: skip
    with pytest.raises(InputError, match="name_map: the ModelProto has no parameter 'v'"):
        sharding.load_distributed_checkpoint(mlp(WHOLE), [path], name_map={"w": "v"})
    with pytest.raises(InputError, match="name_map: the checkpoints have no parameter 'v'"):
        sharding.load_distributed_checkpoint(mlp(WHOLE), [path], name_map={"v": "fc1.weight"})


def test_weights_that_are_in_no_checkpoint_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "net.ckpt"
    sharding.save_checkpoint({"fc1.weight": FULL["fc1.weight"]}, path)
    with caplog.at_level(logging.WARNING):
        sharding.load_distributed_checkpoint(mlp(WHOLE), [path])
    assert "2 parameters of the ModelProto are not in the checkpoints" in caplog.text
    assert "fc1.bias, fc2.weight" in caplog.text


def test_encrypted_checkpoints_reach_memory_only(
    files: list[Path], strategy: Path, tmp_path: Path
) -> None:
    pytest.importorskip("cryptography")
    from engine.formats.encryption import encrypt

    key = b"0123456789abcdef"
    for file in files:
        content = encrypt(file.read_bytes(), key)
        file.write_bytes(content)
    model = mlp(WHOLE)
    sharding.load_distributed_checkpoint(model, files, None, strategy, dec_key=key)
    assert_equal(weights_of(model), FULL)
    with pytest.raises(ModelError, match=r"rank_0.net\.ckpt: it is encrypted with AES-GCM; pass"):
        sharding.load_distributed_checkpoint(mlp(WHOLE), files, None, strategy)
    onnx.save(model, tmp_path / "net.onnx")
    with pytest.raises(InputError, match="not written in clear"):
        sharding.load_distributed_checkpoint(
            tmp_path / "net.onnx", files, None, strategy, dec_key=key,
            output_file=tmp_path / "new.onnx",
        )  # fmt: skip


def test_without_a_network_the_weights_of_each_rank_are_written(tmp_path: Path) -> None:
    halves = list(FULL.items())
    sharding.save_checkpoint(dict(halves[:1]), tmp_path / "whole" / "part0.safetensors")
    sharding.save_checkpoint(dict(halves[1:]), tmp_path / "whole" / "part1.safetensors")
    job = Job(2, [PREDICTS])
    predict = job.write_strategy(tmp_path / "predict.ckpt")
    sharding.load_distributed_checkpoint(
        None, predict_strategy=predict, format="safetensors",
        unified_safetensors_dir=tmp_path / "whole", dst_safetensors_dir=tmp_path / "out",
        name_map={"fc1.bias": "bias"},
    )  # fmt: skip
    for rank in range(2):
        got = sharding.load_checkpoint(tmp_path / "out" / f"rank_{rank}" / "net.safetensors")
        expected = job.expected(FULL, rank)
        expected["bias"] = expected.pop("fc1.bias")
        assert_equal({name: value.data for name, value in got.items()}, expected)  # type: ignore[union-attr]


def test_what_does_not_fit_is_refused_before_anything_is_replaced(
    files: list[Path], strategy: Path, tmp_path: Path
) -> None:
    model = mlp({**WHOLE, "fc2.weight": (16, 5)})
    with pytest.raises(InputError) as raised:
        sharding.load_distributed_checkpoint(model, files, None, strategy)
    assert str(raised.value) == (
        "parameter 'fc2.weight': the ModelProto expects float32[16, 5], got float32[16, 4] from "
        f"{files[0]}; is the model the slice of this rank, and predict_strategy its layout?"
    )
    assert not any(array.any() for array in weights_of(model).values())
    load = sharding.load_distributed_checkpoint
    with pytest.raises(InputError, match=r"has 3 files, but .* is for 4 devices"):
        load(model, files[:3], None, strategy)
    with pytest.raises(InputError, match=r"this is rank 2, but predict_strategy is for 2 devices"):
        load(model, files, PREDICTS, strategy, rank_id=2)
    with pytest.raises(InputError, match="output_file"):
        load(tmp_path / "net.onnx", files, None, strategy)
    with pytest.raises(TypeError, match="network must be the path"):
        load(3, files, None, strategy)
    with pytest.raises(TypeError, match="checkpoint_filenames must be list"):
        load(model, str(files[0]))
    with pytest.raises(InputError, match=r"predict_strategy\['w'\]: entry 1 is 'x'"):
        load(model, files, {"w": [[1], "x"]}, strategy)
    with pytest.raises(InputError, match="format must be one of ckpt, safetensors"):
        load(model, files, format="pt")
    with pytest.raises(InputError, match="say where to write: dst_safetensors_dir"):
        load(None, files, None, strategy)
