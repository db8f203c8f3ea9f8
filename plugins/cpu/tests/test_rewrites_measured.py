"""A rewritten model is used where that was measured to be faster, and the verdict is kept.

No test times anything: the times of both forms are given.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import engine
from engine import Model
from engine.errors import Cancelled
from engine.types import CompileOptions, Device, DType, NodeState, ShapeRange, TensorSpec
from engine_cpu.rewrites import measured
from engine_cpu.rewrites.measured import MARGIN, agree, measured_times, verdict_key
from engine_cpu.rewrites.sample import samples

Array = np.ndarray[Any, Any]
node = helper.make_node
CHANNELS = 8
CPU = CompileOptions(device=Device("cpu"))


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "_known", {})


def give_times(monkeypatch: pytest.MonkeyPatch, base: float, own: float) -> list[int]:
    """Have the two forms take these times; the list given back gets an item a measurement."""
    seen: list[int] = []

    def times(*_: Any) -> list[list[tuple[float, float]]]:
        seen.append(1)
        return [[(base, own)] * 3] * 2

    monkeypatch.setattr(measured, "_times", times)
    return seen


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A convolution with large weights, and a PRelu of one slope."""
    random = np.random.default_rng(1)
    weights = random.standard_normal((64, CHANNELS, 7, 7)).astype(np.float32)
    assert weights.nbytes > 1 << 16
    graph = helper.make_graph(
        [node("Conv", ["x", "w"], ["c"], name="c"), node("PRelu", ["c", "s"], ["y"], name="p")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", CHANNELS, "h", "w"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(np.float32([0.25]), "s")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    return tmp_path / "model.onnx"


def load(path: Path, folder: Path | None = None, **options: str) -> Model:
    config: dict[str, dict[str, str]] = {"cpu_context": options}
    if folder is not None:
        config["common_context"] = {"compile_cache": "on", "model_cache_dir": str(folder)}
    return engine.load(path, target="cpu", config=config)


def reason(model: Model) -> str:
    return str(model.placement[1].reason)


def test_an_exact_rewrite_is_used_by_default_where_it_is_faster(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_times(monkeypatch, 2.0, 1.0)
    text = reason(load(path))
    assert "rewritten: PRelu with one slope as LeakyRelu (0.50 of the time, measured" in text


@pytest.mark.parametrize("own", [1.0, 1.1, 1.0 - (1.0 - MARGIN) / 2])
def test_one_that_is_not_clearly_faster_is_not_used_and_placement_says_so(
    path: Path, monkeypatch: pytest.MonkeyPatch, own: float
) -> None:
    give_times(monkeypatch, 1.0, own)
    model = load(path)
    assert f"not used: PRelu with one slope as LeakyRelu: {own:.2f} of the time" in reason(model)
    assert "rewritten: " not in reason(model)


def test_a_verdict_is_measured_once_a_process(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = give_times(monkeypatch, 2.0, 1.0)
    assert {reason(load(path)) for _ in range(5)} == {reason(load(path))}
    assert len(seen) == 1


def test_the_cache_keeps_form_and_verdict(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights of its own size are external data in memory for a model that is to be kept."""
    seen = give_times(monkeypatch, 2.0, 1.0)
    for _ in range(2):
        model = load(path, tmp_path / "cache")
        assert "rewritten: " in reason(model)
        assert model.placement[0].state is NodeState.FUSED  # into the PRelu
        monkeypatch.setattr(measured, "_known", {})  # as in another process
    assert len(seen) == 1
    [kept] = (tmp_path / "cache").rglob("verdicts/*")
    found = json.loads(kept.read_text())
    assert (found["is_used"], found["ratio"]) == (True, 0.5)
    assert {"onnxruntime", "method", "processor", "patterns"} <= set(found["key"])


def test_a_form_that_is_not_rewritten_keeps_what_placement_says(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_times(monkeypatch, 1.0, 2.0)
    first, second = (reason(load(path, tmp_path / "cache")) for _ in range(2))
    assert first == second
    assert "not used: " in first


KEY = {"model": "m", "onnxruntime": "1"}


def verdict(tmp_path: Path, key: dict[str, str] = KEY) -> measured.Verdict:
    """The verdict of no model, as another process finds it."""
    measured._known.clear()
    options = replace(CPU, cache_folder=tmp_path)
    source: Any = type("Source", (), {"is_secret": False})()
    return measured.verdict_of(measured.Trial(source, options), measured.NOTHING, key)


def test_a_kept_verdict_is_believed_as_long_as_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_times(monkeypatch, 2.0, 1.0)
    assert verdict(tmp_path).is_used
    seen = give_times(monkeypatch, 1.0, 2.0)
    assert all(verdict(tmp_path).is_used for _ in range(5))
    assert not seen
    assert not verdict(tmp_path, {**KEY, "onnxruntime": "2"}).is_used


@pytest.mark.parametrize(
    "change",
    [lambda text: "", lambda text: text[:40], lambda text: "[" * 9000, lambda text: "{}",
     lambda text: text.replace('"m"', '"n"'), lambda text: "\x00" * 70000],
)  # fmt: skip
def test_a_damaged_verdict_is_measured_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[str], str]
) -> None:
    give_times(monkeypatch, 2.0, 1.0)
    verdict(tmp_path)
    [kept] = (tmp_path / "verdicts").iterdir()
    kept.write_text(change(kept.read_text()))
    give_times(monkeypatch, 1.0, 2.0)
    assert not verdict(tmp_path).is_used
    assert not verdict(tmp_path).is_used


def test_a_verdict_of_another_user_or_behind_a_link_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_times(monkeypatch, 2.0, 1.0)
    verdict(tmp_path)
    [kept] = (tmp_path / "verdicts").iterdir()
    seen = give_times(monkeypatch, 1.0, 2.0)
    with monkeypatch.context() as other:
        other.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert not verdict(tmp_path).is_used
    assert len(seen) == 1
    give_times(monkeypatch, 2.0, 1.0)
    target = tmp_path / "elsewhere"
    kept.rename(target)
    kept.symlink_to(target)
    assert verdict(tmp_path).is_used
    assert not kept.is_symlink()


def test_a_folder_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_times(monkeypatch, 2.0, 1.0)
    (tmp_path / "verdicts").write_text("a file")
    assert verdict(tmp_path).is_used


def test_old_verdicts_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give_times(monkeypatch, 2.0, 1.0)
    monkeypatch.setattr(measured, "_MOST_KEPT", 3)
    for number in range(9):
        verdict(tmp_path, {**KEY, "model": str(number)})
    assert len(list((tmp_path / "verdicts").iterdir())) <= 4


def test_the_key_is_that_of_the_model_its_options_and_its_sizes() -> None:
    def of(model: bytes = b"m", versions: str = "1", **changes: Any) -> dict[str, str]:
        return verdict_key(model, replace(CPU, **changes), {"onnxruntime": versions})

    shapes = {"x": ShapeRange((1,), (2,), (3,))}
    keys = [of(), of(b"n"), of(versions="2"), of(shapes=shapes), of(options={"rewrites": "on"})]
    assert len({json.dumps(key) for key in keys}) == len(keys)
    assert of(options={"spin_us": "0"}) == of()


# ------------------------------------------------------------------------------------- measuring


def times_of(*turns: float) -> Sequence[Any]:
    """Measure two functions: the first takes 1 ms, the second these times, one after the other."""
    left = iter(turns)

    def timed(run: Callable[[], object], calls: int) -> float:
        return 1e-3 * (1.0 if run is first else next(left, turns[-1]))

    def first() -> None:
        pass

    return measured_times([first, lambda: None], 1, lambda: None, timed)


@pytest.mark.parametrize(
    ("turns", "series", "is_faster"),
    [
        ([0.5], 2, True),
        ([1.0], 1, False),
        ([0.98], 1, False),
        ([0.5] * (measured.MOST_TURNS + 1) + [1.2], 2, False),  # a neighbour came or went
        ([0.1, 1.2], 1, False),  # one lucky turn
        ([3.0, 0.5], 2, True),  # one that was disturbed
    ],
)
def test_a_gain_has_to_show_in_the_middle_and_in_the_fastest_of_every_series(
    turns: list[float], series: int, is_faster: bool
) -> None:
    found = times_of(*turns)
    assert len(found) == series
    assert (measured._ratio(found) < MARGIN) is is_faster


def test_a_measurement_is_cancelled_between_turns() -> None:
    def check() -> None:
        raise Cancelled("cancelled")

    with pytest.raises(Cancelled):
        measured_times([lambda: None, lambda: None], 1, check, lambda run, calls: 1.0)


@pytest.mark.parametrize(
    ("own", "other", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0], True),
        ([1.0, 2.00001], [1.0, 2.0], True),
        ([1.0, 2.1], [1.0, 2.0], False),
        ([np.nan, np.inf], [np.nan, np.inf], True),
        ([0.0, np.inf], [np.nan, np.inf], False),
        ([1.0, np.nan], [1.0, 1.0], False),
        ([1.0], [1.0, 1.0], False),
        ([], [], True),
    ],
)
def test_results_agree_within_what_a_rewrite_may_change(
    own: list[float], other: list[float], expected: bool
) -> None:
    assert agree(np.float32(own), np.float32(other)) is expected


def test_whole_numbers_may_jump_and_types_may_not_change() -> None:
    assert agree(np.int64([1]), np.int64([2, 3]))
    assert not agree(np.int64([1]), np.int32([1]))


def test_a_model_whose_forms_differ_is_left_as_it_is(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "agree", lambda own, other: False)
    assert "not measured: its results differ" in reason(load(path))


def test_samples_have_the_declared_sizes_and_one_size_a_symbol() -> None:
    specs = [
        TensorSpec("image", DType.FLOAT32, ("n", 3, "h", "w")),
        TensorSpec("ids", DType.INT64, ("n", "len")),
        TensorSpec("mask", DType.BOOL, ("n", "len")),
        TensorSpec("scale", DType.FLOAT64, ()),
        TensorSpec("signal", DType.FLOAT32, (None, None)),
    ]
    first, second, *_ = samples(specs, CPU)
    assert first["image"].shape == (1, 3, 224, 224)
    assert second["image"].shape == (1, 3, 256, 256)
    assert first["ids"].shape == first["mask"].shape == (1, 64)
    assert first["scale"].dtype == np.float64
    assert first["signal"].shape == (1, 512)
    asked = replace(CPU, shapes={"image": ShapeRange((0, 0, 0, 0), (2, 3, 32, 64), (4, 3, 99, 99))})
    assert next(samples(specs, asked))["image"].shape == (2, 3, 32, 64)
    assert next(samples(specs, asked))["ids"].shape == (2, 64)


@pytest.mark.parametrize(
    "spec",
    [TensorSpec("x", DType.STRING, (1,)), TensorSpec("x", DType.FLOAT32, None),
     TensorSpec("x", DType.BFLOAT16, (1,)), TensorSpec("x", DType.FLOAT32, (1 << 20, 1 << 20))],
)  # fmt: skip
def test_there_is_no_sample_of_what_cannot_be_drawn(spec: TensorSpec) -> None:
    assert list(samples([spec], CPU)) == []
