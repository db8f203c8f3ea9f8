"""Context against the API's table, one case a row and rule: default, values, checks, text."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Context
from engine.config.settings import Settings

Refused = tuple[Any, type[Exception], str]


@dataclass(frozen=True)
class Row:
    """A property. accepted: values and what they read as. refused: values, errors and texts."""

    group: str
    name: str
    default: Any
    accepted: tuple[tuple[Any, Any], ...] = ()
    refused: tuple[Refused, ...] = ()
    is_read_only: bool = False
    id: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", f"{self.group}.{self.name}".removeprefix("."))

    def read(self, context: Context) -> Any:
        return getattr(self._owner(context), self.name)

    def assign(self, context: Context, value: Any) -> None:
        setattr(self._owner(context), self.name, value)

    def _owner(self, context: Context) -> Any:
        return getattr(context, self.group) if self.group else context


def same(*values: Any) -> tuple[tuple[Any, Any], ...]:
    return tuple((value, value) for value in values)


def not_a(kind: str, name: str, *values: Any) -> tuple[Refused, ...]:
    return tuple(
        (value, TypeError, f"{name} must be {kind}, but got {type(value)}.") for value in values
    )


def count_of(name: str, prefix: str = "") -> tuple[Refused, ...]:
    return (
        *not_a("int", name, "1", 1.0, None, [1], True, False),
        (-1, ValueError, f"{prefix}{name} must be a non-negative int."),
        (-(2**70), ValueError, f"{prefix}{name} must be a non-negative int."),
    )


def choice_of(name: str, *choices: str) -> tuple[Refused, ...]:
    listed = f"{name} must be in [{', '.join(choices)}], but got"
    return (
        *not_a("str", name, 1, None, b"enforce_fp32"),
        ("fp8", ValueError, f"{listed} fp8."),
        ("", ValueError, f"{listed} ."),
        (choices[0].upper(), ValueError, f"{listed} {choices[0].upper()}."),
    )


def list_of_int(name: str) -> tuple[Refused, ...]:
    return (
        *not_a("list", name, 1, (0, 1), "01", None),
        ([0, "1"], TypeError, f"{name} element must be int, but got <class 'str'> at index 1."),
        ([1.0], TypeError, f"{name} element must be int, but got <class 'float'> at index 0."),
        ([0, True], TypeError, f"{name} element must be int, but got <class 'bool'> at index 1."),
    )


# A bool passes no check for an int, other than upstream: True is hardly meant as device 1.
COUNTS = ((3, 3), (0, 0), (2**40, 2**40), (np.int64(4), 4))
FP16 = ("enforce_fp32", "preferred_fp16")
ASCEND = ("enforce_fp32", "preferred_fp32", "enforce_fp16", "enforce_origin", "preferred_optimal")
HERE = str(Path(__file__))
NO_TARGET = "target elements must be in ['cpu', 'gpu', 'ascend'], but got"

ROWS = [
    Row(
        "", "target", ["cpu"],
        (
            *same(["gpu"], ["ascend"], ["ascend", "gpu", "cpu"], ["GPU", "Cpu"], ["cpu", "cpu"],
                  ["auto"], ["Auto"]),
            *((nothing, ["cpu"]) for nothing in ([], None, "", (), 0, False, {})),
        ),
        (
            *not_a("list", "target", "cpu", ("cpu",), 1, {"cpu"}, np.array(["cpu"])),
            ([1], TypeError, "target element must be str, but got <class 'int'> at index 0."),
            (["cpu", None], TypeError, "target element must be str, but got <class 'NoneType'> at"),
            (["auto", "cpu"], ValueError, "target 'auto' stands alone, but got ['auto', 'cpu']"),
            (["TPU"], ValueError, f"{NO_TARGET} tpu."),
            (["cpu", ""], ValueError, f"{NO_TARGET} ."),
            ([" cpu"], ValueError, f"{NO_TARGET}  cpu."),
        ),
    ),
    Row("", "extensions", {}, (({}, {}), ({"trace": {"port": 9}}, {"trace": {"port": "9"}})),
        (
            *not_a("dict", "extensions", None, ["trace"], "trace"),
            ({"trace": "port=1"}, TypeError, "options of trace must be dict"),
            ({1: {}}, TypeError, "extensions' name must be str"),
            ({"trace": {1: "a"}}, TypeError, "trace's option must be str"),
        )),
    Row("", "group_info_file", "", same("groups.pb", ""),
        not_a("str", "group_info_file", 1, None, Path("groups.pb"))),
    Row("cpu", "precision_mode", "enforce_fp32", same(*FP16),
        choice_of("cpu_precision_mode", *FP16)),
    Row("cpu", "thread_num", 0, COUNTS, count_of("cpu_thread_num")),
    Row("cpu", "inter_op_parallel_num", 0, COUNTS, count_of("cpu_inter_op_parallel_num")),
    Row("cpu", "thread_affinity_mode", 0, ((0, 0), (1, 1), (2, 2)),
        not_a("int", "cpu_thread_affinity_mode", "1", 1.0, None)),
    Row("cpu", "thread_affinity_core_list", [], same([0, 1], [7], []),
        list_of_int("cpu_thread_affinity_core_list")),
    Row("gpu", "precision_mode", "enforce_fp32", same(*FP16),
        choice_of("gpu_precision_mode", *FP16)),
    Row("gpu", "device_id", 0, COUNTS, count_of("gpu_device_id")),
    Row("gpu", "provider", "", same("tensorrt", ""), not_a("str", "gpu_provider", 1, None)),
    Row("gpu", "rank_id", 0, is_read_only=True),
    Row("gpu", "group_size", 1, is_read_only=True),
    Row("ascend", "precision_mode", "", same(*ASCEND), choice_of("ascend_precision_mode", *ASCEND)),
    Row("ascend", "device_id", 0, COUNTS, count_of("ascend_device_id")),
    Row("ascend", "rank_id", 0, COUNTS, count_of("ascend_rank_id")),
    Row("ascend", "provider", "", same("ge", "", "anything"),
        not_a("str", "ascend_provider", 1, None)),
    Row("parallel", "workers_num", 0, COUNTS,
        count_of("workers_num", prefix="Set parallel failed, ")[-2:]
        + not_a("int", "workers_num", "4", 4.0, None)),
    Row(
        "parallel", "config_info", "",
        (
            ({}, ""),
            ({"empty": {}}, ""),
            ({"weight": {"weight_path": "/w"}}, "weight: weight_path /w"),
            ({"a": {"x": "1", "y": "2"}, "b": {"z": ""}}, "a: x 1\na: y 2\nb: z "),
        ),
        (
            *not_a("dict", "config_info", 1, None, [("a", {})], "a"),
            ({1: {}}, TypeError, "config_info_key must be str, but got <class 'int'>."),
            ({1: 2}, TypeError, "config_info_key must be str, but got <class 'int'>."),
            ({"a": "b"}, TypeError, "config_info_value must be dict, but got <class 'str'>."),
            ({"a": {1: "b"}}, TypeError, "config_info_value_key must be str, but got"),
            ({"a": {1: 2}}, TypeError, "config_info_value_key must be str, but got"),
            ({"a": {"b": 1}}, TypeError, "config_info_value_value must be str, but got"),
            ({"a": {"b": None}}, TypeError, "config_info_value_value must be str, but got"),
        ),
    ),
    Row(
        "parallel", "config_path", "", same(HERE, ""),
        (
            *not_a("str", "config_path", 1, None, Path(HERE)),
            ("/no/such.ini", ValueError, "Set parallel failed, config_path does not exist!"),
            (" ", ValueError, "Set parallel failed, config_path does not exist!"),
        ),
    ),
    Row(
        "parallel", "device_ids", [], same([0, 1], [3], []),
        (
            *list_of_int("device_ids"),
            ([0, -1], ValueError, "Set parallel failed, device_ids contain a negative number."),
        ),
    ),
]  # fmt: skip

GROUPS = ("", "cpu", "gpu", "ascend", "parallel")
each_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
accepted = [pytest.param(row, *pair, id=f"{row.id}={pair[0]!r}"[-60:])
            for row in ROWS for pair in row.accepted]  # fmt: skip
refused = [pytest.param(row, *case, id=f"{row.id}={case[0]!r}"[-60:])
           for row in ROWS for case in row.refused]  # fmt: skip


@pytest.mark.parametrize("group", GROUPS)
def test_the_table_has_a_row_for_each_attribute_that_there_is(group):
    owner = getattr(Context(), group) if group else Context()
    public = {name for name in dir(owner) if not name.startswith("_")}
    rows = {row.name for row in ROWS if row.group == group}
    assert public == rows | (set(GROUPS[1:]) if not group else set())


@each_row
def test_a_property_has_its_default(row):
    assert row.read(Context()) == row.default
    assert type(row.read(Context())) is type(row.default)


@pytest.mark.parametrize(("row", "value", "expected"), accepted)
def test_a_property_takes_what_the_table_allows(row, value, expected):
    context, other = Context(), Context()
    row.assign(context, value)
    assert row.read(context) == expected
    assert type(row.read(context)) is type(expected)
    assert row.read(other) == row.default


@pytest.mark.parametrize(("row", "value", "kind", "text"), refused)
def test_a_property_refuses_the_rest_and_keeps_what_it_had(row, value, kind, text):
    context = Context()
    for before, reads in [(None, row.default), *row.accepted[:1]]:
        if before is not None:
            row.assign(context, before)
        with pytest.raises(kind) as caught:
            row.assign(context, value)
        assert type(caught.value) is kind
        assert str(caught.value).startswith(text)
        assert row.read(context) == reads


@pytest.mark.parametrize("row", [row for row in ROWS if row.is_read_only], ids=lambda row: row.id)
def test_a_read_only_property_cannot_be_set(row):
    context = Context()
    with pytest.raises(AttributeError):
        row.assign(context, 1)
    assert row.read(context) == row.default


@pytest.mark.parametrize("mode", [-1, 3, 2**40])
def test_an_affinity_mode_out_of_range_warns_where_it_is_set_and_becomes_none(mode):
    settings = Context().cpu
    settings.thread_affinity_mode = 2
    with pytest.warns(UserWarning, match=f"must be 0, 1 or 2, but got {mode}; 0") as caught:
        settings.thread_affinity_mode = mode
    assert caught[0].filename == __file__
    assert settings.thread_affinity_mode == 0


def test_an_empty_config_path_changes_nothing():
    parallel = Context().parallel
    parallel.config_path = HERE
    parallel.config_path = ""
    assert parallel.config_path == HERE


@pytest.mark.parametrize("group", GROUPS[1:])
def test_settings_are_there_before_and_after_their_target_is_set(group):
    context = Context()
    settings = getattr(context, group)
    context.target = ["ascend", "gpu"]
    assert getattr(context, group) is settings
    with pytest.raises(TypeError, match=f"^{group} must be {type(settings).__name__}, but got"):
        setattr(context, group, Settings())


def test_the_texts_are_the_documented_ones():
    context = Context()
    assert str(context) == "target: ['cpu']."
    assert str(context.cpu) == (
        "device_type: DeviceType.kCPU,\nprecision_mode: enforce_fp32,\nthread_num: 0,\n"
        "inter_op_parallel_num: 0,\nthread_affinity_mode: 0,\nthread_affinity_core_list: []."
    )
    assert str(context.gpu) == (
        "device_type: DeviceType.kGPU,\nprecision_mode: enforce_fp32,\ndevice_id: 0,\n"
        "rank_id: 0,\ngroup_size: 1."
    )
    assert str(context.ascend) == (
        "device_type: DeviceType.kAscend,\nprecision_mode: ,\ndevice_id: 0.provider: .rank_id: 0."
    )
    assert str(context.parallel) == "workers num: 0,\nconfig info: ,\nconfig file: ."


def test_the_texts_say_what_was_set():
    context = Context()
    context.target = ["Ascend", "cpu"]
    cpu, gpu, ascend, parallel = context.cpu, context.gpu, context.ascend, context.parallel
    cpu.precision_mode, cpu.thread_num, cpu.inter_op_parallel_num = "preferred_fp16", 2, 3
    cpu.thread_affinity_mode, cpu.thread_affinity_core_list = 1, [0, 1]
    gpu.precision_mode, gpu.device_id, gpu.provider = "preferred_fp16", 2, "tensorrt"
    ascend.precision_mode, ascend.device_id = "enforce_fp32", 2
    ascend.provider, ascend.rank_id = "ge", 1
    parallel.workers_num, parallel.config_path = 4, HERE
    parallel.config_info = {"model_file": {"mindir_path": "/home/user/model_graph.mindir"}}
    assert str(context) == "target: ['Ascend', 'cpu']."
    assert str(cpu) == (
        "device_type: DeviceType.kCPU,\nprecision_mode: preferred_fp16,\nthread_num: 2,\n"
        "inter_op_parallel_num: 3,\nthread_affinity_mode: 1,\nthread_affinity_core_list: [0, 1]."
    )
    assert str(gpu) == (
        "device_type: DeviceType.kGPU,\nprecision_mode: preferred_fp16,\ndevice_id: 2,\n"
        "rank_id: 0,\ngroup_size: 1."
    )
    assert str(ascend) == (
        "device_type: DeviceType.kAscend,\nprecision_mode: enforce_fp32,\n"
        "device_id: 2.provider: ge.rank_id: 1."
    )
    assert str(parallel) == (
        "workers num: 4,\nconfig info: model_file: mindir_path /home/user/model_graph.mindir,\n"
        f"config file: {HERE}."
    )
