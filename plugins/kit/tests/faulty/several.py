"""Faults of one executable on several devices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from engine_testing import null_mesh
from faulty import Executable, Faulty, caught_by

SAME = "test_several_devices_give_the_results_of_one"


class Several(Faulty):
    """The null backend with two devices, as `Faulty` is the null device."""

    def manifest(self):
        return replace(null_mesh.engine_backend(), name=self.name)

    def devices(self):
        return null_mesh.engine_devices()

    def load(self, source, options):
        return null_mesh.engine_load(source, options)

    def compile(self, loaded, options):
        inner: Any = null_mesh.engine_compile(loaded, options)
        executable = OnSeveral(self, inner, options=options)
        executable.notes["devices"] = inner.devices
        return executable

    def predict_with(self, context, inputs, outputs, deadline_s, options):
        return self.predict(context, inputs, outputs, deadline_s)

    def predict(self, context, inputs, outputs, deadline_s):
        return null_mesh.engine_predict(context.inner, inputs, outputs, deadline_s)

    def concurrency(self, executable):
        return 0

    def report(self, memory):
        return memory

    def by_device(self, executable):
        return executable.inner.memory_by_device()


class OnSeveral(Executable):
    def memory_by_device(self):
        return self.backend.by_device(self)

    def memory(self):
        return self.backend.report(self.inner.memory())


def _is_divided(context):
    return len(context.executable.notes["devices"]) > 1


@caught_by(SAME, says="Not equal to tolerance")
class ForgetsTheRestOfAnUnevenBatch(Several):
    """Rows that are no multiple of the devices are padded, and the last is left as it was."""

    def predict(self, context, inputs, outputs, deadline_s):
        results = super().predict(context, inputs, outputs, deadline_s)
        if _is_divided(context) and results[0].ndim and len(results[0]) % 2:
            return [np.concatenate([results[0][:-1], results[0][-1:] * 0]), *results[1:]]
        return results


@caught_by("test_samples_that_meet_in_a_model_meet_on_several_devices", says="Not equal to toler")
class RunsAPartOfTheBatchOnEach(Several):
    """Each device runs the whole model on its rows, whatever the model does with them."""

    def predict(self, context, inputs, outputs, deadline_s):
        [first, *others] = inputs
        if not _is_divided(context) or others or first.ndim < 2 or len(first) < 2:
            return super().predict(context, inputs, outputs, deadline_s)
        halves = np.array_split(first, 2)
        found = [super(RunsAPartOfTheBatchOnEach, self).predict(context, [h], None, deadline_s)
                 for h in halves]  # fmt: skip
        return [np.concatenate(parts) for parts in zip(*found, strict=True)]


@caught_by("test_nodes_are_placed_on_the_devices_that_were_given", says="nodes are placed on")
class UsesTheFirstDeviceAlone(Several):
    def compile(self, loaded, options):
        executable = super().compile(loaded, replace(options, devices=()))
        executable.notes["devices"] = options.devices or (options.device,)
        return executable


@caught_by("test_memory_is_told_for_each_device", says="memory() is not the sum")
class CountsWeightsOnEachDevice(Several):
    def by_device(self, executable):
        whole = executable.inner.memory()
        return dict.fromkeys(executable.notes["devices"], whole)


@caught_by(
    "test_executables_on_other_devices_go_on_beside_each_other", says="the second device is closed"
)
class ClosesDevicesWithTheFirstExecutable(Several):
    _is_closed = False

    def close_executable(self, executable):
        type(self)._is_closed = len(executable.notes["devices"]) == 1
        super().close_executable(executable)

    def predict(self, context, inputs, outputs, deadline_s):
        if _is_divided(context) and self._is_closed:
            raise RuntimeError("the second device is closed")
        return super().predict(context, inputs, outputs, deadline_s)
