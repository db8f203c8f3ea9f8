"""Every call of pyACL fails once, at every place: an error comes, and nothing stays behind.

Emulated: this is what cannot be had from a device on demand.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import BackendUnavailable, EngineError
from engine_ascend_ge import runtime
from engine_testing import models

X = np.ones((2, 3), np.float32)

# A call that gives something back cannot have done so if it failed: what it was to give back
# stays, on the emulated machine as on a real one.
RELEASES = {
    "destroy_data_buffer", "rt.free", "rt.destroy_stream", "mdl.unload",
    "mdl.destroy_desc", "mdl.destroy_dataset", "destroy_tensor_desc",
}  # fmt: skip
# Without the context nothing can be given back; without the model, not what it uses.
BLOCKING = {"rt.set_context", "mdl.unload", "rt.destroy_stream", "rt.synchronize_stream"}
# Calls whose failure the plugin may overlook, and what it then does without.
OPTIONAL = {"mdl.get_input_dims_range", "rt.get_context"}


def live(build: Callable[..., Any], is_affine: Callable[..., None], om: Path) -> None:
    """A whole life: build, two contexts, a predict in each, close."""
    executable = build(om)
    try:
        for context in [executable.open_context() for _ in range(2)]:
            is_affine(context, X)
            context.close()
    finally:
        executable.close()


@pytest.fixture(params=["fixed", "gears", "ranges"])
def om(request: pytest.FixtureRequest, make_om: Any, path: Path) -> Path:
    flags = {
        "fixed": {"input_shape": "x:2,3"},
        "gears": {"input_shape": "x:-1,3", "dynamic_dims": "2;4"},
        "ranges": {"input_shape": "x:-1,3"},
    }[request.param]
    made: Path = make_om(path, **flags)
    return made


def codes(machine: Any) -> dict[str, int]:
    """Count the calls that can fail until now, by name."""
    from emulated_ascend.machine import SURFACE

    return {
        name: count
        for name, count in machine.calls.items()
        if SURFACE[name][1].endswith(("ret", "handle"))
    }


def test_every_call_may_fail_at_every_place(
    machine: Any, build: Any, is_affine: Any, om: Path
) -> None:
    live(build, is_affine, om)
    once = codes(machine)
    machine.calls.clear()
    live(build, is_affine, om)
    again = codes(machine)
    assert len(again) > 20
    assert set(once) - set(again) == {"init", "rt.get_device_count", "rt.set_device"}
    tried = 0
    for name, count in again.items():
        for place in {0, 1, count // 2, count - 1} & set(range(count)):
            was = machine.live()
            machine.fail(name, 500000, after=place, message="EZ9999: planned")
            if name in OPTIONAL:
                live(build, is_affine, om)
            else:
                with pytest.raises(EngineError, match=r"could not .*CANN says: EZ9999: planned"):
                    live(build, is_affine, om)
            machine.heal()
            if name not in RELEASES | BLOCKING:
                assert machine.live() == was, f"{name}[{place}] left something behind"
            tried += 1
    assert tried > 50
    # The emulator forgets what a failed release left, so that the test's end is clean.
    assert machine.faults == []
    _forget(machine)
    live(build, is_affine, om)


def test_starting_fails_cleanly_and_can_be_tried_again(
    machine: Any, build: Any, is_affine: Any, om: Path
) -> None:
    for name in ("init", "rt.get_device_count", "rt.set_device"):
        runtime.stop()
        machine.is_finalized = False
        machine.fail(name, 507033, message="EZ9999: planned")
        with pytest.raises(BackendUnavailable, match=r"507033; CANN says: EZ9999: planned"):
            live(build, is_affine, om)
        assert machine.live() == {}
        live(build, is_affine, om)


def _forget(machine: Any) -> None:
    for model in machine.models.values():
        for allocation in model.pinned:
            allocation.pins = 0
    machine.models.clear()
    for allocation in machine.memory.live():
        machine.memory.free(allocation.base)
    for handle in list(machine.objects):
        if not getattr(machine.objects[handle], "is_default", False):
            del machine.objects[handle]


def test_a_full_device_is_unavailable_and_says_what_to_do(
    machine: Any, build: Any, make_om: Any, tmp_path: Path
) -> None:
    machine.memory_bytes = 1 << 20
    with pytest.raises(BackendUnavailable, match=r"allocate 4194304 bytes for weights.*device is"):
        build(make_om(models.heavy(tmp_path), input_shape="x:1,1024"))
    assert machine.live() == {}


def test_a_device_that_is_full_for_one_more_context_leaves_the_others_working(
    machine: Any, build: Any, predict: Any, make_om: Any, tmp_path: Path
) -> None:
    executable = build(make_om(models.heavy(tmp_path), input_shape="x:1,1024"))
    context = executable.open_context()
    machine.memory_bytes = machine.memory.used_bytes(0) + 100
    before = machine.live()
    with pytest.raises(BackendUnavailable, match="the device is full"):
        executable.open_context()
    assert machine.live() == before
    x = np.ones((1, 1024), np.float32)
    np.testing.assert_array_equal(predict(context, x)[0], x)


def test_a_lost_device_is_unavailable(machine: Any, affine: Any, is_affine: Any) -> None:
    context = affine().open_context()
    machine.fail("rt.synchronize_stream", 507010, message="EE9999: ts lost heartbeat")
    with pytest.raises(BackendUnavailable, match="LOST_HEARTBEAT 507010; CANN says: EE9999"):
        is_affine(context, X)
    is_affine(context, X)  # waits for what the failed wait left
