"""On a real NPU: skipped, with the reason, where there is none. Not yet run by anyone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import engine
from engine import Context, Model, ModelGroup, ModelGroupFlag, ModelType
from engine.backends import open_backend
from engine.formats import open_source
from engine.types import CompileOptions
from engine_ascend_ge import engine_devices, engine_diagnose
from engine_testing import models

pytestmark = pytest.mark.device("ascend_ge")


@pytest.mark.parametrize(
    ("kind", "counts"), [("fixed", [4]), ("gears", [4, 1, 16, 4]), ("open", [2, 7, 1])]
)
def test_an_affine_model_is_exact_in_every_kind_of_shape(
    tmp_path: Path,
    options: Callable[..., CompileOptions],
    sized: Callable[..., dict[str, Any]],
    geared: Callable[..., dict[str, Any]],
    kind: str,
    counts: list[int],
) -> None:
    fields = {
        "fixed": sized(x=(4, 3)),
        "gears": geared(*({"x": (size, 3)} for size in (1, 4, 16))),
        "open": {},
    }[kind]
    backend = open_backend("ascend_ge")
    wish = options(**fields)
    loaded = backend.load(open_source(str(models.affine(tmp_path))), wish)
    executable = backend.compile(loaded, wish)
    try:
        contexts: list[Any] = [executable.open_context() for _ in range(2)]
        for context in contexts:
            for count in counts:
                x = np.arange(3 * count, dtype=np.float32).reshape(count, 3)
                [y] = backend.predict(context, [x], None, None)
                np.testing.assert_array_equal(y, 2 * x + 1)
            context.close()
    finally:
        executable.close()


def test_the_machine_passes_its_diagnosis() -> None:
    assert [check for check in engine_diagnose() if not check.ok] == []


def two_devices() -> None:
    found = len(engine_devices().found)
    if found < 2:
        pytest.skip(f"two ranks need two devices; found: {found}")


def started(folder: Path, script: str, *words: object) -> list[subprocess.Popen[str]]:
    """Start a script once for each of two ranks."""
    return [
        subprocess.Popen(
            [sys.executable, "-c", script, str(rank), *map(str, words)],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


RANK = """
import sys
import numpy as np
import engine as mslite

rank = int(sys.argv[1])
context = mslite.Context()
context.target = ["ascend"]
context.ascend.provider = "ge"
context.ascend.device_id = context.ascend.rank_id = rank
model = mslite.Model()
model.build_from_file(f"Matmul{rank}.onnx", mslite.ModelType.MINDIR, context, "config.ini")
for _ in range(10):
    [y] = model.predict([np.ones((4, 128), np.float32)])
np.save(f"y{rank}.npy", y.get_data_to_numpy())
assert any("ascend" in placed.device for placed in model.placement if placed.op_type == "AllReduce")
"""


def test_two_ranks_give_the_whole_product_by_hccl(tmp_path: Path) -> None:
    two_devices()
    example = Path(__file__).parents[3] / "examples" / "distributed"
    subprocess.run([sys.executable, example / "make_model.py", tmp_path], check=True)
    for rank in started(tmp_path, RANK):
        _, errors = rank.communicate(timeout=300)
        assert rank.returncode == 0, errors
    whole = onnx.load(tmp_path / "Matmul.onnx")
    weight = onnx.numpy_helper.to_array(whole.graph.initializer[0])
    results = [np.load(tmp_path / f"y{rank}.npy") for rank in range(2)]
    np.testing.assert_array_equal(*results)
    np.testing.assert_allclose(
        results[0], np.ones((4, 128), np.float32) @ weight, rtol=1e-3, atol=1e-3
    )


def test_processes_share_weights_by_the_drivers_list(tmp_path: Path) -> None:
    script = Path(__file__).parents[3] / "examples" / "weight_sharing" / "weight_sharing.py"
    text = script.read_text().replace("context_of(2)", "context_of(0)")
    (tmp_path / "script.py").write_text(text)
    model = script.parents[1] / "digits" / "digits.onnx"
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py", model],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [line.partition(", ")[2] for line in done.stdout.splitlines()]
    assert len(lines) == 3 * len(set(lines)), "all three print the same"


def test_models_of_a_group_share_a_weight_on_the_device(tmp_path: Path) -> None:
    group = ModelGroup(ModelGroupFlag.SHARE_WEIGHT)
    pair = [Model(), Model()]
    group.add_model(pair)
    context = Context()
    context.target = ["ascend"]
    path = str(models.affine(tmp_path))
    x = np.ones((2, 3), np.float32)
    for model in pair:
        model.build_from_file(path, ModelType.MINDIR, context)
        np.testing.assert_array_equal(model.predict([x])[0].get_data_to_numpy(), 2 * x + 1)
    assert pair[1].memory().shared_bytes > 0
    for model in pair:
        model.close()


def test_a_raw_option_reaches_atc(tmp_path: Path) -> None:
    config = {"ge_graph_options": {"ge.exec.precision_mode": "force_fp16"}}
    with engine.load(models.affine(tmp_path), "ascend", config=config) as model:
        x = np.full((1, 3), 1000.1, np.float32)
        np.testing.assert_allclose(model(x=x)["y"], 2 * x + 1, rtol=2e-3)
