"""Faults of memory: whose it is, and when it changes."""

from __future__ import annotations

from typing import Any

import numpy as np

from faulty import QUIET, Faulty, caught_by
from faulty.answers import Changes


@caught_by(
    "test_a_result_never_changes_under_its_owner",
    "test_threads_share_a_model",
    says="Not equal to tolerance",
)
class ReusesItsOutputMemory(Changes):
    def change(self, context, inputs, results):
        kept = context.notes.setdefault("results", results)
        for index, (old, new) in enumerate(zip(kept, results, strict=True)):
            if old.shape == new.shape:
                np.copyto(old, new)
            else:
                kept[index] = new
        return list(kept)


@caught_by("test_results_are_contiguous_and_writable", says="not C-contiguous")
class GivesColumnsFirst(Changes):
    def change(self, context, inputs, results):
        return [np.asfortranarray(y) for y in results]


@caught_by("test_results_are_contiguous_and_writable", says="read-only")
class GivesReadOnlyResults(Changes):
    def change(self, context, inputs, results):
        for y in results:
            y.flags.writeable = False
        return results


@caught_by("test_a_result_is_not_the_inputs_memory", says="the input's own memory")
class PassesInputsThrough(Changes):
    def change(self, context, inputs, results):
        return [
            next((x for x in inputs if x.dtype == y.dtype and np.array_equal(x, y)), y)
            for y in results
        ]


@caught_by("test_two_results_share_no_memory", says="two results are the same memory")
class GivesEqualResultsOnce(Changes):
    def change(self, context, inputs, results):
        return [next((other for other in results if np.array_equal(other, y)), y) for y in results]


@caught_by("test_changing_a_result_does_not_change_the_model", says="Not equal to tolerance")
class GivesItsWeightsAway(Changes):
    def change(self, context, inputs, results):
        return results if inputs else list(context.notes.setdefault("weights", results))


@caught_by(
    "test_inputs_are_not_modified",
    "test_arrays_of_any_layout_are_read",
    says="predict changed its input",
    control=QUIET,
)
class ComputesInPlace(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        results = super().predict(context, inputs, outputs, deadline_s)
        for x in inputs:
            if x.dtype == np.float32 and x.flags.writeable:
                x += 1
        return results


@caught_by("test_inputs_may_be_read_only", says="buffer source array is read-only")
class NeedsWritableInputs(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        for x in inputs:
            if not x.flags.writeable:
                raise ValueError("buffer source array is read-only")
        return super().predict(context, inputs, outputs, deadline_s)


@caught_by(
    "test_an_input_changed_in_place_is_seen",
    "test_a_new_array_at_an_old_address_is_seen",
    says="Not equal to tolerance",
)
class KnowsInputsByTheirAddress(Faulty):
    """Copies an input to its device once, and believes that an address is an array."""

    def predict(self, context, inputs, outputs, deadline_s):
        copies = [
            context.notes.setdefault((x.__array_interface__["data"][0], x.shape), x.copy())
            for x in inputs
        ]
        return super().predict(context, copies, outputs, deadline_s)


@caught_by("test_one_array_may_be_two_inputs", says="Not equal to tolerance")
class BindsAnAddressOnce(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        bound: dict[int, Any] = {id(x): index for index, x in enumerate(inputs)}
        inputs = [
            x if bound[id(x)] == index else np.zeros_like(x) for index, x in enumerate(inputs)
        ]
        return super().predict(context, inputs, outputs, deadline_s)


@caught_by(
    "test_given_buffers_are_filled_and_returned",
    "test_some_buffers_may_be_left_out",
    "test_a_scalar_buffer_is_filled",
    says="not returned",
)
class IgnoresGivenBuffers(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        return super().predict(context, inputs, None, deadline_s)


@caught_by("test_given_buffers_are_filled_and_returned", says="their list was not returned")
class ReturnsAListOfItsOwn(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        return list(super().predict(context, inputs, outputs, deadline_s))


@caught_by(
    "test_the_same_lists_are_read_anew",
    "test_preallocated_outputs_are_filled_again_and_again",
    says="Not equal to tolerance",
)
class CopiesInputsWhenItBindsThem(Faulty):
    """Takes "the same list" for "the same contents"."""

    def predict(self, context, inputs, outputs, deadline_s):
        if outputs is not None:
            bound, copies = context.notes.get("bound", (None, None))
            if bound is not inputs:
                copies = [x.copy() for x in inputs]
                context.notes["bound"] = inputs, copies
            inputs = copies
        return super().predict(context, inputs, outputs, deadline_s)


@caught_by("test_other_lists_are_bound_anew", says="Not equal to tolerance")
class KnowsListsByTheirAddress(Faulty):
    """Keeps what it bound but not the lists, so that another list may come at their address."""

    def predict(self, context, inputs, outputs, deadline_s):
        if outputs is None:
            return super().predict(context, inputs, outputs, deadline_s)
        address = id(inputs), id(outputs)
        bound = context.notes.setdefault(address, (list(inputs), list(outputs)))
        super().predict(context, *bound, deadline_s)
        return outputs


@caught_by("test_other_lists_are_bound_anew", says="Not equal to tolerance")
class LooksOnlyAtTheInputsList(Faulty):
    """Binds inputs and outputs together, and looks at one of the lists to see what changed."""

    def predict(self, context, inputs, outputs, deadline_s):
        if outputs is None:
            return super().predict(context, inputs, outputs, deadline_s)
        if context.notes.get("inputs") is not inputs:
            context.notes["inputs"], context.notes["outputs"] = inputs, outputs
        super().predict(context, inputs, context.notes["outputs"], deadline_s)
        return outputs


@caught_by("test_given_buffers_are_filled_and_returned", says="not returned themselves")
class ReturnsCopiesOfGivenBuffers(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        results = super().predict(context, inputs, outputs, deadline_s)
        return [y.copy() for y in results]


@caught_by("test_given_buffers_are_filled_and_returned", says="Not equal to tolerance")
class FillsBuffersOnlyOnce(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        if outputs is not None and context.notes.get("filled") == [id(each) for each in outputs]:
            return outputs
        context.notes["filled"] = [id(each) for each in outputs or ()] or None
        return super().predict(context, inputs, outputs, deadline_s)


@caught_by("test_some_buffers_may_be_left_out", says="not returned itself")
class FillsAllBuffersOrNone(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        if outputs is not None and any(buffer is None for buffer in outputs):
            outputs = None
        return super().predict(context, inputs, outputs, deadline_s)


@caught_by("test_a_scalar_buffer_is_filled", says="too many indices")
class FillsBuffersBySlice(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        results = super().predict(context, inputs, None, deadline_s)
        for index, buffer in enumerate(outputs or ()):
            if buffer is not None and buffer.shape == results[index].shape:
                buffer[0 : len(buffer) if buffer.ndim else 1] = results[index]
                results[index] = buffer
        return results


@caught_by("test_a_buffer_is_used_in_no_later_call", says="a later result is in the given buffer")
class KeepsGivenBuffers(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        if outputs is None:
            outputs = context.notes.get("outputs")
        context.notes["outputs"] = outputs
        return super().predict(context, inputs, outputs, deadline_s)


@caught_by("test_a_buffer_of_another_size_is_refused_by_name", says="DID NOT RAISE")
class CutsResultsToTheBuffer(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        results = super().predict(context, inputs, None, deadline_s)
        for index, buffer in enumerate(outputs or ()):
            if buffer is not None:
                np.copyto(buffer, np.resize(results[index], buffer.shape))
                results[index] = buffer
        return results


@caught_by("test_an_input_as_buffer_is_right_or_refused", says="Not equal to tolerance")
class ClearsBuffersFirst(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        for buffer in outputs or ():
            if buffer is not None:
                buffer.fill(0)
        return super().predict(context, inputs, outputs, deadline_s)
