"""A tuning: what is tried, when it is chosen, the configuration that it writes, and who refuses it.

Speeds are given, never taken: `tournament` gets timings by the backend and the threads.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from choices import WRONG, Install, Speeds, X
from onnx import helper, load, save

import engine
from engine import Context, InputError, Model, ModelError, ModelParallelRunner, ModelType
from engine.backends.discovery import forget
from engine.config.reader import read_config
from engine.config.text import plain
from engine.errors import Cancelled, SettingError
from engine.formats import encryption
from engine.plan import options
from engine.report.choice import keeping
from engine.report.choice.evidence import Trial
from engine.report.tuning import tournament, tuning
from engine.report.tuning.rounds import Timings
from engine.types import CancelToken

Tune = Callable[..., tuning.Tuning]


class Given:
    """Seconds per request by what runs: "base", "other"; one list entry for each comparison."""

    def __init__(self) -> None:
        self.of: dict[str, list[float]] = {"base": [1.0]}
        self.tail: dict[str, float] = {}
        self.clients: list[int] = []
        self.requests = 40  # of a round, of which the last is of the tail

    def timed(
        self, runs: Sequence[Any], clients: int, seconds: float, check: Callable[[], object],
        **more: Any,
    ) -> list[Timings]:  # fmt: skip
        check()
        self.clients.append(clients)
        found = []
        for run in runs:
            runner = run.func.__self__
            placed = runner.placement
            name = placed[0].backend
            left = self.of.get(name, [1.0])
            request_s = left.pop(0) if len(left) > 1 else left[0]
            timings = Timings()
            late_s = self.tail.get(name, request_s)
            for _ in range(9):
                timings.add(request_s, np.array([request_s] * (self.requests - 1) + [late_s]))
            found.append(timings)
        return found


@pytest.fixture
def given(speeds: Speeds, monkeypatch: pytest.MonkeyPatch) -> Given:
    """Backends `base` and `other`, alone on this machine, whose speeds are given."""
    made = Given()
    monkeypatch.setattr(tournament, "timed", made.timed)
    monkeypatch.setattr(tuning, "can_start_processes", lambda: False)
    monkeypatch.setattr(tuning, "default_target", lambda: "base")
    return made


@pytest.fixture
def tune(given: Given, path: Path, tmp_path: Path) -> Tune:
    def call(**more: Any) -> tuning.Tuning:
        return engine.tune(path, **{"budget_s": 1000, "out": tmp_path / "t.ini", **more})

    return call


def trials(found: tuning.Tuning) -> dict[str, Trial]:
    return {str(trial.setup): trial for trial in found.evidence.trials}


# ------------------------------------------------------------------------------------- the choice


def test_the_faster_backend_is_chosen_and_its_configuration_runs_the_model_there(
    given: Given, tune: Tune, path: Path
) -> None:
    given.of["other"] = [0.5]
    found = tune()
    assert str(found.evidence.chosen) == "other,base"
    assert found.gain == 2.0
    assert found.evidence.reason == "other,base takes 0.500 (0.500 to 0.500) of the time of base"
    with engine.load(path, config=found.path) as model:
        assert {placed.backend for placed in model.placement} == {"other"}
        np.testing.assert_array_equal(model(x=X)["y"], 2 * X + 1)


def test_the_default_is_kept_where_nothing_is_faster(given: Given, tune: Tune, path: Path) -> None:
    given.of["other"] = [1.2]
    found = tune()
    assert str(found.evidence.chosen) == "base"
    assert found.gain == 1.0
    assert trials(found)["other,base"].ratio == 1.2
    with engine.load(path, config=found.path) as model:
        assert model.placement[0].backend == "base"


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (0.98, "is faster by less than 3 %: it takes 0.980"),
        (1.0, "is not proven to be faster: it takes 1.000"),
        (3.0, "is not proven to be faster: it takes 3.000"),
    ],
)
def test_the_default_is_kept_where_the_last_comparison_does_not_prove_a_gain(
    given: Given, tune: Tune, last: float, reason: str
) -> None:
    given.of["other"] = [0.5, last]
    found = tune()
    assert str(found.evidence.chosen) == "base"
    assert f"the best, other,base, {reason}" in found.evidence.reason


def test_the_best_of_several_is_chosen(given: Given, install: Install, tune: Tune) -> None:
    for number in range(6):
        install(f"more{number}")
        given.of[f"more{number}"] = [0.9 - number / 10]
    assert str(tune().evidence.chosen) == "more5,base"


def test_a_backend_whose_results_differ_is_never_chosen(
    given: Given, install: Install, tune: Tune
) -> None:
    install("faulty", extra=WRONG)
    given.of["faulty"] = [0.1]
    found = tune()
    assert str(found.evidence.chosen) == "base"
    assert "its results differ" in trials(found)["faulty,base"].why_not


def test_targets_limit_what_is_tried(given: Given, install: Install, tune: Tune) -> None:
    install("third")
    given.of.update(third=[0.2], other=[0.5], base=[1.0])
    found = tune(targets=["other", "base"])
    assert {trial.setup.targets[0] for trial in found.evidence.trials} == {"other", "base"}
    assert str(found.evidence.default) == "other"


def test_powers_of_two_of_threads_are_tried_and_the_number_of_the_cpus(
    given: Given, tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "threads_per_worker", lambda: 6)
    tried = {trial.setup.threads for trial in tune(targets=["base"]).evidence.trials}
    assert tried == {0, 1, 2, 4, 6}


def test_requests_that_take_too_long_are_no_choice(
    given: Given, install: Install, tune: Tune
) -> None:
    install("third")
    given.of.update(third=[0.7], other=[0.5])
    given.tail["other"] = 9.0
    found = tune(p99_ms=5000)
    assert str(found.evidence.chosen) == "third,base"
    assert "p99 at most 5000 ms" in found.goal


def test_a_slower_setup_is_chosen_where_it_alone_keeps_the_limit(given: Given, tune: Tune) -> None:
    given.of["other"] = [1.1]
    given.tail["base"] = 9.0
    found = tune(p99_ms=5000)
    assert str(found.evidence.chosen) == "other,base"
    assert "keeps the limit, which base does not" in found.evidence.reason


def test_the_default_is_kept_where_nothing_keeps_the_limit(given: Given, tune: Tune) -> None:
    given.of["other"] = [0.5]
    found = tune(p99_ms=1)
    assert str(found.evidence.chosen) == "base"
    assert "no setup keeps the limit" in found.evidence.reason


def test_a_limit_is_not_proven_by_few_requests(given: Given, tune: Tune) -> None:
    """63 requests, of which the slowest may be the median of what is to come."""
    given.of["other"] = [0.5]
    given.requests = 1
    found = tune(p99_ms=5000, budget_s=10)
    assert str(found.evidence.chosen) == "base"
    assert re.search(
        r"other,base is not proven to keep the limit: it has a p99 of 500 ms by \d+ requests",
        found.evidence.reason,
    )
    figures = trials(found)["other,base"].figures
    assert figures is not None
    assert figures.p99_high_s is None
    assert json.loads(read_config(found.path)["tuned"]["evidence"])["trials"]


def test_the_bounds_of_a_p99_are_in_the_evidence(given: Given, tune: Tune) -> None:
    given.of["other"] = [0.5]
    figures = trials(tune(p99_ms=5000))["other,base"].figures
    assert figures is not None
    assert figures.requests == 7 * 9 * 40
    assert (figures.p99_low_s, figures.p99_s, figures.p99_high_s) == (0.5, 0.5, 0.5)


def test_the_frontier_has_what_nothing_beats_in_all_four(
    given: Given, install: Install, tune: Tune
) -> None:
    install("third")
    given.of.update(third=[0.7], other=[0.5])
    found = tune()
    assert all(trial.setup.targets[0] == "other" for trial in found.frontier)


def test_new_builds_give_the_ratios_of_the_last_comparison(
    given: Given, install: Install, tune: Tune
) -> None:
    """A build may be lucky, by where its memory lies, and be picked for that."""
    module = install("third")
    given.of["third"] = [0.5]
    tried = [name for name in trials(tune(targets=["base", "third"])) if name.startswith("third")]
    assert len(module.opened) == len(tried) + 7
    module.opened.clear()
    given.of["third"] = [0.5, 0.9, 1.1, 0.9, 1.1, 0.9, 1.1, 1.1]
    found = tune(targets=["base", "third"])
    assert "is not proven to be faster: it takes 1.1" in found.evidence.reason, "the median"


def test_where_builds_are_slow_one_new_build_gives_all_ratios(
    given: Given, install: Install, tune: Tune
) -> None:
    module = install("third")
    given.of["third"] = [0.5]
    found = tune(targets=["base", "third"], budget_s=20)
    assert str(found.evidence.chosen) == "third,base"
    figures = trials(found)["third,base"].figures
    assert figures is not None
    assert figures.rounds == 9, "of one timing"
    tried = [name for name in trials(found) if name.startswith("third")]
    assert len(module.opened) == len(tried) + 1


def test_a_setup_is_not_begun_without_time_to_build_it(
    given: Given, install: Install, tune: Tune
) -> None:
    """By what another one of the same backend took."""
    install("heavy", extra=(
        "\nimport time\n@hookimpl\ndef engine_compile(loaded, options):\n    time.sleep(2)\n"
        "    return loaded.compile(options)\n"
    ))  # fmt: skip
    given.of["heavy"] = [0.5]
    found = trials(tune(targets=["base", "heavy"], budget_s=5))
    assert found["heavy,base"].ratio is not None
    later = found["heavy,base threads=1"]
    assert later.why_not == "no time was left to try it"


SLOW_TO_BUILD = """
import time

@hookimpl
def engine_compile(loaded, options):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        options.cancel.check()
        time.sleep(0.01)
    raise RuntimeError("nobody cancelled it")
"""


@pytest.mark.parametrize("clients", [1, 2])
def test_a_build_that_takes_longer_than_the_time_for_trying_is_cancelled(
    given: Given, install: Install, tune: Tune, clients: int
) -> None:
    install("heavy", extra=SLOW_TO_BUILD)
    given.of["heavy"] = [0.1]
    found = tune(targets=["base", "heavy"], budget_s=8, clients=clients, cancel=CancelToken())
    assert str(found.evidence.chosen) == "base"
    why_not = trials(found)["heavy,base"].why_not
    assert why_not.endswith("the time for trying was over while it was built")


def test_the_users_cancel_ends_a_build(given: Given, install: Install, tune: Tune) -> None:
    install("heavy", extra=SLOW_TO_BUILD)
    token = CancelToken()
    timer = threading.Timer(0.5, token.cancel)
    timer.start()
    begin = time.monotonic()
    with pytest.raises(Cancelled):
        tune(targets=["base", "heavy"], cancel=token)
    assert time.monotonic() - begin < 30, "half of the time that the build takes"
    timer.join()


def test_several_clients_are_served_by_runners(given: Given, tune: Tune, path: Path) -> None:
    given.of["other"] = [0.5]
    found = tune(clients=3)
    assert set(given.clients) == {3}
    assert str(found.evidence.chosen).startswith("other,base")
    context = Context()
    context.parallel.config_path = found.path
    with ModelParallelRunner() as runner:
        runner.build_from_file(str(path), context)
        assert runner.placement[0].backend == "other"
        np.testing.assert_array_equal(runner.predict([X])[0], 2 * X + 1)


def test_progress_is_told_of_the_time_and_its_exception_ends_the_tuning(tune: Tune) -> None:
    told: list[tuple[str, int, int | None]] = []
    tune(progress=lambda *step: told.append(step))
    times = [(done, total) for phase, done, total in told if phase == "tuning"]
    assert times == sorted(times)
    assert {total for _, total in times} == {1_000_000}
    assert times[-1] == (1_000_000, 1_000_000), "whatever was left of the time"

    def end(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(progress=end)


def test_cancel_ends_a_tuning_and_leaves_no_file(tune: Tune, tmp_path: Path) -> None:
    token = CancelToken()
    token.cancel()
    with pytest.raises(Cancelled):
        tune(cancel=token)
    assert not (tmp_path / "t.ini").exists()


def test_a_setup_that_fails_in_the_end_leaves_the_default(
    given: Given, tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    given.of["other"] = [0.5]
    timed = given.timed

    def failing(runs: Sequence[Any], *more: Any, **named: Any) -> list[Timings]:
        if "order" in named:
            raise RuntimeError("out of order")
        return timed(runs, *more, **named)

    monkeypatch.setattr(tournament, "timed", failing)
    found = tune()
    assert str(found.evidence.chosen) == "base"
    assert found.evidence.reason == "one of the best failed in the end: RuntimeError: out of order"


# -------------------------------------------------------------------------------- the configuration


@pytest.mark.parametrize("name", ["t.ini", "t.cfg", "t.toml", "t.json", "t.yaml"])
def test_every_format_says_the_same(given: Given, tune: Tune, tmp_path: Path, name: str) -> None:
    given.of["other"] = [0.5]
    found = tune(out=tmp_path / name, config={"other_context": {"delay_s": 0}})
    config = read_config(found.path)
    assert config["other_context"] == {"delay_s": "0"}
    tuned = config["tuned"]
    assert tuned["target"] == "other,base"
    assert tuned["machine"] == keeping.circumstances([])["machine"]
    said = json.loads(tuned["evidence"])
    assert said["chosen"]["targets"] == ["other", "base"]
    assert said["trials"][0]["setup"]["targets"] == ["base"]
    if name == "t.toml":
        assert tomllib.loads(Path(found.path).read_text())["tuned"] == tuned


def test_the_file_shows_people_what_was_tried(given: Given, tune: Tune) -> None:
    given.of["other"] = [0.5]
    found = tune()
    comments = [line for line in Path(found.path).read_text().splitlines() if line[:1] == "#"]
    assert any("other,base" in line and "0.500 (0.500 to 0.500)" in line for line in comments)
    [chosen] = [line for line in comments if "(chosen)" in line]
    assert re.match(r"# +other,base \(chosen\) ", chosen)
    page = " ".join(ElementTree.fromstring(found._repr_html_()).itertext())
    assert "0.500 (0.500 to 0.500)" in page
    assert page.count("other,base (chosen)") == page.count("(chosen)") == 1


def test_an_earlier_tuning_is_no_part_of_the_next(given: Given, tune: Tune, tmp_path: Path) -> None:
    given.of["other"] = [0.5]
    first = tune()
    with pytest.raises(ValueError, match=r"config: has section \[tuned\]"):
        tune(config=first.path, out=tmp_path / "second.ini")


def test_a_setting_that_ini_cannot_hold_is_refused_before_anything_is_measured(
    given: Given, tune: Tune, tmp_path: Path
) -> None:
    config = {"base_context": {"note": " two\nlines"}}
    with pytest.raises(InputError, match=r"name a \.toml file"):
        tune(config=config)
    assert given.clients == []
    found = tune(config=config, out=tmp_path / "t.toml")
    assert read_config(found.path)["base_context"]["note"] == " two\nlines"


def changed(path: str, key: str, value: str | None) -> str:
    """Write the configuration again with another value of a key of [tuned], or without it."""
    line = "" if value is None else f"{key}={value}\n"
    text, count = re.subn(rf"^{key}=.*\n", line, Path(path).read_text(), flags=re.M)
    assert count == 1
    other = Path(path).with_name("changed.ini")
    other.write_text(text)
    return str(other)


REFUSALS = [
    ("machine", "another", "measured for another machine: expected 'another', got '"),
    ("core", "0.0.1", "measured for another version of inference-engine: expected '0.0.1', got"),
    ("backend other", "other 9", "measured for another version of backend other: expected 'other"),
    ("model", "12ab", "measured for another model: expected '12ab', got '"),
    ("model", None, "is not whole: it has no key 'model'"),
    ("backend base", None, "is not whole: it has no key 'backend base'"),
    ("target", "", "target must name targets, but got ''"),
    ("target", "nowhere", "nowhere"),
]


@pytest.mark.parametrize(("key", "value", "why"), REFUSALS)
def test_a_configuration_of_another_place_is_refused_by_all_who_take_it(
    given: Given, tune: Tune, path: Path, key: str, value: str | None, why: str
) -> None:
    given.of["other"] = [0.5]
    other = changed(tune().path, key, value)
    with pytest.raises((SettingError, engine.BackendError), match=re.escape(f"{other}: ")):
        engine.load(path, config=other)
    context = Context()
    context.parallel.config_path = other
    with pytest.raises((SettingError, engine.BackendError), match=re.escape(f"{other}: ")):
        ModelParallelRunner().build_from_file(str(path), context)
    with pytest.raises((SettingError, engine.BackendError), match=re.escape(why)):
        engine.load(path, config=other)
    with pytest.raises((SettingError, engine.BackendError), match=re.escape(why)):
        Model().build_from_file(str(path), ModelType.MINDIR, Context(), other)
    with pytest.raises((SettingError, engine.BackendError), match=re.escape(why)):
        engine.load(path.read_bytes(), config=other)
    context = Context()
    context.parallel.config_path = other
    with pytest.raises((SettingError, engine.BackendError, ValueError), match=re.escape(why)):
        ModelParallelRunner().build_from_file(str(path), context)


@pytest.mark.parametrize(
    ("key", "hint"), [("thread", r"did you mean 'threads'\?"), ("read_from", "known: target, ")]
)
def test_an_unknown_key_is_refused(tune: Tune, path: Path, key: str, hint: str) -> None:
    """A path in read_from is the reader's own note, which no file and no dict may have."""
    sections = read_config(tune().path)
    sections["tuned"][key] = "1"
    wanted = rf"\[tuned\] {key} is unknown; {hint}"
    with pytest.raises(SettingError, match=wanted):
        engine.load(path, config=sections)
    context = Context()
    context.parallel.config_info = sections
    with pytest.raises(SettingError, match=wanted):
        ModelParallelRunner().build_from_file(str(path), context)


DEVICES = """
import engine.types as types
kind, driver = "Toy 1", "7.0"

@hookimpl
def engine_devices():
    return types.Devices((types.DeviceInfo(types.Device("null", 0), kind),))

@hookimpl
def engine_compiled_key(options):
    assert options.device.type == "null"
    return {"driver": driver, "unset": ""}
"""


def test_another_device_or_driver_refuses_the_configuration(
    given: Given, install: Install, tune: Tune, path: Path
) -> None:
    module = install("toys", extra=DEVICES)
    given.of["toys"] = [0.5]
    found = tune()
    assert str(found.evidence.chosen) == "toys,base", str(found)
    assert read_config(found.path)["tuned"]["device toys"].startswith("Toy 1 (")
    with engine.load(path, config=found.path) as model:
        assert model.placement[0].backend == "toys"
    for name, value, now in (
        ("driver", "7.1", r"Toy 1 \(.*driver 7\.1"),
        ("kind", "Toy 2", "Toy 2"),
    ):
        before = getattr(module, name)
        setattr(module, name, value)
        forget("toys")
        why = rf"measured for another device toys: expected 'Toy 1 \(.*7\.0.*, got '{now}"
        with pytest.raises(SettingError, match=why):
            engine.load(path, config=found.path)
        setattr(module, name, before)
        forget("toys")


def test_a_path_that_is_no_text_is_written_readably(
    given: Given, path: Path, tmp_path: Path
) -> None:
    other = tmp_path / os.fsdecode(b"net\xff.onnx")
    other.write_bytes(path.read_bytes())
    place = tmp_path / os.fsdecode(b"t\xff.ini")
    given.of["other"] = [0.5]
    found = engine.tune(other, budget_s=1000, out=place)
    text = place.read_text(encoding="utf-8")
    assert "for " + plain(str(other)) in text
    assert "\\udcff.onnx" in text
    with engine.load(other, config=found.path) as model:
        assert model.placement[0].backend == "other"
    with pytest.raises(InputError, match=r"\[base_context\] note='\\udcff' is no text"):
        engine.tune(other, out=place, config={"base_context": {"note": "\udcff"}})


def test_another_model_refuses_the_configuration(
    given: Given, tune: Tune, path: Path, tmp_path: Path
) -> None:
    found = tune()
    model = load(path)
    model.graph.node.append(helper.make_node("Identity", ["y"], ["z"]))
    model.graph.output[0].name = "z"
    (tmp_path / "other").mkdir()
    save(model, tmp_path / "other" / "net.onnx")
    with pytest.raises(SettingError, match=r"another model.*tune the model here: engine tune"):
        engine.load(tmp_path / "other" / "net.onnx", config=found.path)


def test_the_same_model_elsewhere_takes_it(
    given: Given, tune: Tune, path: Path, tmp_path: Path
) -> None:
    found = tune()
    copy = tmp_path / "copy.onnx"
    copy.write_bytes(path.read_bytes())
    for mode in ("on", "off"):
        config = read_config(found.path) | {"common_context": {"compile_cache": mode}}
        engine.load(copy, config=config).close()


def test_another_target_is_refused_and_own_threads_stay(
    given: Given, tune: Tune, path: Path
) -> None:
    given.of["other"] = [0.5]
    found = tune(targets=("base", "other"))
    for target in ("cpu", "auto", "base", ["other", "base"]):
        with engine.load(path, target, config=found.path) as model:
            assert model.placement[0].backend == "other"
    with pytest.raises(SettingError, match=r"\[tuned\] is for target .* but the target is"):
        engine.load(path, "other", config=found.path)


@pytest.mark.parametrize("key", ["threads", "workers", "max_batch_size"])
def test_a_number_that_is_none_is_refused(tune: Tune, path: Path, key: str) -> None:
    sections = read_config(tune().path)
    sections["tuned"][key] = "-1"
    context = Context()
    context.parallel.config_info = sections
    with pytest.raises(ValueError, match=f"{key} must be a whole number, but got '-1'"):
        ModelParallelRunner().build_from_file(str(path), context)


def test_the_workers_of_a_configuration_are_those_of_a_runner(tune: Tune, path: Path) -> None:
    sections = read_config(tune().path)
    sections["tuned"] |= {"workers": "3", "threads": "1", "max_batch_size": "1"}
    context = Context()
    context.parallel.config_info = sections
    with ModelParallelRunner() as runner:
        runner.build_from_file(str(path), context)
        assert "3 at once" in repr(runner)
        assert runner.statistics().batching.startswith("off")
    assert context.parallel.workers_num == 0, "the user's context stays as it is"
    assert context.target == ["cpu"]


# ------------------------------------------------------------------------------------- wrong use


WRONG_USE: list[tuple[Mapping[str, Any], type[Exception], str]] = [
    ({"clients": 0}, ValueError, "clients must be 1 to 1000, but got 0"),
    ({"clients": 1.5}, ValueError, "clients must be 1 to 1000"),
    ({"p99_ms": 0}, ValueError, "p99_ms must be a number above 0, or None, but got 0"),
    ({"max_error": "a"}, TypeError, "max_error must be a number, but got <class 'str'>"),
    ({"max_error": 2}, ValueError, "max_error must be from 0 to 1, or None, but got 2"),
    ({"budget_s": 0}, ValueError, "budget_s must be a number of seconds above 0, but got 0"),
    ({"targets": "nowhere"}, ValueError, "target elements must be in"),
    ({"targets": ["base", "nowhere"]}, ValueError, "target elements must be in"),
    ({"targets": ["auto"]}, ValueError, "'auto'"),
    ({"out": "/no/such/folder/t.ini"}, ValueError, "is in no folder that can be written to"),
    ({"out": "/"}, ValueError, "is a folder"),
    ({"out": "m.onnx"}, ValueError, "'m.onnx' is a model; name a configuration"),
    ({"config": "/no/such.ini"}, FileNotFoundError, "engine.tune failed, config does not exist!"),
    ({"config": {"cpu": 1}}, TypeError, "config must be a dict of sections"),
    ({"shapes": {"no": [1]}}, InputError, "the model has no input 'no'; it has x"),
    ({"shapes": {"x": [7, 9]}}, InputError, "shapes: input 'x' is float32[batch, 3], got [7, 9]"),
    ({"shapes": {"x": [3]}}, InputError, "shapes: input 'x' is float32[batch, 3], got [3]"),
    ({"progress": 1}, TypeError, "progress"),
]


@pytest.mark.parametrize(("more", "kind", "text"), WRONG_USE)
def test_wrong_use_is_refused(
    tune: Tune, more: Mapping[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        tune(**more)


def test_a_model_that_is_none_is_refused(given: Given, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"engine\.tune failed, there is no file"):
        engine.tune(tmp_path / "none.onnx")
    with pytest.raises(TypeError, match="model must be the path of a file"):
        engine.tune(b"bytes")  # type: ignore[arg-type]
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(ModelError):
        engine.tune(tmp_path / "bad.onnx", out=tmp_path / "t.ini")


def test_an_encrypted_model_cannot_be_tuned(given: Given, path: Path, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    secret = tmp_path / "secret.mindir"
    secret.write_bytes(encryption.encrypt(path.read_bytes(), b"0123456789abcdef"))
    with pytest.raises(ModelError, match="cannot be tuned: it is encrypted with AES-GCM"):
        engine.tune(secret, out=tmp_path / "t.ini")
    assert not (tmp_path / "t.ini").exists()


def test_the_model_is_not_written_over(given: Given, path: Path, tmp_path: Path) -> None:
    other = tmp_path / "net.bin"
    content = path.read_bytes()
    other.write_bytes(content)
    with pytest.raises(ValueError, match="is a model; name a configuration file of yours"):
        engine.tune(other, out=other)
    assert other.read_bytes() == content


def test_a_model_that_does_not_run_on_generated_inputs_cannot_be_tuned(
    tune: Tune, install: Install
) -> None:
    install("failing", extra=(
        "\n@hookimpl\ndef engine_predict(context, inputs, outputs, deadline_s):\n"
        "    raise RuntimeError('out of order')\n"
    ))  # fmt: skip
    with pytest.raises(ModelError, match=r"cannot be tuned: nothing was compared: .*out of order"):
        tune(targets=["failing"])
