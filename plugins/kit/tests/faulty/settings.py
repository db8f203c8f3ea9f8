"""Faults of declared options, and of what a device is said to lack."""

from __future__ import annotations

from dataclasses import replace

from engine.hookspecs import hookimpl
from engine.types import Capability, DeviceInfo, Devices, Option
from faulty import FAULTS, Fault, Faulty, caught_by


class Declares(Faulty):
    """One option more, which `take` reads."""

    option = Option(text="")
    name_of_option = "level"

    def manifest(self):
        info = super().manifest()
        return replace(info, options={**info.options, self.name_of_option: self.option})

    def load(self, source, options):
        given = dict(options.options)
        self.take(given.pop("level", "1"))
        return super().load(source, replace(options, options=given))

    def compile(self, loaded, options):
        given = {key: value for key, value in options.options.items() if key != "level"}
        return super().compile(loaded, replace(options, options=given))

    def take(self, value: str) -> None:
        raise NotImplementedError


@caught_by("test_declared_values_of_options_are_taken", says="is declared to take '9'")
class RefusesADeclaredValue(Declares):
    option = Option(text="how hard to try", type=int, lowest=0, highest=9)

    def take(self, value):
        if value not in map(str, range(9)):
            raise ValueError(f"option 'level': expected 0 to 8, got {value!r}")


@caught_by("test_other_values_of_options_are_refused", says="but takes '10'")
class TakesValuesBeyondItsLimits(Declares):
    option = Option(text="how hard to try", type=int, lowest=0, highest=9)

    def take(self, value):
        try:
            int(value)
        except ValueError:
            raise ValueError(f"option 'level': expected a number, got {value!r}") from None
        if int(value) < 0:
            raise ValueError(f"option 'level': expected 0 or more, got {value!r}")


@caught_by("test_other_values_of_options_are_refused", says="but takes 'no_such_choice'")
class TakesAnyChoice(Declares):
    option = Option(text="the algorithm", choices=("a", "b"))

    def take(self, value):
        pass


@caught_by("test_other_values_of_options_are_refused", says="does not name option 'level'")
class DoesNotNameTheOption(Declares):
    option = Option(text="how hard to try", type=int)

    def take(self, value):
        int(value)


@caught_by("test_every_option_is_explained", says="option 'level' has no text")
class ExplainsNothing(Declares):
    def take(self, value):
        pass


@caught_by("test_every_option_is_explained", says="option 'model_cache_dir' is the core's")
class DeclaresTheCoresOption(Declares):
    option = Option(text="where to cache")
    name_of_option = "model_cache_dir"

    def take(self, value):
        pass


class Lacks(Faulty):
    lacks: dict[str, str] = {}  # noqa: RUF012

    def devices(self):
        [info] = super().devices().found
        return Devices((DeviceInfo(info.device, info.name, lacks=self.lacks),))


@caught_by("test_what_a_device_lacks_is_announced_and_has_a_reason", says="which is not announced")
class LacksWhatItNeverHad(Lacks):
    lacks = {Capability.GRAPH_COLLECTIVES: "the runtime is too old"}  # noqa: RUF012


@caught_by("test_what_a_device_lacks_is_announced_and_has_a_reason", says="no reason is given")
class LacksWithoutAReason(Lacks):
    lacks = {Capability.DEADLINES: ""}  # noqa: RUF012


@caught_by("test_announced_capabilities_have_their_hooks", says="not implemented")
class AnnouncesWhatItCannotDo(Faulty):
    engine_share_weights = None  # announced, and not there


@caught_by("test_no_hook_is_unknown_to_the_core", says="engine_predikt")
class MisspellsAHook(Faulty):
    @hookimpl
    def engine_predikt(self):
        return None


FAULTS["wraps_predict"] = Fault(
    "wraps_predict",
    ("test_the_manifest_says_who_the_backend_is",),
    "its engine_diagnose is a wrapper",
    control="test_importing_the_plugin_prints_nothing",
    target="wraps_predict_plugin",
    source=(
        "from engine_testing.null_device import *\nfrom engine.hookspecs import hookimpl\n"
        "@hookimpl(wrapper=True)\ndef engine_diagnose():\n    return (yield)\n"
    ),
)
