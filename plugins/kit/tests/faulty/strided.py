"""Faults of buffers with strides: what lies in between is read or written."""

from __future__ import annotations

from dataclasses import replace

from engine.errors import InputError
from engine.types import DeviceBuffer
from faulty import Faulty, caught_by

READS = "test_a_strided_buffer_is_copied_element_by_element"
WRITES = "test_a_copy_into_a_strided_buffer_leaves_what_is_between"
PREDICTS = "test_predict_reads_an_input_by_its_strides"
SIZES = "test_strides_count_elements_of_any_size"


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


@caught_by(READS, says="Arrays are not equal")
class ForgetsAnOffsetWithoutStrides(Faulty):
    def copy(self, source, target, stream):
        if _is_strided(source) and source.strides is None:
            source = replace(source, offset_bytes=0)
        return super().copy(source, target, stream)


@caught_by(PREDICTS, says="Not equal to tolerance")
class PredictsWithoutAnOffsetAlone(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        plain = [
            replace(x, offset_bytes=0) if _is_strided(x) and x.strides is None else x
            for x in inputs
        ]
        return super().predict(context, plain, outputs, deadline_s)


@caught_by(READS, says="Arrays are not equal")
class ReadsNegativeStridesAsPositive(Faulty):
    def copy(self, source, target, stream):
        if _is_strided(source) and any(step < 0 for step in source.strides or ()):
            last = sum(
                (dim - 1) * step for dim, step in zip(source.shape, source.strides, strict=True)
            )
            begin = source.offset_bytes + last * source.dtype.bits // 8
            strides = tuple(map(abs, source.strides))
            source = replace(source, strides=strides, offset_bytes=begin)
        return super().copy(source, target, stream)


@caught_by(SIZES, says="Arrays are not equal")
class KnowsStridesOfFourBytesAlone(Faulty):
    def copy(self, source, target, stream):
        if _is_strided(source) and source.dtype.bits != 32:
            source = replace(source, strides=None)
        return super().copy(source, target, stream)


@caught_by(READS, says="Arrays are not equal")
class ReadsAScalarAtTheBegin(Faulty):
    def copy(self, source, target, stream):
        if _is_strided(source) and source.shape == ():
            source = replace(source, offset_bytes=0)
        return super().copy(source, target, stream)


@caught_by(READS, says="nothing to copy")
class RefusesToCopyNothing(Faulty):
    def copy(self, source, target, stream):
        if _is_strided(source) and 0 in source.shape:
            raise InputError("there is nothing to copy")
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
