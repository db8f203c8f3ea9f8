"""Faults of buffers with strides: what lies in between is read or written."""

from __future__ import annotations

from dataclasses import replace

from engine.types import DeviceBuffer
from faulty import Faulty, caught_by

READS = "test_a_strided_buffer_is_copied_element_by_element"
WRITES = "test_a_copy_into_a_strided_buffer_leaves_what_is_between"
PREDICTS = "test_predict_reads_an_input_by_its_strides"


def _is_strided(value):
    return isinstance(value, DeviceBuffer) and not value.is_packed


@caught_by(READS, says="Arrays are not equal")
class CopiesFromStridedMemoryAsItLies(Faulty):
    def copy(self, source, target, stream):
        if _is_strided(source):
            source = replace(source, strides=None)
        return super().copy(source, target, stream)


@caught_by(READS, says="Arrays are not equal")
class ForgetsTheOffset(Faulty):
    def copy(self, source, target, stream):
        if _is_strided(source):
            source = replace(source, offset_bytes=0)
        return super().copy(source, target, stream)


@caught_by(WRITES, says="Arrays are not equal")
class WritesWhatIsBetween(Faulty):
    def copy(self, source, target, stream):
        if _is_strided(target):
            target = replace(target, strides=None)
        return super().copy(source, target, stream)


@caught_by(PREDICTS, says="Not equal to tolerance")
class PredictsOnStridedMemoryAsItLies(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        plain = [replace(x, strides=None) if _is_strided(x) else x for x in inputs]
        return super().predict(context, plain, outputs, deadline_s)


@caught_by("test_results_of_strided_inputs_may_stay_on_the_device", says="Not equal to tolerance")
class GivesResultsTheStridesOfTheInput(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        results = super().predict(context, inputs, outputs, deadline_s)
        strided = [x for x in inputs if _is_strided(x)]
        if not strided or not isinstance(results[0], DeviceBuffer):
            return results
        return [replace(results[0], strides=(1, 5))]
