"""Level of the kit: a backend's manifest, and the cost of importing it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

import pytest

from engine.backends import Backend
from engine.backends.backend import NEEDED
from engine.options import CONSUMED
from engine.types import BackendInfo, Check, Devices
from engine_testing.level import Level, run_child

RUNTIMES = (
    "acl",
    "cupy",
    "jax",
    "mpi4py",
    "onnx",
    "onnxruntime",
    "openvino",
    "pycuda",
    "tensorflow",
    "tensorrt",
    "torch",
)
"""Modules that take long to import, start threads or touch drivers: not at a plugin's import."""

# The child imports numpy and the core first: what is measured is what the plugin adds.
_IMPORT = """
import json, sys, time
start = time.process_time()
import numpy
numpy_s = time.process_time() - start
import engine.backends
from importlib_metadata import entry_points
[point] = entry_points(group=engine.backends.GROUP, name=sys.argv[1])
before = set(sys.modules)
start = time.process_time()
point.load()
plugin_s = time.process_time() - start
with open(sys.argv[2], "w") as file:
    json.dump([numpy_s, plugin_s, sorted(set(sys.modules) - before)], file)
"""


@dataclass(frozen=True, slots=True)
class Import:
    """Observations of a fresh process that imported the plugin; CPU times in seconds."""

    numpy_s: float
    plugin_s: float
    modules: tuple[str, ...]
    printed: str


class Manifest(Level):
    """The manifest is true and the import quick, quiet and late; no device is needed for it."""

    _imported: ClassVar[dict[str, Import]] = {}

    @pytest.fixture
    def imported(self, tmp_path_factory: pytest.TempPathFactory) -> Import:
        """Import the plugin in a process of its own, once for each backend."""
        if self.backend not in self._imported:
            answer = tmp_path_factory.mktemp("import") / "answer.json"
            child = run_child("-c", _IMPORT, self.backend, str(answer))
            assert child.returncode == 0, f"importing the plugin failed:\n{child.stderr}"
            numpy_s, plugin_s, modules = json.loads(answer.read_text())
            self._imported[self.backend] = Import(
                numpy_s, plugin_s, tuple(modules), child.stdout + child.stderr
            )
        return self._imported[self.backend]

    def test_the_manifest_says_who_the_backend_is(self, plugin: Backend) -> None:
        info = plugin.info
        assert info.name == self.backend, "the manifest's name is not the entry point's"
        assert info.version, "the manifest has no version"
        for field in (info.device_types, info.providers, info.formats):
            assert isinstance(field, tuple), f"expected a tuple of str, got {field!r}"
            assert all(isinstance(word, str) and word for word in field), field
            assert len(set(field)) == len(field), f"{field} has one word twice"
        assert info.device_types, "a backend serves at least one device type"
        assert all(word == word.lower() for word in info.device_types), info.device_types
        assert info.formats, "a backend reads at least one format"
        assert isinstance(info.capabilities, frozenset), info.capabilities
        for suffix, form in info.suffixes.items():
            assert suffix.startswith("."), f"suffix {suffix!r} does not start with a dot"
            assert form in info.formats, f"suffix {suffix!r} names {form!r}, which is no format"

    def test_the_manifest_does_not_change(self, plugin: Backend) -> None:
        again, once_more = (plugin.bind("engine_backend")() for _ in range(2))
        assert isinstance(again, BackendInfo)
        assert again == once_more, "two calls of engine_backend gave different manifests"

    def test_announced_capabilities_have_their_hooks(self, plugin: Backend) -> None:
        for capability in plugin.info.capabilities & {*NEEDED}:
            missing = [hook for hook in NEEDED[capability] if not plugin.has(hook)]
            assert missing == [], f"{capability!r} is announced, but {missing} not implemented"
        ignored = [text for text in plugin.warnings if "the capability is ignored" in text]
        assert ignored == [], "the core ignores a capability of this backend"

    def test_no_hook_is_unknown_to_the_core(self, plugin: Backend) -> None:
        ignored = [text for text in plugin.warnings if "unknown hook" in text]
        assert ignored == [], "the core ignores hooks of this backend"

    def test_what_a_device_lacks_is_announced_and_has_a_reason(self, plugin: Backend) -> None:
        for info in plugin.devices().found:
            for capability, why in info.lacks.items():
                assert capability in plugin.info.capabilities, (
                    f"device {info.device} lacks {str(capability)!r}, which is not announced"
                )
                assert why, f"no reason is given why device {info.device} lacks {capability!r}"
                assert "\n" not in why, f"the reason has several lines: {why}"

    def test_every_option_is_explained(self, plugin: Backend) -> None:
        for name, option in plugin.info.options.items():
            assert str(option).strip(), f"option {name!r} has no text"
            assert name not in CONSUMED, f"option {name!r} is the core's, for every backend"

    def test_devices_are_found_or_a_reason_is_given(self, plugin: Backend) -> None:
        devices = plugin.devices()
        assert isinstance(devices, Devices)
        if not devices.found:
            assert devices.reason, "no device is found, and no reason given"
            assert devices.fix, "no device is found, and no fix given"
        names = [info.device for info in devices.found]
        assert len(set(names)) == len(names), f"one device is found twice: {names}"
        for info in devices.found:
            assert info.device.type in plugin.info.device_types, (
                f"device {info.device} is of no type that the manifest names"
            )
            assert info.name, f"device {info.device} has no name"
            assert info.memory_bytes is None or info.memory_bytes > 2**20, (
                f"device {info.device} has {info.memory_bytes} bytes of memory"
            )

    def test_a_failed_check_names_its_fix(self, plugin: Backend) -> None:
        if not plugin.has("engine_diagnose"):
            pytest.skip("engine_diagnose is not implemented")
        checks = plugin.diagnose()
        assert checks, "engine_diagnose checks nothing"
        for check in checks:
            assert isinstance(check, Check)
            assert check.name, "a check has no name"
            assert check.ok or check.fix, f"check {check.name!r} failed and names no fix"

    def test_importing_the_plugin_prints_nothing(self, imported: Import) -> None:
        assert imported.printed == "", "importing the plugin printed something"

    def test_importing_the_plugin_imports_no_runtime(self, imported: Import) -> None:
        heavy = {*RUNTIMES, *self.vendor_modules}
        found = sorted({name.partition(".")[0] for name in imported.modules} & heavy)
        assert found == [], f"importing the plugin imported {found}; import them in engine_load"

    def test_importing_the_plugin_is_quick(self, imported: Import) -> None:
        # CPU time against numpy's in the same process: independent of machine and neighbours.
        limit_s = 1.5 * max(imported.numpy_s, 0.05)
        assert imported.plugin_s < limit_s, (
            f"importing the plugin took {imported.plugin_s:.3f} s of CPU time, "
            f"numpy {imported.numpy_s:.3f} s"
        )
