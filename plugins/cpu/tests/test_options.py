"""The user's settings reach ONNX Runtime, and wrong ones are refused by name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest

import engine
from engine import Context, Model, ModelType
from engine.types import CompileOptions, Device, Threads
from engine_cpu import spin
from engine_cpu.options import OPTIONS, session_options
from engine_testing import models


def options(threads: Threads = Threads(), **settings: str) -> ort.SessionOptions:  # noqa: B008
    return session_options(CompileOptions(device=Device("cpu"), threads=threads, options=settings))


def entry(found: ort.SessionOptions, key: str) -> str:
    return found.get_session_config_entry(key)


def test_threads_and_order_of_execution_reach_the_session() -> None:
    found = options(Threads(intra_op=3, inter_op=2))
    assert (found.intra_op_num_threads, found.inter_op_num_threads) == (3, 2)
    assert found.execution_mode == ort.ExecutionMode.ORT_PARALLEL
    assert options().execution_mode == ort.ExecutionMode.ORT_SEQUENTIAL


def test_a_machine_all_to_ourselves_is_left_to_onnxruntime_and_a_part_of_it_is_not() -> None:
    cpus = os.cpu_count() or 1
    assert options(Threads(intra_op=cpus, is_counted=True)).intra_op_num_threads == 0
    assert options(Threads(intra_op=cpus)).intra_op_num_threads == cpus
    assert options(Threads(intra_op=cpus + 1, is_counted=True)).intra_op_num_threads == cpus + 1


def test_idle_threads_spin_shortly_by_default_and_as_told() -> None:
    key = "session.intra_op.spin_duration_us"
    assert entry(options(), key) in (str(spin.ALONE_US), str(spin.SHARED_US))
    assert entry(options(spin_us="500"), key) == "500"
    assert entry(options(spin_us="0"), "session.intra_op.allow_spinning") == "0"
    with pytest.raises(RuntimeError):  # ONNX Runtime's own choice: no entry is made
        entry(options(spin_us="-1"), key)


def test_the_threads_of_segments_do_not_spin_beside_the_next_one() -> None:
    device, threads = Device("cpu"), Threads(intra_op=2)
    segment = CompileOptions(device=device, threads=threads, plan="p")
    assert entry(session_options(segment), "session.intra_op.allow_spinning") == "0"
    told = CompileOptions(device=device, threads=threads, plan="p", options={"spin_us": "20"})
    assert entry(session_options(told), "session.intra_op.spin_duration_us") == "20"


def test_every_option_takes_its_own_default_choices_and_limits() -> None:
    for name, option in OPTIONS.items():
        values = [option.default, *option.choices]
        values += [
            str(int(limit)) for limit in (option.lowest, option.highest) if limit is not None
        ]
        if option.type is bool:
            values += ["0", "1", "true", "false"]
        for value in filter(None, values):
            if (name, value) != ("thread_pool", "process"):  # which is for good
                options(**{name: value})
        if option.choices or option.type is not str:
            with pytest.raises(ValueError, match=f"option '{name}': expected"):
                options(**{name: "wrong"})
        for limit, step in ((option.lowest, -1), (option.highest, 1)):
            if limit is not None:
                with pytest.raises(ValueError, match=f"option '{name}': expected"):
                    options(**{name: str(int(limit) + step)})


def test_threads_spin_less_where_other_processes_keep_the_cpus_busy() -> None:
    cpus = os.cpu_count() or 1
    busy = [
        subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=-1)
        for _ in range(cpus)
    ]
    try:
        for process in busy:
            assert process.stdout is not None
            process.stdout.readline()
        assert spin.others_running() >= 1
        spin.recently_running.cache_clear()
        assert spin.spin_us(cpus) == spin.SHARED_US
    finally:
        for process in busy:
            process.kill()
            process.communicate()


def test_sessions_made_one_after_the_other_look_for_neighbours_once_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A look beside neighbours sleeps, which on a busy machine takes longer than a small load."""
    neighbours = [0, 1000, 0]
    monkeypatch.setattr(spin, "others_running", lambda: neighbours.pop(0))
    monkeypatch.setattr(spin, "usable_cpus", lambda: 2)
    spin.recently_running.cache_clear()
    found = []
    for second in (7.0, 7.2, 7.9, 8.0, 8.9, 9.0):
        monkeypatch.setattr("engine_cpu.spin.time.monotonic", lambda second=second: second)
        found.append(spin.spin_us(2))
    spin.recently_running.cache_clear()
    assert found == [spin.ALONE_US] * 3 + [spin.SHARED_US] * 2 + [spin.ALONE_US]


@pytest.mark.parametrize(
    ("loadavg", "others"),
    [("0.1 0.2 0.3 1/79 14", 0), ("0.1 0.2 0.3 4/79 14", 2), ("nonsense", os.cpu_count())],
)
def test_this_processs_own_threads_are_no_neighbours(
    tmp_path: Path, loadavg: str, others: int
) -> None:
    (tmp_path / "loadavg").write_text(loadavg)
    for number, state in enumerate("RSR"):
        task = tmp_path / "self" / "task" / str(number)
        task.mkdir(parents=True)
        (task / "stat").write_text(f"{number} (a) name) {state} 1 1")
    assert spin.others_running(str(tmp_path)) == min(others, os.cpu_count() or 1)


def test_what_works_for_this_process_in_the_background_is_no_neighbour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them has ended already."""
    monkeypatch.setattr(spin, "background", {7, 8})
    (tmp_path / "loadavg").write_text("0.1 0.2 0.3 4/79 14")
    for process, states in {"self": "RS", "7": "RR"}.items():
        for number, state in enumerate(states):
            task = tmp_path / process / "task" / str(number)
            task.mkdir(parents=True)
            (task / "stat").write_text(f"{number} (a) name) {state} 1 1")
    assert spin.others_running(str(tmp_path)) == min(1, os.cpu_count() or 1)


def test_affinity_pins_all_threads_but_the_callers_own() -> None:
    found = options(Threads(intra_op=2, cores=(1, 0)))
    assert entry(found, "session.intra_op_thread_affinities") == "1"


def test_one_core_for_one_thread_pins_nothing_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = options(Threads(intra_op=1, cores=(3,)))
    with pytest.raises(RuntimeError):  # ONNX Runtime has no such entry
        entry(found, "session.intra_op_thread_affinities")
    assert "[3] pins nothing" in caplog.text
    assert "os.sched_setaffinity(0, {3})" in caplog.text


@pytest.mark.parametrize(("text", "arena"), [("ON", True), ("True", True), ("0", False)])
def test_switches_are_read_in_any_case_and_spelling(text: str, arena: bool) -> None:
    assert options(memory_arena=text).enable_cpu_mem_arena is arena


def test_graph_optimisation_and_raw_entries_reach_the_session() -> None:
    found = options(graph_optimization="basic", **{"session.disable_prepacking": "1"})
    assert found.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert entry(found, "session.disable_prepacking") == "1"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"graph_optimisation": "all"}, "option 'graph_optimisation'; did you mean 'graph_optimiz"),
        (
            {"graph_optimization": "most"},
            "'graph_optimization': expected one of none, basic",
        ),
        ({"spin_us": "soon"}, "option 'spin_us': expected int from -1 to 1000000, got 'soon'"),
        ({"spin_us": "-2"}, r"^\[cpu_context\] option 'spin_us': expected int"),
        ({"memory_arena": "maybe"}, "'memory_arena': expected true or false, got 'maybe'"),
        (
            {"spin_us": "0", "session.inter_op.allow_spinning": "1"},
            r"\[cpu_context\] spin_us and session.inter_op.allow_spinning set the same",
        ),
        (
            {"denormal_as_zero": "off", "session.set_denormal_as_zero": "1"},
            "denormal_as_zero and session.set_denormal_as_zero set the same: give one",
        ),
    ],
)
def test_a_wrong_option_is_refused_by_name(settings: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        options(**settings)


def test_a_raw_entry_replaces_what_an_option_sets_by_default() -> None:
    key = "session.intra_op.spin_duration_us"
    assert entry(options(**{key: "7"}), key) == "7"


def test_a_value_that_onnxruntime_refuses_is_named_with_its_key(load: Any) -> None:
    value = r"\[cpu_context\] session.dynamic_block_base = 'a'"
    expected = rf"^backend 'cpu': {value}: onnxruntime refused it: \w"
    with pytest.raises(engine.SettingError, match=expected):
        load(models.affine, **{"session.dynamic_block_base": "a"})


def test_a_model_at_fault_is_not_blamed_on_an_entry(load: Any) -> None:
    with pytest.raises(engine.ModelError, match="Frobnicate"):
        load(models.unknown_operator, **{"session.dynamic_block_base": "4"})


def test_a_workspace_without_an_arena_to_share_is_a_warning_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(2):
        options(workspace="process", memory_arena="off")
    assert caplog.text.count("workspace = process has no effect with memory_arena = off") == 1


def test_the_quick_start_lists_the_options_with_their_choices() -> None:
    text = Path(__file__).parents[3].joinpath("docs/quickstart.md").read_text(encoding="utf-8")
    section = text.partition("\n## Options of the cpu backend\n")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| `")]
    listed = {key: set(re.findall("`(.+?)`", row[1])) for row in rows
              for key in re.findall("`(.+?)`", row[0])}  # fmt: skip
    expected = {
        name: {"on", "off"} if option.type is bool else set(option.choices)
        for name, option in OPTIONS.items()
    }
    assert listed == expected


def test_a_core_that_is_not_there_is_refused(tmp_path: Path) -> None:
    context = Context()
    context.cpu.thread_affinity_core_list = [0, 100000]
    with pytest.raises(ValueError, match="core 100000 is outside"):
        Model().build_from_file(str(models.affine(tmp_path)), ModelType.MINDIR, context)


def test_an_absurd_number_of_threads_is_bounded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert engine.load(models.affine(tmp_path), threads=2**40)
    assert "more than five threads a CPU" in caplog.text


def test_as_many_cores_as_threads_are_wanted(tmp_path: Path) -> None:
    context = Context()
    context.cpu.thread_num = 2
    context.cpu.thread_affinity_core_list = [0]
    with pytest.raises(ValueError, match="names 1 cores for 2 threads"):
        Model().build_from_file(str(models.affine(tmp_path)), ModelType.MINDIR, context)


def test_options_of_a_config_file_apply(tmp_path: Path, load: Any) -> None:
    with pytest.raises(ValueError, match="spin_us"):
        load(models.affine, spin_us="x")
    assert load(models.affine, spin_us="0", memory_arena="off", deterministic="on")


def test_half_precision_is_a_wish_that_placement_answers(tmp_path: Path) -> None:
    context = Context()
    context.cpu.precision_mode = "preferred_fp16"
    model = Model()
    model.build_from_file(str(models.affine(tmp_path)), ModelType.MINDIR, context)
    assert all("in fp32" in place.reason for place in model.placement)


def test_an_unknown_operator_is_named(tmp_path: Path) -> None:
    with pytest.raises(engine.ModelError, match=r"Frobnicate 'odd_one'.*backend 'cpu'"):
        engine.load(models.unknown_operator(tmp_path))


@pytest.mark.parametrize(
    "key",
    [
        "session.disable_prepacking",
        "session.intra_op.allow_spinning",
        "session.model_external_initializers_file_folder_path",  # not one constant in the library
        "session.x64quantprecision",
        "optimization.enable_gelu_approximation",
    ],
)
def test_onnxruntimes_own_entries_are_taken(key: str) -> None:
    if "folder_path" in key and ort.__version__.startswith("1.23"):
        pytest.skip("it came later")
    options(**{key: "0"})


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("session.intra_op.alow_spinning", "no session configuration entry that onnxruntime"),
        ("optimization.everything", "no session configuration entry that onnxruntime"),
        ("session.intra_op_num_threads", "no effect on a session; set thread_num of the context"),
    ],
)
def test_entries_that_would_do_nothing_are_refused(key: str, message: str) -> None:
    with pytest.raises(ValueError, match=rf"\[cpu_context\] {key} .*{message}"):
        options(**{key: "1"})


@pytest.mark.parametrize(
    ("key", "text", "field", "value"),
    [
        ("enable_mem_pattern", "off", "enable_mem_pattern", False),
        ("enable_mem_reuse", "0", "enable_mem_reuse", False),
        ("log_id", "mine", "logid", "mine"),
        ("log_severity_level", "3", "log_severity_level", 3),
        ("log_verbosity_level", "2", "log_verbosity_level", 2),
        ("execution_mode", "parallel", "execution_mode", ort.ExecutionMode.ORT_PARALLEL),
        ("enable_profiling", "here", "profile_file_prefix", "here"),
    ],
)
def test_an_entry_sets_the_field_of_its_name(
    key: str, text: str, field: str, value: object
) -> None:
    assert getattr(options(**{f"session.{key}": text}), field) == value


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("enable_mem_pattern", "perhaps", "expected true or false, got 'perhaps'"),
        ("log_severity_level", "5", r"expected a number in -1\.\.4, got '5'"),
        ("log_severity_level", "high", r"expected a number in -1\.\.4, got 'high'"),
        ("execution_mode", "both", "expected one of sequential, parallel, got 'both'"),
        ("custom_ops_libraries", "lib.so", "expected JSON, got 'lib.so'"),
        ("custom_ops_libraries", "{}", "expected a JSON list, got '{}'"),
        ("custom_ops_libraries", '["no_such_library.so"]', "no_such_library.so"),
        ("free_dimensions", "3", "expected a JSON dict, got '3'"),
    ],
)
def test_a_field_that_cannot_have_a_value_says_so(key: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=rf"\[cpu_context\] session\.{key} = .*{message}"):
        options(**{f"session.{key}": text})
