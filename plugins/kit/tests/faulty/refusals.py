"""Faults of refusing: the wrong error, none at all, or one that says nothing."""

from __future__ import annotations

from dataclasses import replace

from engine.errors import ModelError
from engine_testing.null_device import DEVICE, OPTIONS
from faulty import Faulty, caught_by


@caught_by("test_a_truncated_model_is_a_model_error", says="DecodeError")
class LetsTheParsersErrorsOut(Faulty):
    def load(self, source, options):
        try:
            return super().load(source, options)
        except ModelError as error:
            raise (error.__cause__ or error) from None


@caught_by("test_a_truncated_model_is_a_model_error", says="is not in the message")
class DoesNotNameTheFile(Faulty):
    def load(self, source, options):
        try:
            return super().load(source, options)
        except ModelError as error:
            raise ModelError("protobuf parsing failed") from error


@caught_by("test_a_contradictory_model_is_a_model_error", says="DID NOT RAISE")
class BelievesEveryModel(Faulty):
    def load(self, source, options):

        from engine.reference.evaluator import EvaluatorModel, Host

        assert source.path is not None
        # Not above: importing a plugin imports no runtime.
        import onnx

        return EvaluatorModel(source, onnx.load(source.path), Host("null", DEVICE))


@caught_by("test_a_contradictory_model_is_a_model_error", says="the message has several lines")
class QuotesTheWholeLog(Faulty):
    def load(self, source, options):
        try:
            return super().load(source, options)
        except ModelError as error:
            raise ModelError(f"{error}\nTraceback:\n  at parser.cc:1\n  at main.cc:2") from error


@caught_by("test_an_unknown_operator_is_named", says="'Frobnicate' is not in the message")
class DoesNotNameTheOperator(Faulty):
    def compile(self, loaded, options):
        if loaded.unsupported:
            raise ModelError("the model has an operator that is not supported")
        return super().compile(loaded, options)


@caught_by("test_unsupported_nodes_are_reported_before_compiling", says="node 1 is the one")
class ReportsNothingUnsupported(Faulty):
    def load(self, source, options):
        loaded = super().load(source, options)
        loaded.unsupported = {}
        return loaded


@caught_by(
    "test_a_part_of_a_model_runs_without_the_rest",
    says="nodes are reported that are not in the part",
    control="test_unsupported_nodes_are_reported_before_compiling",
)
class ReadsTheFileForItsParts(Faulty):
    """Goes by the path, which is the whole model's."""

    def load(self, source, options):
        return super().load(replace(source, data=None), options)


@caught_by(
    "test_an_unknown_option_is_named", "test_a_misspelt_option_is_told_the_right_one",
    says="DID NOT RAISE",
)  # fmt: skip
class AcceptsAnyOption(Faulty):
    def load(self, source, options):
        return super().load(source, _without_unknown(options))

    def compile(self, loaded, options):
        return super().compile(loaded, _without_unknown(options))


def _without_unknown(options):
    known = {key: value for key, value in options.options.items() if key in OPTIONS}
    return replace(options, options=known)


@caught_by("test_a_misspelt_option_is_told_the_right_one", says="'delay_s' is not suggested")
class SuggestsNoOption(Faulty):
    def load(self, source, options):
        for key in options.options:
            if key != "delay_s":
                raise ValueError(f"unknown option {key!r}")
        return super().load(source, options)


@caught_by("test_a_device_that_is_not_there_is_refused", says="DID NOT RAISE")
class TakesAnyDeviceNumber(Faulty):
    def compile(self, loaded, options):
        return super().compile(loaded, replace(options, device=DEVICE))


@caught_by("test_a_model_that_fails_while_it_runs_is_a_model_error", says="cannot reshape array")
class LetsTheRuntimesErrorsOut(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        try:
            return super().predict(context, inputs, outputs, deadline_s)
        except ModelError as error:
            raise (error.__cause__ or error) from None


@caught_by("test_a_context_survives_a_failed_predict", says="the context is in an error state")
class BreaksWithTheFirstError(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        if context.notes.get("failed"):
            raise ModelError("the context is in an error state")
        try:
            return super().predict(context, inputs, outputs, deadline_s)
        except ModelError:
            context.notes["failed"] = True
            raise


@caught_by(
    "test_a_model_that_fails_while_it_runs_is_a_model_error",
    "test_a_context_survives_a_failed_predict",
    says="DID NOT RAISE",
)
class SwallowsErrors(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        try:
            return super().predict(context, inputs, outputs, deadline_s)
        except ModelError:
            return [inputs[0].copy()]


@caught_by("test_what_is_no_tensor_is_reported_node_by_node", says="no reason is given")
class ReportsSequencesWithoutAReason(Faulty):
    def load(self, source, options):
        loaded = super().load(source, options)
        for index, node in enumerate(source.graph.nodes):
            if node.op_type.startswith("Sequence"):
                loaded.unsupported[index] = ""
        return loaded
