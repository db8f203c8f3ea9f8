"""Context beyond the API's table (tests/api): names, mistakes, copies, documentation."""

from __future__ import annotations

import copy
import pickle
import pydoc
import warnings

import numpy as np
import pytest

from engine import Context


def test_an_installed_backends_name_is_a_target(null_backend: str) -> None:
    context = Context()
    context.target = [null_backend, "Null:reference"]
    assert context.target == ["null", "Null:reference"]
    with pytest.raises(ValueError, match=r"but got nul\. Or the name of .*installed: .*null"):
        context.target = ["nul"]


def test_what_is_read_or_was_given_is_a_copy() -> None:
    context = Context()
    target, cores, config = ["gpu"], [0], {"a": {"b": "c"}}
    context.target, context.cpu.thread_affinity_core_list = target, cores
    context.parallel.config_info = config
    for changed in (target, cores, context.target, context.cpu.thread_affinity_core_list):
        changed.clear()
    config["a"]["b"] = "d"
    assert context.target == ["gpu"]
    assert context.cpu.thread_affinity_core_list == [0]
    assert context.parallel.config_info == "a: b c"


def test_numpy_integers_are_integers() -> None:
    cpu = Context().cpu
    cpu.thread_num, cpu.thread_affinity_core_list = np.int64(3), [np.uint8(1)]
    assert (cpu.thread_num, cpu.thread_affinity_core_list) == (3, [1])
    assert type(cpu.thread_num) is int


@pytest.mark.parametrize(
    ("group", "name", "text"),
    [
        ("cpu", "thread_nums", r"context\.cpu has no setting 'thread_nums'.*mean 'thread_num'\?"),
        ("gpu", "device", r"context\.gpu has no setting 'device'.*mean 'device_id'\?"),
        ("ascend", "rankid", r"context\.ascend has no setting 'rankid'.*mean 'rank_id'\?"),
        ("parallel", "worker_num", r"context\.parallel has no .*mean 'workers_num'\?"),
        ("gpu", "xyz", r"context\.gpu has no setting 'xyz'.*it has: device_id, group_size, prec"),
        (None, "targets", r"context has no setting 'targets'.*mean 'target'\?"),
    ],
)
def test_a_misspelt_setting_is_kept_with_a_warning_that_names_the_nearest(
    group: str | None, name: str, text: str
) -> None:
    context = Context()
    owner = getattr(context, group) if group else context
    before = str(owner)
    with pytest.warns(UserWarning, match=text) as caught:
        setattr(owner, name, 4)
    assert caught[0].filename == __file__
    assert getattr(owner, name) == 4
    assert str(owner) == before


def test_setting_the_provider_of_a_gpu_warns_of_nothing() -> None:
    context = Context()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        context.gpu.provider = "tensorrt"
    assert context.gpu.provider == "tensorrt"


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda context: pickle.loads(pickle.dumps(context))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_a_copy_has_the_same_settings_and_its_own_life(copied) -> None:
    context = Context()
    context.target, context.cpu.thread_num, context.gpu.device_id = ["gpu", "cpu"], 2, 1
    context.parallel.config_info = {"a": {"b": "c"}}
    again = copied(context)
    assert repr(again) == repr(context)
    again.cpu.thread_num = 7
    again.target = ["cpu"]
    again.cpu.thread_affinity_core_list = [1]
    assert (context.cpu.thread_num, context.target) == (2, ["gpu", "cpu"])
    assert context.cpu.thread_affinity_core_list == []
    with pytest.raises(TypeError, match="cpu_thread_num must be int"):
        again.cpu.thread_num = "1"


def test_repr_is_one_line_with_what_was_set() -> None:
    context = Context()
    assert repr(context) == "Context()"
    context.target = ["gpu"]
    context.gpu.device_id = 1
    assert repr(context) == "Context(gpu=GpuSettings(device_id=1), target=['gpu'])"


def test_help_shows_each_setting_with_its_documentation() -> None:
    text = pydoc.plain(pydoc.render_doc(type(Context().cpu)))
    assert "thread_num\n |      Threads inside one operator; 0 fits them" in text
    context_text = pydoc.plain(pydoc.render_doc(Context))
    for name in ("target", "cpu", "gpu", "ascend", "parallel", "group_info_file"):
        assert f" |  {name}\n |      " in context_text
