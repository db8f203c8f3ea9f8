"""One opened backend: what it can do, what is refused of it, and what its options are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import engine
from engine import backends
from engine.backends import BackendState
from engine.backends.attribution import attribute_errors_to
from engine.backends.backend import Backend
from engine.backends.isolation.probe import from_json, probe, to_json
from engine.hookspecs import hookimpl
from engine.options import describe, parsed, value_of
from engine.types import BackendInfo, Capability, Device, DeviceInfo, Devices, Option
from engine_testing import models
from engine_testing.plugins import install


class Plugin:
    """A backend that only says who it is."""

    capabilities: frozenset[str] = frozenset()
    options: dict[str, Option | str] = {}  # noqa: RUF012
    types: tuple[str, ...] = ("odd",)
    providers: tuple[str, ...] = ("wood", "Glass")
    found: tuple[DeviceInfo, ...] = (DeviceInfo(Device("odd"), "a device"),)
    asked = 0

    @hookimpl
    def engine_backend(self) -> BackendInfo:
        return BackendInfo(
            name="odd",
            version="1",
            device_types=self.types,
            providers=self.providers,
            capabilities=self.capabilities,
            options=self.options,
        )

    @hookimpl
    def engine_devices(self) -> Devices:
        self.asked += 1
        return Devices(self.found)

    @hookimpl
    def engine_load(self, source, options):
        raise AssertionError("not reached")

    @hookimpl
    def engine_compile(self, loaded, options):
        raise AssertionError("not reached")

    @hookimpl
    def engine_predict(self, context, inputs):
        raise AssertionError("not reached")


def opened(plugin: object) -> Backend:
    return Backend("odd", plugin, [])


NULL = """
from dataclasses import replace
from engine.hookspecs import hookimpl
from engine_testing import null_device as null
from engine_testing.null_device import *

"""


@pytest.mark.parametrize("kind", ["wrapper", "hookwrapper"])
@pytest.mark.parametrize("hook", ["engine_predict", "engine_diagnose", "engine_unheard_of"])
def test_a_wrapper_makes_the_record_broken_and_names_the_hook(plugin_folder, kind, hook) -> None:
    source = f"{NULL}@hookimpl({kind}=True)\ndef {hook}():\n    yield\n"
    install(plugin_folder, "wrapping", "wrapping_plugin", source=source)
    found = backends.record("wrapping")
    assert found.state is BackendState.BROKEN
    assert f"{hook} is a wrapper ({kind}=True)" in found.reason
    assert "engine.types.Extension" in found.reason


@pytest.mark.parametrize(
    ("capability", "missing"),
    [
        (Capability.COLLECTIVES, "engine_communicator, engine_allreduce, engine_allgather, "
                                 "engine_send, engine_receive"),
        (Capability.DEVICE_BUFFERS, "engine_buffer, engine_copy, engine_order"),
        (Capability.COMPILE_CACHE, "engine_compiled_key"),
        (Capability.SHARE_WEIGHTS, "engine_share_weights"),
        (Capability.UPDATE_WEIGHTS, "engine_update_weights"),
    ],
)  # fmt: skip
def test_a_capability_without_its_hooks_is_ignored_and_the_record_says_so(
    capability: Capability, missing: str
) -> None:
    class Promising(Plugin):
        capabilities = frozenset({capability, Capability.DEADLINES})

    backend = opened(Promising())
    assert not backend.can(capability)
    assert backend.can(Capability.DEADLINES)
    [warning] = backend.warnings
    assert f"does not implement {missing};" in warning
    assert "is ignored" in backend.warnings[0]


def test_a_backend_that_wants_options_and_takes_none_gets_none_and_the_record_says_so() -> None:
    class Wanting(Plugin):
        capabilities = frozenset({Capability.PREDICT_OPTIONS})

    class Taking(Wanting):
        @hookimpl
        def engine_predict(self, context, inputs, options=None):
            raise AssertionError("not reached")

    backend = opened(Wanting())
    assert not backend.can(Capability.PREDICT_OPTIONS)
    assert "has a parameter options=None; the capability is ignored" in backend.warnings[0]
    backend = opened(Taking())
    assert backend.can(Capability.PREDICT_OPTIONS)
    assert backend.warnings == ()


@pytest.mark.parametrize(
    ("hook", "raised", "error", "says"),
    [
        ("engine_compile", ValueError("x = 3"), ValueError, "^backend 'odd': x = 3$"),
        ("engine_load", UnicodeError("bad"), engine.BackendUnavailable, "its engine_load raised"),
        ("memory", ValueError("x"), engine.BackendUnavailable, "its memory raised ValueError: x"),
    ],
)
def test_a_value_error_names_the_backend_and_is_a_users_only_where_options_are_read(
    hook: str, raised: ValueError, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says), attribute_errors_to(opened(Plugin()), hook):
        raise raised


def test_the_other_collectives_are_optional() -> None:
    class Sparing(Plugin):
        capabilities = frozenset({Capability.COLLECTIVES})
        engine_communicator = hookimpl(lambda self, options: None)

    for name in ("allreduce", "allgather", "send", "receive"):
        setattr(Sparing, f"engine_{name}", hookimpl(lambda self, comm: None))
    backend = opened(Sparing())
    assert backend.can(Capability.COLLECTIVES)
    assert backend.warnings == ()
    assert backend.has("engine_send")
    assert not backend.has("engine_broadcast")


def test_what_a_device_lacks_is_asked_for_once_and_late() -> None:
    old, new = Device("odd", 0), Device("odd", 1)

    class Aged(Plugin):
        capabilities = frozenset({Capability.DEADLINES, Capability.CANCEL_PREDICT})
        found = (
            DeviceInfo(old, "old", lacks={"deadlines": "runtime 1.2 is too old"}),
            DeviceInfo(new, "new"),
        )

    plugin = Aged()
    backend = opened(plugin)
    not_announced = "backend 'odd' does not announce 'collectives'"
    assert backend.lacks(Capability.COLLECTIVES, old) == not_announced
    assert plugin.asked == 0
    assert backend.lacks(Capability.DEADLINES, old) == "runtime 1.2 is too old"
    assert backend.lacks(Capability.DEADLINES, new) == ""
    assert backend.lacks(Capability.CANCEL_PREDICT, old) == ""
    assert plugin.asked == 1


def test_what_a_record_has_asked_is_not_asked_again() -> None:
    class Failing(Plugin):
        capabilities = frozenset({Capability.DEADLINES})

        @hookimpl
        def engine_devices(self) -> Devices:
            self.asked += 1
            if self.asked > 1:
                raise OSError("driver hiccup")
            return Devices(self.found)

    plugin = Failing()
    backend = opened(plugin)
    backend.devices()
    assert backend.lacks(Capability.DEADLINES, Device("odd")) == ""
    assert plugin.asked == 1
    unasked = opened(plugin)
    with pytest.raises(engine.BackendUnavailable, match=r"'odd' is at fault: .* raised OSError"):
        unasked.lacks(Capability.DEADLINES, Device("odd"))


def test_options_of_both_kinds_are_options() -> None:
    class Choosing(Plugin):
        options = {  # noqa: RUF012
            "plain": "a line on it",
            "level": Option(text="how hard", type=int, lowest=0, highest=3, default="1"),
        }

    info = opened(Choosing()).info
    assert info.options["plain"] == Option(text="a line on it")
    assert info.options["level"].highest == 3


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        (Option(text="", type=list), "type is <class 'list'>, expected int"),
        (Option(text="", type=int, lowest=3, highest=1), "lowest is 3, above its highest, 1"),
        (Option(text="", lowest=1), "has limits, but its type is str"),
        (Option(text="", type=int, choices=("1", "two")), "'two', which is no one of"),
        (Option(text="", type=int, lowest=0, default="-1"), "'-1', which is no int from 0"),
        (Option(text="", choices=("a", "b"), default="c"), "'c', none of its choices"),
    ],
)
def test_an_option_that_contradicts_itself_is_refused_by_name(option: Option, reason: str) -> None:
    class Choosing(Plugin):
        options = {"odd_one": option}  # noqa: RUF012

    with pytest.raises(TypeError, match=r"options\['odd_one'\]") as caught:
        opened(Choosing())
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("option", "good", "bad"),
    [
        (Option(text="", type=int, lowest=0, highest=3), ["0", "3"], ["-1", "4", "1.5", "", "x"]),
        (Option(text="", type=float, lowest=0), ["0", "1e3"], ["-0.1", "nan", "inf", "many"]),
        (Option(text="", type=bool), ["0", "1", "true", "False", "on"], ["2", "yes", ""]),
        (Option(text="", choices=("a", "b")), ["a", "B"], ["c", ""]),
        (Option(text=""), ["", "anything"], []),
    ],
)
def test_values_are_told_from_others(option: Option, good: list[str], bad: list[str]) -> None:
    assert None not in [value_of(option, text) for text in good]
    assert {value_of(option, text) for text in bad} <= {None}


def test_options_are_parsed_as_they_are_declared() -> None:
    declared = {
        "name": Option(text=""),
        "mode": Option(text="", choices=("fast", "exact"), default="fast"),
        "count": Option(text="", type=int, lowest=0),
        "limit_s": Option(text="", type=float, default="1.5"),
        "tf32": Option(text="", type=bool, default="0"),
        "raw.*": Option(text=""),
    }
    values = {"name": "", "mode": "fast", "count": None, "limit_s": 1.5, "tf32": False}
    assert parsed({}, declared) == parsed({"mode": " ", "raw.x": "1"}, declared) == values
    given = {"name": "a b", "mode": " Exact", "count": "7", "limit_s": "2", "tf32": "ON"}
    values = {"name": "a b", "mode": "exact", "count": 7, "limit_s": 2.0, "tf32": True}
    assert parsed(given, declared) == values
    with pytest.raises(ValueError, match="unknown option 'modes'; did you mean 'mode'"):
        parsed({"modes": "fast"}, declared)
    with pytest.raises(ValueError, match="option 'count': expected int from 0, got 'many'"):
        parsed({"count": "many"}, declared)


def test_the_values_of_an_option_are_described() -> None:
    assert describe(Option(text="", type=int, lowest=0, highest=3)) == "int from 0 to 3"
    assert describe(Option(text="", choices=("a", "b"))) == "one of a, b"
    assert describe(Option(text="", type=bool)) == "true or false"


def test_a_probed_record_is_the_one_of_this_process(null_backend: str) -> None:
    here = backends.record("null")
    assert probe("null") == here
    assert from_json(to_json(here)) == here
    old = DeviceInfo(Device("odd"), "old", 2**30, lacks={"deadlines": "too old"})
    aged = replace(here, devices=Devices((old,)))
    assert from_json(to_json(aged)) == aged


@pytest.mark.parametrize(("text", "found"), [("", ""), ("wood", "wood"), ("glass", "Glass")])
def test_a_provider_is_spelt_as_the_manifest_does(text: str, found: str) -> None:
    assert opened(Plugin()).check_provider(text) == found


def test_an_unknown_provider_lists_those_that_are() -> None:
    with pytest.raises(
        engine.BackendUnavailable,
        match=r"'odd' has no provider 'woood'; did you mean 'wood'\? choose one of: wood, Glass",
    ):
        opened(Plugin()).check_provider("woood")

    class Single(Plugin):
        providers = ()

    with pytest.raises(engine.BackendUnavailable, match="it has none: leave the provider out"):
        opened(Single()).check_provider("wood")


def test_an_unknown_provider_of_a_section_is_an_error(null_backend: str, tmp_path: Path) -> None:
    path = models.affine(tmp_path)
    config = {"null_context": {"provider": "nope"}}
    with pytest.raises(engine.BackendUnavailable, match=r"no provider 'nope'.*: reference"):
        engine.load(path, target=null_backend, config=config)
    config = {"null_context": {"provider": "reference"}}
    engine.load(path, target=null_backend, config=config)


def test_an_unknown_provider_of_a_later_target_is_an_error(
    null_backend: str, plugin_folder: Path, tmp_path: Path
) -> None:
    named = "@hookimpl\ndef engine_backend(): return replace(null.engine_backend(), name='other')"
    install(plugin_folder, "other", "other_plugin", source=NULL + named)
    config = {"other_context": {"provider": "nope"}, "null_context": {"unsupported_ops": "Add"}}
    with pytest.raises(engine.BackendUnavailable, match="'other' has no provider 'nope'"):
        engine.load(models.affine(tmp_path), target=[null_backend, "other"], config=config)


TWO_TYPES = """
from engine.hookspecs import hookimpl
from engine.types import BackendInfo, Device, DeviceInfo, Devices

@hookimpl
def engine_backend():
    return BackendInfo(
        name="mine", version="1", device_types=("npu", "dsp"), providers=("fast", "Small"))

@hookimpl
def engine_devices():
    return Devices(tuple(DeviceInfo(Device(kind), "a device") for kind in {found!r}))

@hookimpl
def engine_load(source): ...

@hookimpl
def engine_compile(loaded): ...

@hookimpl
def engine_predict(context): ...
"""


@pytest.mark.parametrize(
    ("found", "by_name", "already_open"),
    [(("dsp",), "dsp", False), (("dsp", "npu"), "npu", False), (("dsp", "npu"), "npu", True)],
)
def test_a_name_stands_for_the_first_device_type_that_is_present(
    plugin_folder: Path, found: tuple[str, ...], by_name: str, already_open: bool
) -> None:
    install(plugin_folder, "mine", "two_types", source=TWO_TYPES.format(found=found))
    if already_open:
        backends.open_backend("mine")
    find, target = backends.find_target, backends.Target
    assert find("mine") == target("mine", by_name)
    assert find("mine:small") == target("mine", by_name, "Small")
    assert find("mine:mine") == target("mine", by_name)
    for kind in ("npu", "dsp"):  # also where none of it is present: compile says what is missing
        assert find(f"mine:{kind}") == find(kind) == target("mine", kind)
        assert find(f"{kind}:mine") == target("mine", kind)
    assert find("dsp:fast") == target("mine", "dsp", "fast")
    says = "choose one of: mine:npu, mine:dsp, mine:fast, mine:Small"
    with pytest.raises(engine.BackendUnavailable, match=says):
        find("mine:tpu")


def test_a_target_that_is_like_none_gets_no_hint(null_backend: str) -> None:
    with pytest.raises(engine.BackendNotInstalled) as caught:
        backends.find_target("quantum")
    assert "did you mean" not in str(caught.value)
