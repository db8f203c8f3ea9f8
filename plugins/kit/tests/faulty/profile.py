"""Faults of the times of kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from faulty import Faulty, caught_by

_TIMES = "test_each_predict_has_the_times_of_its_kernels"
_NODES = "test_kernels_name_the_nodes_that_they_compute"


@caught_by(_TIMES, says="numbered from 0, and each has kernels")
class CountsItsPredictsFromOne(Faulty):
    def profile(self, executable):
        return [replace(each, predict=each.predict + 1) for each in super().profile(executable)]


@caught_by(_TIMES, says="numbered from 0, and each has kernels")
class TellsTheLastPredictOnly(Faulty):
    def profile(self, executable):
        times = super().profile(executable)
        return [each for each in times if each.predict == times[-1].predict]


@caught_by(_TIMES, says="began before the first predict")
class CountsTimeFromItsOwnBegin(Faulty):
    def profile(self, executable):
        times = super().profile(executable)
        return [replace(each, start_s=each.start_s - times[0].start_s) for each in times]


@caught_by(_TIMES, says="ended after all")
class GivesMicroseconds(Faulty):
    def profile(self, executable):
        times = super().profile(executable)
        return [replace(each, duration_s=(each.duration_s + 1e-5) * 1e6) for each in times]


@caught_by(_NODES, says="no kernel names a node")
class NamesNoNode(Faulty):
    def profile(self, executable):
        return [replace(each, nodes=()) for each in super().profile(executable)]


@caught_by(_NODES, says="the model's nodes are")
class CountsNodesFromOne(Faulty):
    def profile(self, executable):
        times = super().profile(executable)
        return [replace(each, nodes=(each.nodes[0] + 1,)) for each in times]


@caught_by(
    "test_files_of_a_measurement_are_where_they_were_asked_for", says="working folder is the user's"
)
class WritesWhereItStands(Faulty):
    def profile(self, executable):
        times = super().profile(executable)
        Path("times.json").write_text(str(times))
        return times


@caught_by("test_measuring_changes_no_result", says="Arrays are not equal")
class RunsOtherwiseWhileItMeasures(Faulty):
    def compile(self, loaded, options):
        executable = super().compile(loaded, options)
        executable.notes["measured"] = options.profile_to is not None
        return executable

    def predict(self, context, inputs, outputs, deadline_s):
        results = super().predict(context, inputs, outputs, deadline_s)
        if context.executable.notes["measured"]:
            results = [result * 1.001 for result in results]
        return results
