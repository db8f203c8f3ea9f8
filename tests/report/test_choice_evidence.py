"""Target auto: the evidence that is kept, and all that it depends on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from choices import CONFIG, Install, Speeds, build, evidence_of, where
from onnx import helper
from onnx.numpy_helper import from_array

import engine
from engine.backends.discovery import forget
from engine.errors import Cancelled
from engine.report.choice import keeping
from engine.report.choice.evidence import Evidence, Setup, Trial, read
from engine.types import CancelToken
from engine.weights.store import Store


def test_five_builds_choose_alike_and_measure_once(speeds: Speeds, path: Path) -> None:
    speeds.of["other"] = [0.5]
    assert where(build(path)) == "other"
    speeds.of["other"] = [2.0]
    assert [where(build(path)) for _ in range(4)] == ["other"] * 4
    assert len(speeds.compared) == 2


def test_without_the_cache_a_process_measures_once(
    speeds: Speeds, path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ENGINE_CACHE", "off")
    speeds.of["other"] = [0.5]
    for _ in range(2):
        assert where(engine.load(path, target="auto", threads=1, config=CONFIG)) == "other"
    assert len(speeds.compared) == 2
    assert not (tmp_path / "cache").exists()


def test_large_models_that_differ_in_one_byte_share_no_evidence(
    speeds: Speeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_CACHE", "off")
    for place in (5, 6, 7, 8):
        weight = np.zeros(40_000, np.float32)
        weight[place] = 3
        x, y = (helper.make_tensor_value_info(name, 1, [1, 40_000]) for name in "xy")
        node, constant = helper.make_node("Mul", ["x", "w"], ["y"]), from_array(weight, "w")
        graph = helper.make_graph([node], "g", [x], [y], [constant])
        opsets = [helper.make_opsetid("", 17)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        engine.load(model.SerializeToString(), target="auto", threads=1, config=CONFIG)
    assert len(speeds.compared) == 4


def test_a_default_that_was_not_compared_with_all_counts_for_a_while(
    speeds: Speeds, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no time for the other backend, as on a machine that stands still for a while."""
    little = {"common_context": {"auto_budget_s": "1e-9"}}
    build(path, config=little)
    first = evidence_of(tmp_path)
    assert first.valid_s == 1000 * first.took_s
    build(path, config=little)
    assert evidence_of(tmp_path) == first
    now = first.created + first.valid_s + 1
    monkeypatch.setattr("time.time", lambda: now)
    build(path, config=little)
    assert evidence_of(tmp_path).created == now


def test_a_process_measures_once_where_what_counts_no_more_cannot_be_replaced(
    speeds: Speeds, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    make_read_only: Callable[[Path], None],
) -> None:  # fmt: skip
    little = {"common_context": {"auto_budget_s": "1e-9"}}
    build(path, config=little)
    now = evidence_of(tmp_path).created + evidence_of(tmp_path).valid_s + 1
    monkeypatch.setattr("time.time", lambda: now)
    make_read_only(tmp_path / "cache")
    begun: list[str] = []
    for _ in range(2):
        engine.load(path, target="auto", threads=1, config=little,
                    progress=lambda *step: begun.append(str(step[0])))  # fmt: skip
    assert begun.count("try other,base") == 1


def evidence(chosen: str, is_open: bool, created: float = 0.0) -> Evidence:
    trials = (Trial(setup=Setup(("base",))), Trial(setup=Setup(("other",)), is_open=is_open))
    return Evidence(
        chosen=Setup((chosen,)), default=Setup(("base",)), trials=trials, reason="", inputs={},
        key={}, created=created, took_s=5.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kept", "now", "counts"),
    [
        (evidence("base", True), 4999.0, True),
        (evidence("base", True), 5000.0, False),
        (evidence("base", True, created=1.0), 0.0, False),  # the clock was set back
        (evidence("base", False), 1e12, True),
        (evidence("base", False, created=1.0), 0.0, True),
        (evidence("other", True), 1e12, True),
    ],
)
def test_a_default_with_something_open_is_measured_again_for_a_thousandth_of_the_time(
    kept: Evidence, now: float, counts: bool
) -> None:
    assert kept.counts_at(now) == counts


def test_builds_at_the_same_time_measure_once(speeds: Speeds, path: Path) -> None:
    speeds.of["other"] = [0.5]
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(lambda _: where(build(path)), range(4))] == ["other"] * 4
    assert len(speeds.compared) == 2


def test_a_build_that_waits_for_another_to_measure_can_be_cancelled(
    speeds: Speeds, path: Path, tmp_path: Path
) -> None:
    token = CancelToken()
    with Store(tmp_path / "cache").locked("choice"), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(build, path, cancel=token)
        token.cancel()
        with pytest.raises(Cancelled):
            waiting.result()
    assert speeds.compared == []


@pytest.mark.parametrize("what", ["core", "machine", "backend", "settings", "new backend"])
def test_a_change_of_what_the_choice_depends_on_measures_anew(
    speeds: Speeds, install: Install, path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    build(path)
    before = len(speeds.compared)
    more: dict[str, Any] = {}
    if what == "core":
        monkeypatch.setattr(keeping, "__version__", "99")
    elif what == "machine":
        monkeypatch.setattr(keeping.processor, "features", lambda: "another")
    elif what == "backend":
        monkeypatch.setattr(keeping, "_versions", lambda point: "2.0")
    elif what == "settings":
        more["config"] = {**CONFIG, "other_context": {"unsupported_ops": "Tanh"}}
    else:
        install("third")
    build(path, **more)
    assert len(speeds.compared) > before


TOYS = """
import engine.types as types
kind = "Toy 1"

@hookimpl
def engine_devices():
    return types.Devices((types.DeviceInfo(types.Device("null", 0), kind),))
"""


@pytest.mark.parametrize("cache", ["on", "off"])
def test_another_kind_of_device_measures_anew(
    speeds: Speeds, install: Install, path: Path, monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    monkeypatch.setenv("ENGINE_CACHE", cache)
    module = install("toys", extra=TOYS)
    speeds.of["toys"] = [0.5]

    def built() -> str:
        return where(engine.load(path, target="auto", threads=1, config=CONFIG))

    assert built() == "toys"
    before = len(speeds.compared)
    assert built() == "toys"
    assert len(speeds.compared) == before
    module.kind = "Toy 2"
    forget("toys")
    speeds.of["toys"] = [2.0]
    assert built() == "base"
    assert len(speeds.compared) > before


def test_a_new_accelerator_on_the_bus_measures_anew_where_a_cpu_was_chosen(
    speeds: Speeds, path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def plug(name: str, **facts: str) -> None:
        for fact, text in facts.items():
            file = tmp_path / "bus" / name / fact
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n")

    plug("network", vendor="0x1", device="0x2", subsystem_device="0x3")
    plug("network", **{"class": "0x020000"})
    bus = partial(keeping.accelerators, tmp_path / "bus")
    assert bus() == ""
    monkeypatch.setattr(keeping, "accelerators", bus)
    assert where(build(path)) == "base"
    before = len(speeds.compared)
    assert where(build(path)) == "base"
    assert len(speeds.compared) == before
    plug("gpu", vendor="0x10de", device="0x2335", subsystem_device="0x18be")
    plug("gpu", **{"class": "0x030200"})
    assert bus() == "0x10de:0x2335:0x18be"
    assert where(build(path)) == "base"
    assert len(speeds.compared) > before


def test_evidence_that_was_tampered_with_is_not_believed(
    speeds: Speeds, path: Path, tmp_path: Path
) -> None:
    assert where(build(path)) == "base"
    [entry] = Store(tmp_path / "cache").entries()
    file = entry.form / "evidence.json"
    said = json.loads(file.read_bytes())
    said["chosen"]["targets"] = ["other", "base"]
    file.chmod(0o600)
    file.write_text(json.dumps(said))
    before = len(speeds.compared)
    assert where(build(path)) == "base"
    assert len(speeds.compared) > before


def test_evidence_in_a_folder_that_others_can_write_to_is_not_believed(
    speeds: Speeds, path: Path, tmp_path: Path
) -> None:
    speeds.of["other"] = [0.5]
    assert where(build(path)) == "other"
    (tmp_path / "cache" / "v1").chmod(0o777)
    speeds.of["other"] = [2.0]
    assert where(build(path)) == "base"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_evidence_of_another_user_is_not_believed(
    speeds: Speeds, path: Path, tmp_path: Path
) -> None:
    speeds.of["other"] = [0.5]
    assert where(build(path)) == "other"
    os.chown(tmp_path / "cache" / "v1", 12345, 12345)
    speeds.of["other"] = [2.0]
    assert where(build(path)) == "base"


@pytest.mark.parametrize(
    "change",
    [
        {"format": 1}, {"chosen": {"targets": [], "threads": 0, "sections": {}}},
        {"chosen": {"targets": ["base"], "threads": -1, "sections": {}}}, {"trials": 1},
        {"key": []}, {"created": "yesterday"},
        {"trials": [{"setup": {"targets": ["a"], "threads": 0, "sections": {}}, "default_s": -1}]},
    ],
)  # fmt: skip
def test_a_text_that_is_no_evidence_is_refused(change: dict[str, Any]) -> None:
    setup = Setup(("other", "base"), 1, {"other_context": {"rewrites": "exact"}})
    trial = Trial(setup=setup, default_s=2.0, seconds=1.0, ratio=0.5, rounds=7, nodes={"a": 1})
    evidence = Evidence(
        chosen=setup, default=Setup(("base",)), trials=(trial,), reason="it is faster",
        inputs={"x": [1, 3]}, key={"core": "1"}, created=1.0, took_s=2.0,
        devices={"device other": "Toy 1"},
    )  # fmt: skip
    assert read(json.dumps(evidence.to_json())) == evidence
    with pytest.raises(ValueError, match=r"\w"):
        read(json.dumps({**evidence.to_json(), **change}))
    with pytest.raises(ValueError, match=r"\w"):
        read("[]")
