"""One opened backend: its hooks as plain functions, and what it can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from engine import hookspecs
from engine.backends.hooks import hooks_of
from engine.backends.manifest import checked
from engine.config.text import did_you_mean
from engine.errors import BackendUnavailable, one_line
from engine.host.interrupts import raised_by_handler
from engine.types import (
    BackendInfo,
    Capability,
    Check,
    CompileOptions,
    Device,
    DeviceInfo,
    DeviceMemory,
    Devices,
    Executable,
    LoadedModel,
    ModelSource,
)

if TYPE_CHECKING:
    from engine.types import Values

NEEDED: Mapping[str, tuple[str, ...]] = {
    Capability.DEVICE_BUFFERS: ("engine_buffer", "engine_copy", "engine_order"),
    Capability.COMPILE_CACHE: ("engine_compiled_key",),
    Capability.SHARE_WEIGHTS: ("engine_share_weights",),
    Capability.UPDATE_WEIGHTS: ("engine_update_weights",),
    Capability.ASYNC_PREDICT: ("engine_predict_async",),
    Capability.DEVICE_MEMORY: ("engine_memory",),
    Capability.COLLECTIVES: (
        "engine_communicator",
        "engine_allreduce",
        "engine_allgather",
        "engine_send",
        "engine_receive",
    ),
}
"""The hooks without which a capability is none. Other collectives are composed of these."""


class Backend:
    """An opened backend: its hooks as plain functions, bound once.

    A hook call through pluggy costs about 1 us, a bound function a twentieth of that.

    hooks: those that it implements, by name. info: its manifest; all `options` are `Option`s.
    warnings: what the core ignores of it, and why.
    Raises TypeError for a plugin that is no backend of this contract, saying why.
    """

    def __init__(self, name: str, plugin: object, warnings: list[str]) -> None:
        self.name = name
        self.hooks, with_optional = hooks_of(name, plugin, warnings)
        missing = [hook for hook in hookspecs.REQUIRED if not self.has(hook)]
        if missing:
            raise TypeError(f"it does not implement {', '.join(missing)}")
        self.info: BackendInfo = checked(self.bind("engine_backend")())
        if self.info.level > hookspecs.LEVEL:
            from engine.backends.level import NewerContract  # rare

            raise NewerContract(self.info.level)
        self.capabilities = frozenset(self.info.capabilities)
        for capability, hooks in NEEDED.items():
            absent = [hook for hook in hooks if not self.has(hook)]
            if capability in self.capabilities and absent:
                self.capabilities -= {capability}
                warnings.append(
                    f"it announces {str(capability)!r} but does not implement "
                    f"{', '.join(absent)}; the capability is ignored"
                )
        if Capability.PREDICT_OPTIONS in self.capabilities and not with_optional:
            self.capabilities -= {Capability.PREDICT_OPTIONS}
            warnings.append(
                f"it announces {str(Capability.PREDICT_OPTIONS)!r} but neither its engine_predict "
                "nor its engine_predict_async has a parameter options=None; the capability is "
                "ignored"
            )
        self.warnings = tuple(warnings)
        self._ask_devices: Callable[[], Devices] = self.bind("engine_devices")
        self._devices: Devices | None = None
        self._present: Mapping[Device, DeviceInfo] | None = None
        self.load: Callable[[ModelSource, CompileOptions], LoadedModel] = self.bind("engine_load")
        self.compile: Callable[[LoadedModel, CompileOptions], Executable] = self.bind(
            "engine_compile"
        )
        self.predict: Callable[[Any, Values, Values | None, float | None], Values] = self.bind(
            "engine_predict"
        )
        # The same with PredictOptions too, where the backend takes them.
        self.predict_with = with_optional.get("engine_predict")
        self.begin_with = with_optional.get("engine_predict_async")

    def devices(self) -> Devices:
        """Ask engine_devices anew; what it raises comes through. `present` goes by the answer."""
        devices = self._ask_devices()
        self._devices, self._present = devices, None
        return devices

    @property
    def present(self) -> Mapping[Device, DeviceInfo]:
        """The devices of the latest answer of engine_devices, which is asked if it never was.

        Raises BackendUnavailable where it fails.
        """
        present = self._present
        if present is None:
            try:
                devices = self._devices or self.devices()
                present = {info.device: info for info in devices.found}
            except BaseException as error:  # SystemExit, or a panic of a compiled extension
                if raised_by_handler(error):
                    raise
                raise self.at_fault("engine_devices", error) from error
            self._present = present
        return present

    def at_fault(self, hook: str, error: BaseException) -> BackendUnavailable:
        """Return the error for a hook that raised what it may not."""
        return BackendUnavailable(
            f"backend {self.name!r} is at fault: its {hook} raised {one_line(error)}; report it to "
            f"the authors of {self.name!r} {self.info.version}",
            self.name,
        )

    def memory(self, device: Device) -> DeviceMemory | None:
        """Return how much memory a device has left now; None where the backend cannot tell.

        Raises BackendUnavailable where the device is gone, or the hook fails.
        """
        if self.lacks(Capability.DEVICE_MEMORY, device):
            return None
        try:
            found: object = self.bind("engine_memory")(device)
            if not isinstance(found, DeviceMemory):
                raise TypeError(f"it must return a DeviceMemory, but returned {type(found)}")
        except BaseException as error:  # SystemExit, or a panic of a compiled extension
            if raised_by_handler(error) or isinstance(error, BackendUnavailable):
                raise
            raise self.at_fault("engine_memory", error) from error
        return found

    def diagnose(self) -> Sequence[Check]:
        """Return the backend's own checks of this machine; none if it has none."""
        if not self.has("engine_diagnose"):
            return ()
        checks: Sequence[Check] = self.bind("engine_diagnose")()
        return checks

    # ------------------------------------------------------------------------- what it can do

    def has(self, hook: str) -> bool:
        """Return whether the backend implements `hook`."""
        return hook in self.hooks

    def can(self, capability: str) -> bool:
        """Return whether the backend announces a capability and has the hooks it needs.

        A device may lack it all the same: see `lacks`.
        """
        return capability in self.capabilities

    def lacks(self, capability: str, device: Device) -> str:
        """Return why `device` does not have a capability; "" where it does.

        Asks engine_devices only if nobody has; raises BackendUnavailable where that fails.
        """
        if not self.can(capability):
            return f"backend {self.name!r} does not announce {str(capability)!r}"
        info = self.present.get(device)
        return str(info.lacks.get(capability, "")) if info is not None else ""

    @property
    def device_type(self) -> str:
        """The device type that the backend's name alone stands for: the first that is present.

        Where none is, the first of the manifest, so that what follows can say what is missing.
        """
        types = self.info.device_types
        if len(types) == 1:
            return types[0]
        present = {device.type for device in self.present}
        return next((kind for kind in types if kind in present), types[0])

    def check_provider(self, text: str) -> str:
        """Return a provider that the user names as the manifest spells it; "" for none.

        Raises BackendUnavailable listing the backend's providers where it is none of them.
        """
        by_lower = {provider.lower(): provider for provider in self.info.providers}
        if not text or text.lower() in by_lower:
            return by_lower.get(text.lower(), "")
        hint = did_you_mean(text, by_lower.values(), " ")
        known = ", ".join(self.info.providers)
        advice = f"choose one of: {known}" if known else "it has none: leave the provider out"
        raise BackendUnavailable(
            f"backend {self.name!r} has no provider {text!r};{hint} {advice}", self.name
        )

    # ------------------------------------------------------------------------------- its hooks

    def bind(self, hook: str) -> Callable[..., Any]:
        """Return the implementation of `hook` as a function of the spec's arguments, in order."""
        if not self.has(hook):
            raise BackendUnavailable(
                f"backend {self.name!r} does not implement {hook}; it announces: "
                f"{', '.join(sorted(self.info.capabilities)) or 'nothing'}",
                self.name,
            )
        return self.hooks[hook]
