"""Backends that are unusual, and right: the proof that the conformance kit fails none of them.

Each is the null backend behind `faulty.Faulty`, done in a way that the contract allows and most
runtimes do not. The entry point of one is "unusual:<name>". TESTS names for each the tests of the
kit that once failed such a backend, or would first.
"""

from __future__ import annotations

import re
from typing import Any

from faulty import Faulty

from unusual.handles import ImmutableBuffers, OpaqueHandles
from unusual.running import CannotStop, CompilesAtTheFirstPredict, FusesMultiplyAdd, HasOnePool

CLASSES: dict[type[Faulty], tuple[str, ...]] = {
    FusesMultiplyAdd: (
        "test_numbers_of_64_bits_are_computed_in_64_bits",
        "test_arithmetic_is_as_precise_as_float32",
        "test_predict_matches_the_closed_form",
    ),
    ImmutableBuffers: (
        "test_given_device_buffers_are_filled_and_returned",
        "test_resident_outputs_stay_on_the_device",
        "test_a_resident_output_costs_no_more_than_one_on_the_host",
        "test_a_part_of_a_buffer_can_be_copied",
        "test_results_are_contiguous_and_writable",
    ),
    CompilesAtTheFirstPredict: (
        "test_a_compile_is_cancelled_on_its_way",
        "test_a_first_predict_that_compiles_can_be_cancelled",
        "test_a_predict_stops_at_its_deadline",
        "test_the_reference_is_not_fifteen_times_faster",
    ),
    HasOnePool: (
        "test_a_model_uses_the_threads_it_is_given",
        "test_contexts_leave_no_files_threads_or_memory",
        "test_a_predict_that_was_stopped_goes_on_nowhere",
        "test_a_context_may_change_threads",
    ),
    OpaqueHandles: (
        "test_a_copy_to_the_device_and_back_changes_nothing",
        "test_a_part_of_a_buffer_can_be_copied",
        "test_results_on_the_device_belong_to_the_caller",
        "test_memory_is_freed_with_its_last_owner",
    ),
    CannotStop: (
        "test_a_predict_stops_at_its_deadline",
        "test_a_predict_is_cancelled_by_another_thread",
        "test_what_a_device_lacks_is_announced_and_has_a_reason",
    ),
}


def _name(cls: type) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


TESTS = {_name(cls): tests for cls, tests in CLASSES.items()}
_plugins = {_name(cls): cls(_name(cls)) for cls in CLASSES}


def __getattr__(name: str) -> Any:
    if name in _plugins:
        return _plugins[name]
    raise AttributeError(name)
