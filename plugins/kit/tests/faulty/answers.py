"""Faults of predict's answers: types, shapes, order, values."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.errors import ModelError
from faulty import QUIET, Context, Faulty, caught_by


class Changes(Faulty):
    """Runs without buffers and changes what comes out; gives it to buffers as it should."""

    def predict(self, context, inputs, outputs, deadline_s):
        results = self.change(context, inputs, super().predict(context, inputs, None, deadline_s))
        for index, buffer in enumerate(outputs or ()):
            if buffer is not None and buffer.shape == np.shape(results[index]):
                np.copyto(buffer, results[index])
                results[index] = buffer
        return results

    def change(self, context: Context, inputs: Any, results: list[Any]) -> list[Any]:
        raise NotImplementedError


@caught_by("test_predict_matches_the_closed_form", says="Not equal to tolerance", control=QUIET)
class IsSlightlyOff(Changes):
    def change(self, context, inputs, results):
        return [y * np.float32(1.001) if y.dtype == np.float32 else y for y in results]


@caught_by(
    "test_numbers_are_computed_in_their_type",
    "test_predict_matches_the_closed_form",
    says="expected float32, got float64",
    control=QUIET,
)
class ComputesInDouble(Changes):
    def change(self, context, inputs, results):
        return [y.astype(np.float64) if y.dtype == np.float32 else y for y in results]


@caught_by("test_numbers_are_computed_in_their_type", says="Not equal to tolerance")
class LosesPrecisionInDouble(Changes):
    def change(self, context, inputs, results):
        return [y * (1 + 1e-4) if y.dtype == np.float64 else y for y in results]


@caught_by(
    "test_sums_of_products_are_as_precise_as_float32",
    "test_arithmetic_is_as_precise_as_float32",
    says="Not equal to tolerance",
)
class ComputesInHalf(Changes):
    """Weights, inputs and everything between them are float16."""

    def load(self, source, options):
        from onnx import numpy_helper  # not above: importing a plugin imports no runtime

        loaded = super().load(source, options)
        for weight in loaded.proto.graph.initializer:
            values = numpy_helper.to_array(weight)
            if values.dtype == np.float32:
                weight.CopyFrom(numpy_helper.from_array(values.astype(np.float16), weight.name))
        return loaded

    def predict(self, context, inputs, outputs, deadline_s):
        inputs = [x.astype(np.float16) if x.dtype == np.float32 else x for x in inputs]
        return super().predict(context, inputs, outputs, deadline_s)

    def change(self, context, inputs, results):
        return [y.astype(np.float32) if y.dtype == np.float16 else y for y in results]


def _rounded(values: Any, bits: int) -> Any:
    """float32 values with only so many bits of the 23 behind the point, as tensor cores read."""
    if values.dtype != np.float32:
        return values
    lost = 23 - bits
    half = np.uint32(1 << (lost - 1))
    return ((values.view(np.uint32) + half) >> lost << lost).view(np.float32)


@caught_by(
    "test_sums_of_products_are_as_precise_as_float32",
    "test_arithmetic_is_as_precise_as_float32",
    says="Not equal to tolerance",
)
class ReadsInputsAsBfloat16(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        inputs = [_rounded(x, bits=7) for x in inputs]
        return super().predict(context, inputs, outputs, deadline_s)


@caught_by(
    "test_sums_of_products_are_as_precise_as_float32",
    says="Not equal to tolerance",
    control="test_arithmetic_is_as_precise_as_float32",
)
class MultipliesMatricesInTf32(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        if any(node.op_type == "MatMul" for node in context.inner._executable.inner._nodes):
            inputs = [_rounded(x, bits=10) for x in inputs]
        return super().predict(context, inputs, outputs, deadline_s)


@caught_by("test_numbers_of_64_bits_are_computed_in_64_bits", says="computed with fewer bits")
class ComputesDoublesInSingle(Changes):
    def change(self, context, inputs, results):
        return [y.astype(np.float32).astype(y.dtype) if y.dtype == "f8" else y for y in results]


@caught_by("test_numbers_of_64_bits_are_computed_in_64_bits", says="computed with fewer bits")
class ComputesLongsInInt32(Changes):
    def change(self, context, inputs, results):
        return [y.astype(np.int32).astype(y.dtype) if y.dtype == "i8" else y for y in results]


@caught_by("test_numbers_of_64_bits_are_computed_in_64_bits", says="computed with fewer bits")
class ComputesUnsignedLongsAsSigned(Changes):
    """Saturates where int64 ends."""

    def change(self, context, inputs, results):
        return [np.minimum(y, 2**63 - 1) if y.dtype == "u8" else y for y in results]


@caught_by("test_whole_numbers_arrive_to_the_last_bit", says="Arrays are not equal")
class TakesIntegersForDoubles(Changes):
    def change(self, context, inputs, results):
        with np.errstate(invalid="ignore"):
            return [
                y.astype(np.float64).astype(y.dtype) if y.dtype.kind in "iu" else y for y in results
            ]


@caught_by(
    "test_bfloat16_arrives_to_the_last_bit_or_is_refused",
    says="expected bfloat16, got float32",
)
class GivesFloat32ForBfloat16(Changes):
    def change(self, context, inputs, results):
        return [y.astype(np.float32) if y.dtype.name == "bfloat16" else y for y in results]


@caught_by("test_sequences_are_lists_or_refused", says="expected a list, got <class 'tuple'>")
class GivesTuplesForSequences(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        results = super().predict(context, inputs, outputs, deadline_s)
        return [tuple(y) if isinstance(y, list) else y for y in results]


@caught_by("test_sequences_are_lists_or_refused", says="an element is the input's memory")
class LendsTheElementsOfSequences(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        results = super().predict(context, inputs, outputs, deadline_s)
        lists = [x for x in inputs if isinstance(x, list)]
        return [[*lists[0], *y[len(lists[0]) :]] if isinstance(y, list) else y for y in results]


@caught_by("test_optionals_may_be_absent_or_are_refused", says="expected (1,), got (0,)")
class TakesAbsentForEmpty(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        inputs = [np.zeros(0, np.float32) if x is None else x for x in inputs]
        return super().predict(context, inputs, outputs, deadline_s)


@caught_by("test_text_arrives_as_str", says="Arrays are not equal")
class GivesBytesForText(Changes):
    def change(self, context, inputs, results):
        encode = np.frompyfunc(str.encode, 1, 1)
        return [encode(y) if y.dtype == object else y for y in results]


@caught_by(
    "test_booleans_are_booleans",
    "test_outputs_have_types_of_their_own",
    says="expected bool, got uint8",
)
class GivesBytesForBooleans(Changes):
    def change(self, context, inputs, results):
        return [y.view(np.uint8) if y.dtype == bool else y for y in results]


@caught_by("test_values_that_are_not_finite_stay_so", says="Not equal to tolerance")
class CleansValues(Changes):
    def change(self, context, inputs, results):
        return [np.nan_to_num(y) if y.dtype == np.float32 else y for y in results]


@caught_by("test_a_scalar_stays_a_scalar", says="expected (), got (1,)")
class GivesScalarsAnAxis(Changes):
    def change(self, context, inputs, results):
        return [np.atleast_1d(y) for y in results]


@caught_by(
    "test_tensors_without_elements_are_tensors", "test_a_batch_may_be_empty", says="null pointer"
)
class CannotTakeNothing(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        if any(x.size == 0 for x in inputs):
            raise ModelError("null pointer for an input of 0 bytes")
        return super().predict(context, inputs, outputs, deadline_s)


@caught_by("test_a_model_needs_no_batch", says="expected (3, 2), got (6, 1)")
class RunsRowByRow(Faulty):
    """Takes axis 0 for a batch and runs one row at a time."""

    def predict(self, context, inputs, outputs, deadline_s):
        rows = {len(x) for x in inputs if x.ndim}
        if len(rows) != 1 or rows == {0} or any(not x.ndim for x in inputs):
            return super().predict(context, inputs, outputs, deadline_s)
        parts = [
            super(RunsRowByRow, self).predict(
                context, [x[row : row + 1] for x in inputs], None, deadline_s
            )
            for row in range(rows.pop())
        ]
        return [np.concatenate(column) for column in zip(*parts, strict=True)]


@caught_by("test_axes_are_moved_as_the_model_says", says="expected (3, 4, 2), got (4, 3, 2)")
class ReversesAllAxes(Changes):
    """As if a Transpose had no order of its own."""

    def change(self, context, inputs, results):
        nodes = context.inner._executable.inner._nodes
        if [node.op_type for node in nodes] != ["Transpose"] or inputs[0].ndim < 3:
            return results
        return [np.ascontiguousarray(inputs[0].T)]


@caught_by("test_a_model_needs_no_inputs", says="nothing to bind")
class NeedsAnInput(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        if not inputs:
            raise ModelError("there is nothing to bind")
        return super().predict(context, inputs, outputs, deadline_s)


@caught_by("test_inputs_and_outputs_are_described_in_the_models_order", says="['a', 'm', 'z']")
class DescribesInAlphabeticalOrder(Faulty):
    def describe(self, specs):
        return tuple(sorted(specs, key=lambda spec: spec.name))


@caught_by(
    "test_values_go_in_and_out_in_the_models_order",
    "test_results_have_the_models_names",
    says="Not equal to tolerance",
)
class GivesOutputsInAlphabeticalOrder(Changes):
    def change(self, context, inputs, results):
        names = [spec.name for spec in context.inner._executable.outputs]
        return [y for _, y in sorted(zip(names, results, strict=True), key=lambda pair: pair[0])]


def _read(executable: Any) -> list[int]:
    """Return the inputs of the null backend's executable that any node reads."""
    names = {name for node in executable._nodes for name in node.inputs}
    return [index for index, spec in enumerate(executable.inputs) if spec.name in names]


@caught_by("test_an_input_that_no_node_reads_keeps_its_place", says="['x', 'z'] ==")
class DropsUnreadInputs(Faulty):
    """Describes what the runtime made of the graph."""

    def compile(self, loaded, options):
        executable = super().compile(loaded, options)
        inner = executable.inner
        inner.inputs = tuple(inner.inputs[index] for index in _read(inner.inner))
        inner.inner.inputs = inner.inputs
        return executable


@caught_by("test_an_input_that_no_node_reads_keeps_its_place", says="Not equal to tolerance")
class BindsReadInputsInTurn(Faulty):
    """Gives the first inputs to what the runtime kept, where it binds buffers."""

    def predict(self, context, inputs, outputs, deadline_s):
        if outputs is not None:
            inputs = list(inputs)
            kept = _read(context.inner._executable.inner)
            for place, x in zip(kept, tuple(inputs), strict=False):
                inputs[place] = x
        return super().predict(context, inputs, outputs, deadline_s)


@caught_by("test_both_branches_of_a_condition_run", says="Not equal to tolerance")
class RemembersTheCondition(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        inputs = [
            context.notes.setdefault(index, x.copy()) if x.dtype == bool and x.ndim == 0 else x
            for index, x in enumerate(inputs)
        ]
        return super().predict(context, inputs, outputs, deadline_s)


@caught_by("test_shapes_that_depend_on_the_data_are_exact", says="expected (1, 2), got (1, 4)")
class PadsToTheWorstCase(Changes):
    def change(self, context, inputs, results):
        if [y.dtype for y in results] != [np.int64] or results[0].ndim != 2:
            return results
        padded = np.zeros((1, inputs[0].size), np.int64)
        padded[:, : results[0].shape[1]] = results[0]
        return [padded]


@caught_by(
    "test_symbolic_dims_take_any_size",
    "test_shapes_may_change_from_call_to_call",
    says="expected (",
)
class KeepsTheFirstShape(Changes):
    def change(self, context, inputs, results):
        shapes = context.notes.setdefault("shapes", [y.shape for y in results])
        return [np.resize(y, shape) for y, shape in zip(results, shapes, strict=True)]


@caught_by("test_a_range_of_shapes_is_compiled_for", says="is compiled for 2 rows")
class CompilesForTheUsualShape(Faulty):
    def compile(self, loaded, options):
        executable = super().compile(loaded, options)
        executable.notes["shapes"] = options.shapes
        return executable

    def predict(self, context, inputs, outputs, deadline_s):
        for name, wanted in context.executable.notes["shapes"].items():
            if inputs[0].shape != wanted.usual:
                raise ModelError(f"input {name!r} is compiled for {wanted.usual[0]} rows")
        return super().predict(context, inputs, outputs, deadline_s)


@caught_by("test_large_tensors_arrive_whole", says="Not equal to tolerance")
class CopiesAtMostAMegabyte(Changes):
    def change(self, context, inputs, results):
        for y in results:
            y.reshape(-1)[2**18 :] = 0
        return results
