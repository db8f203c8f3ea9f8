"""Context: defaults, checks and texts as the API's table has them."""

from __future__ import annotations

import pytest

from engine import Context


def test_the_default_is_the_cpu() -> None:
    context = Context()
    assert context.target == ["cpu"]
    assert str(context) == "target: ['cpu']."
    context.target = ["gpu"]
    context.target = []
    assert context.target == ["cpu"]


def test_targets_are_given_back_as_the_user_wrote_them() -> None:
    context = Context()
    context.target = ["Ascend", "CPU"]
    assert context.target == ["Ascend", "CPU"]


def test_an_installed_backends_name_is_a_target(null_backend: str) -> None:
    context = Context()
    context.target = [null_backend]
    assert context.target == ["null"]


@pytest.mark.parametrize(
    ("target", "kind", "text"),
    [
        ("cpu", TypeError, "target must be list"),
        (("cpu",), TypeError, "target must be list"),
        (["cpu", 1], TypeError, "target element must be str.*at index 1"),
        (
            ["TPU"], ValueError,
            r"target elements must be in \['cpu', 'gpu', 'ascend'\], but got tpu\.",
        ),
    ],
)  # fmt: skip
def test_a_wrong_target_is_refused(target, kind, text) -> None:
    context = Context()
    with pytest.raises(kind, match=text):
        context.target = target
    assert context.target == ["cpu"]


@pytest.mark.parametrize(
    ("device", "name", "default", "good"),
    [
        ("cpu", "precision_mode", "enforce_fp32", "preferred_fp16"),
        ("cpu", "thread_num", 0, 3),
        ("cpu", "inter_op_parallel_num", 0, 2),
        ("cpu", "thread_affinity_mode", 0, 2),
        ("cpu", "thread_affinity_core_list", [], [0, 1]),
        ("gpu", "precision_mode", "enforce_fp32", "preferred_fp16"),
        ("gpu", "device_id", 0, 1),
        ("ascend", "precision_mode", "", "enforce_origin"),
        ("ascend", "device_id", 0, 7),
        ("ascend", "rank_id", 0, 1),
        ("ascend", "provider", "", "ge"),
    ],
)
def test_each_setting_has_its_default_and_takes_a_value(device, name, default, good) -> None:
    settings = getattr(Context(), device)
    assert getattr(settings, name) == default
    setattr(settings, name, good)
    assert getattr(settings, name) == good


@pytest.mark.parametrize(
    ("device", "name", "bad", "kind", "text"),
    [
        ("cpu", "precision_mode", 1, TypeError, "cpu_precision_mode must be str, but got"),
        (
            "cpu", "precision_mode", "fp8", ValueError,
            r"cpu_precision_mode must be in \[enforce_fp32, preferred_fp16\], but got fp8\.",
        ),
        ("cpu", "thread_num", "1", TypeError, "cpu_thread_num must be int"),
        ("cpu", "thread_num", -1, ValueError, r"cpu_thread_num must be a non-negative int\."),
        ("cpu", "inter_op_parallel_num", -1, ValueError, "cpu_inter_op_parallel_num must be a"),
        ("cpu", "thread_affinity_mode", "1", TypeError, "cpu_thread_affinity_mode must be int"),
        ("cpu", "thread_affinity_core_list", 1, TypeError, "cpu_thread_affinity_core_list must be"),
        ("cpu", "thread_affinity_core_list", [0, "1"], TypeError, "element must be int.*index 1"),
        ("gpu", "device_id", -1, ValueError, r"gpu_device_id must be a non-negative int\."),
        ("gpu", "device_id", 1.0, TypeError, "gpu_device_id must be int"),
        ("gpu", "precision_mode", "x", ValueError, "gpu_precision_mode must be in"),
        ("ascend", "precision_mode", "x", ValueError, "ascend_precision_mode must be in"),
        ("ascend", "device_id", -1, ValueError, "ascend_device_id must be a non-negative int"),
        ("ascend", "rank_id", -1, ValueError, "ascend_rank_id must be a non-negative int"),
        ("ascend", "provider", 1, TypeError, "ascend_provider must be str"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_and_changes_nothing(device, name, bad, kind, text) -> None:
    settings = getattr(Context(), device)
    before = getattr(settings, name)
    with pytest.raises(kind, match=text):
        setattr(settings, name, bad)
    assert getattr(settings, name) == before


def test_an_affinity_mode_out_of_range_warns_and_becomes_none() -> None:
    settings = Context().cpu
    with pytest.warns(UserWarning, match="must be 0, 1 or 2, but got 3"):
        settings.thread_affinity_mode = 3
    assert settings.thread_affinity_mode == 0


def test_the_texts_of_the_devices_are_the_documented_ones() -> None:
    context = Context()
    assert str(context.cpu) == (
        "device_type: DeviceType.kCPU,\nprecision_mode: enforce_fp32,\nthread_num: 0,\n"
        "inter_op_parallel_num: 0,\nthread_affinity_mode: 0,\nthread_affinity_core_list: []."
    )
    assert str(context.gpu) == (
        "device_type: DeviceType.kGPU,\nprecision_mode: enforce_fp32,\ndevice_id: 0,\n"
        "rank_id: 0,\ngroup_size: 1."
    )
    context.ascend.device_id, context.ascend.provider = 2, "ge"
    assert str(context.ascend) == (
        "device_type: DeviceType.kAscend,\nprecision_mode: ,\ndevice_id: 2.provider: ge.rank_id: 0."
    )
