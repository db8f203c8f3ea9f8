"""Faults of manifest, import, life cycle, reports and leaks."""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import BackendUnavailable, ModelError
from engine.types import Check, Device, DeviceInfo, Devices, NodeState
from faulty import FAULTS, QUIET, Context, Executable, Fault, Faulty, caught_by


@caught_by("test_the_manifest_says_who_the_backend_is", says="is not the entry point's")
class NamesItselfOtherwise(Faulty):
    def manifest(self):
        return replace(super().manifest(), name="somebody_else")


@caught_by("test_the_manifest_says_who_the_backend_is", says="which is no format")
class ClaimsASuffixItCannotRead(Faulty):
    def manifest(self):
        return replace(super().manifest(), suffixes={".plan": "plan"})


@caught_by("test_the_manifest_does_not_change", says="gave different manifests")
class ChangesItsManifest(Faulty):
    calls = 0

    def manifest(self):
        self.calls += 1
        return replace(super().manifest(), version=f"0.0.{self.calls}")


@caught_by("test_devices_are_found_or_a_reason_is_given", says="is of no type that the manifest")
class FindsForeignDevices(Faulty):
    def devices(self):
        found = super().devices().found
        return Devices(found=(*found, DeviceInfo(Device("toaster", 0), "kitchen")))


@caught_by("test_a_failed_check_names_its_fix", says="names no fix")
class KnowsNoFix(Faulty):
    def diagnose(self):
        return [Check("driver", ok=False, detail="too old")]


def _module(name: str, first_lines: str, test: str, says: str) -> None:
    source = f"{first_lines}\nfrom engine_testing.null_device import *\n"
    FAULTS[name] = Fault(name, (test,), says, target=f"{name}_plugin", source=source)


_module(
    "prints_at_import",
    "print('hello from the driver')",
    "test_importing_the_plugin_prints_nothing",
    "hello from the driver",
)
_module(
    "warns_at_import",
    "import sys; sys.stderr.write('no license found')",
    "test_importing_the_plugin_prints_nothing",
    "no license found",
)
_module(
    "imports_its_runtime_at_import",
    "import onnx",
    "test_importing_the_plugin_imports_no_runtime",
    "import them in engine_load",
)
_module(
    "works_at_import",
    "import time\nend = time.process_time() + 0.6\nwhile time.process_time() < end: pass",
    "test_importing_the_plugin_is_quick",
    "s of CPU time",
)


@caught_by("test_closing_twice_does_nothing", says="freed twice")
class ClosesOnlyOnce(Faulty):
    def close_executable(self, executable: Executable):
        if executable.notes.setdefault("closed", False):
            raise RuntimeError("freed twice")
        executable.notes["closed"] = True
        super().close_executable(executable)


@caught_by(
    "test_the_executable_outlives_the_loaded_model", says="predict after close", control=QUIET
)
class KeepsTheWeightsInTheLoadedModel(Faulty):
    def compile(self, loaded: Any, options):
        executable = super().compile(loaded, options)
        loaded.close = executable.inner.close
        return executable


@caught_by("test_closing_a_context_leaves_the_others", says="predict after close")
class ClosesAllWithOneContext(Faulty):
    def close_context(self, context: Context):
        super().close_context(context)
        context.executable.close()


@caught_by("test_executables_know_nothing_of_each_other", says="failed on this data")
class HasOneExecutable(Faulty):
    """Every executable is the one that was compiled last."""

    last: Any = None

    def compile(self, loaded, options):
        executable = super().compile(loaded, options)
        self.last = executable.inner
        return executable

    def predict(self, context, inputs, outputs, deadline_s):
        context.inner._inner = self.last.inner.open_context()
        return super().predict(context, inputs, outputs, deadline_s)


@caught_by("test_a_model_is_read_from_its_bytes_where_there_are_any", says="not_there.onnx")
class PrefersTheFile(Faulty):
    def load(self, source, options):
        if source.path is not None:
            source = replace(source, data=None)
        return super().load(source, options)


@caught_by(
    "test_a_model_is_read_from_its_file_where_there_are_no_bytes",
    says="expected the model's bytes",
    control=QUIET,
)
class NeedsBytes(Faulty):
    def load(self, source, options):
        if source.data is None:
            raise ModelError(f"{source.name}: expected the model's bytes")
        return super().load(source, options)


@caught_by("test_weights_beside_the_model_are_found", says="external.bin")
class LooksForWeightsInTheWorkingFolder(Faulty):
    def load(self, source, options):
        return super().load(replace(source, folder=Path.cwd()), options)


@caught_by(
    "test_weights_in_memory_are_found_and_kept_where_they_are_used",
    says="no folder to find 'external.bin'",
)
class OverlooksWeightsInMemory(Faulty):
    def load(self, source, options):
        return super().load(replace(source, files={}), options)


@caught_by(
    "test_weights_in_memory_are_found_and_kept_where_they_are_used",
    says="Not equal to tolerance",  # freed memory may hold NaN, of which numpy says more
)
class KeepsTheAddressOfWeightsInMemory(Faulty):
    """Uses them where they are, and forgets to keep them there."""

    source: Any = None

    def load(self, source, options):
        self.source, self.options, self.addresses = None, options, {}
        for location, view in source.files.items():
            address = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
            self.addresses[location] = address, len(view)
            self.source = replace(source, files={})
        return super().load(source, options)

    def predict(self, context, inputs, outputs, deadline_s):
        if self.source is not None:
            files = {name: ctypes.string_at(*where) for name, where in self.addresses.items()}
            loaded = super().load(replace(self.source, files=files), self.options)
            context = super().compile(loaded, self.options).open_context()
        return super().predict(context, inputs, outputs, deadline_s)


@caught_by("test_nothing_is_printed", says="the backend printed something")
class PrintsWhileItRuns(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        os.write(2, b"[W] slow kernel chosen\n")  # as a C library does, past sys.stderr
        return super().predict(context, inputs, outputs, deadline_s)


@caught_by("test_a_second_process_can_use_the_backend_too", says="the device is taken")
class TakesTheDeviceForItself(Faulty):
    lock = -1

    def load(self, source, options):
        if self.lock < 0:
            path = Path(os.environ["FAULTY_FOLDER"]) / "device.lock"
            self.lock = os.open(path, os.O_CREAT | os.O_RDWR)
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise BackendUnavailable("the device is taken", self.name) from error
        return super().load(source, options)


@caught_by("test_a_second_process_can_use_the_backend_too", says="contexts are still open")
class CannotEndOpen(Faulty):
    opened = 0

    def open_context(self, executable):
        self.opened += 1
        if self.opened == 1:
            atexit.register(self.end)
        return super().open_context(executable)

    def close_context(self, context):
        self.opened -= 1
        super().close_context(context)

    def end(self):
        if self.opened > 0:
            os.write(2, b"driver: contexts are still open\n")
            os._exit(134)


@caught_by(
    "test_placement_names_backend_device_provider_and_reason", says="provider 'fast' is not in"
)
class NamesAnUnknownProvider(Faulty):
    def place(self, placement):
        return [replace(node, provider="fast") for node in super().place(placement)]


@caught_by("test_placement_has_one_entry_for_each_node", says="assert [")
class ForgetsANode(Faulty):
    """Reports what the runtime made of the graph, not what the file holds."""

    def place(self, placement):
        return [node for node in super().place(placement) if node.op_type != "Constant"]


@caught_by(
    "test_placement_names_backend_device_provider_and_reason", says="placement names another device"
)
class NamesAnotherDevice(Faulty):
    def place(self, placement):
        return [replace(node, device="cpu:0") for node in super().place(placement)]


@caught_by("test_states_of_nodes_are_possible", says="is fused into node 1000")
class FusesIntoANodeThatIsNot(Faulty):
    def place(self, placement):
        first, *others = super().place(placement)
        return [replace(first, state=NodeState.FUSED, fused_into=1000), *others]


@caught_by("test_states_of_nodes_are_possible", says="is fused and runs")
class FusesANodeThatRuns(Faulty):
    def place(self, placement):
        *others, last = super().place(placement)
        return [*others, replace(last, fused_into=0)]


@caught_by("test_states_of_nodes_are_possible", says="none runs")
class FusesEveryNode(Faulty):
    def place(self, placement):
        return [replace(node, state=NodeState.FUSED) for node in super().place(placement)]


@caught_by("test_memory_is_reported_in_bytes", says="4 bytes are reported")
class ReportsMebibytes(Faulty):
    def report(self, memory):
        return replace(memory, weights_bytes=memory.weights_bytes // 2**20)


@caught_by("test_contexts_leave_no_files_threads_or_memory", says="more files are open")
class LeaksFiles(Faulty):
    def open_context(self, executable):
        os.dup(0)
        return super().open_context(executable)


@caught_by("test_contexts_leave_no_files_threads_or_memory", says="more threads run")
class LeaksThreads(Faulty):
    def open_context(self, executable):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        return super().open_context(executable)


@caught_by("test_contexts_leave_no_files_threads_or_memory", says="MiB more are held")
class LeaksActivations(Faulty):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.kept: list[Any] = []

    def close_context(self, context):
        super().close_context(context)
        self.kept.append(np.ones(2**17, np.float32))


@caught_by("test_executables_leave_no_files_threads_or_memory", says="MiB more are held")
class LeaksWeights(Faulty):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.kept: list[Any] = []

    def compile(self, loaded, options):
        executable = super().compile(loaded, options)
        self.kept.append(executable.inner.inner.evaluator)
        return executable


@caught_by("test_refused_models_leave_no_files_threads_or_memory", says="MiB more are held")
class LeaksRefusedModels(Faulty):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.kept: list[Any] = []

    def load(self, source, options):
        try:
            return super().load(source, options)
        except ModelError:
            self.kept.append(source.path.read_bytes())
            raise
