"""MultiModelRunner: all models of one file, each to be run by itself.

    runner = MultiModelRunner()
    runner.build_from_file("bundle.om", ModelType.MINDIR, context)
    encode, decode = runner.get_model_executor()
    outputs = decode.predict(encode.predict(inputs))

A file that holds several is a compiled form of a backend: an .om that was made of several graphs
for Ascend, which are loaded together and may have variables in common, or what MindSpore Lite's
converter_lite makes of a model that it splits for Ascend, a MindIR in which each sub-graph is an
.om and executors run some of them one after the other. This project's converter makes of a
model with such a declaration one model for every target, which is divided when it is opened.
Of any other file, a model is its only one, so scripts run with it on every target.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from engine.config.checks import require
from engine.context import Context
from engine.errors import ModelError, ModelStateError
from engine.host.interrupts import raised_by_handler
from engine.model.build import configuration_of, from_model_file
from engine.model.handle import Handle
from engine.model.model import Model, model_state
from engine.tensor.enums import ModelType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from engine.config.declared import Executors
    from engine.formats import ModelFile
    from engine.formats.description import CompiledModels
    from engine.serving.model_chain import Chain
    from engine.tensor import Tensor, TensorMeta
    from engine.types import CancelToken, Progress
    from engine.typing import Inputs

__all__ = ["ModelExecutor", "MultiModelRunner"]


class ModelExecutor:
    """One model of a file, as `MultiModelRunner.get_model_executor` gives it. For any thread.

    Of a MindIR of several it may be a few of them, that run one after the other.
    """

    def __init__(self, executor: Model | Chain | None = None) -> None:
        """Stand for built models; without any, nothing can be run."""
        self._model = Model() if executor is None else executor

    def predict(
        self,
        inputs: Inputs,
        outputs: list[Tensor] | None = None,
        *,
        timeout_s: float | None = None,
        cancel: CancelToken | None = None,
        priority: int = 0,
        request_id: str = "",
    ) -> list[Tensor]:
        """Run the model once; see Model.predict, also for what it raises."""
        return self._model.predict(
            inputs,
            outputs,
            timeout_s=timeout_s,
            cancel=cancel,
            priority=priority,
            request_id=request_id,
        )

    def get_inputs(self) -> list[Tensor]:
        """Return the calling thread's input tensors; see Model.get_inputs."""
        return self._model.get_inputs()

    def get_outputs(self) -> list[TensorMeta]:
        """Return descriptions of the outputs; see Model.get_outputs."""
        return list(self._model.get_outputs())


class MultiModelRunner(Handle):
    """All models of one file.

    A context manager: `close()` frees them when the last running predicts have ended; executors
    run nothing then.
    """

    model_path_ = ""

    def __init__(self) -> None:
        self._models: list[Model] = []
        self._executors: list[Model | Chain] = []

    def build_from_file(
        self,
        model_path: str,
        model_type: ModelType,
        context: Context | None = None,
        config_path: str = "",
        config_dict: dict[str, dict[str, str]] | None = None,
        *,
        progress: Progress | None = None,
        cancel: CancelToken | None = None,
    ) -> None:
        """Build every model of a file; the arguments are those of Model.build_from_file.

        Raises what that raises; also RuntimeError (ModelError) for another model_type than MINDIR.
        No model is built then.
        """
        from engine.formats import ModelFile
        from engine.formats.given import absent

        require("model_path", model_path, str)
        require("model_type", model_type, ModelType)
        if model_type is not ModelType.MINDIR:
            raise ModelError(
                "build_from_file failed, model_type only support MINDIR! It goes by the content of "
                f"the file, but got {model_type}"
            )
        context = Context() if context is None else require("context", context, Context)
        require("config_path", config_path, str)
        try:
            os.stat(model_path)
        except (OSError, ValueError) as error:
            if raised_by_handler(error):
                raise
            failure = "build_from_file failed, model_path does not exist! got "
            raise absent(model_path, failure) from error
        if self._models:
            raise ModelStateError(
                "build_from_file failed! Error is the runner is already built; make another "
                "MultiModelRunner"
            )
        config = configuration_of(config_path, config_dict, "build_from_file")

        file = ModelFile(model_path)
        file.look_in(config.get("model_file", {}).get("mindir_path"))
        bundle = file.compiled_models()

        def built(file: ModelFile, config: Mapping[str, Mapping[str, str]] = config) -> Model:
            model = Model()
            models.append(model)
            from_model_file(model_state(model), file, context, config, progress, cancel)
            return model

        def entry(name: str) -> ModelFile:
            file = ModelFile(model_path)
            file.entry = name
            return file

        models: list[Model] = []
        executors: list[Model | Chain]
        try:
            if bundle is not None and bundle.executors:
                executors = [*_chains(bundle, lambda name: built(entry(name)), model_path)]
            elif (declared := _declared(file)) is not None:
                executors = [*_declared_chains(file, declared, config, built)]
            else:
                first = model_state(built(file)).require_built()
                for name in first.plan.entries[1:]:
                    built(entry(name))
                executors = [*models]
        except BaseException:
            for model in reversed(models):
                model.close()
            raise
        self._models, self._executors = models, executors
        self.model_path_ = model_path

    def get_model_executor(self) -> list[ModelExecutor]:
        """Return the file's executors in its order, one a model unless it says otherwise.

        None before building.
        """
        return [ModelExecutor(executor) for executor in self._executors]

    # Upstream's documentation and its sources spell the name in these ways.
    get_model_ececutor = get_model_executor
    get_runner_exec = get_model_executor

    def close(self) -> None:
        """Free all models; twice does nothing."""
        for model in reversed(self._models):
            model.close()

    def __getstate__(self) -> Any:
        raise TypeError("a MultiModelRunner cannot be pickled; build it in each process")


def _chains(bundle: CompiledModels, built: Callable[[str], Model], path: str) -> list[Chain]:
    """Build each model of a bundle once, and return the chains that its executors run."""
    from engine.serving.model_chain import Chain, Link

    links = []
    for number, graph in enumerate(bundle.graphs):
        model = built(str(number))
        for names, specs, what in (
            (graph.inputs, model.inputs, "inputs"),
            (graph.outputs, model.outputs, "outputs"),
        ):
            if len(names) != len(specs):
                raise ModelError(
                    f"{path}: its model {number} has {len(specs)} {what}, but the file names "
                    f"{len(names)} ({', '.join(map(repr, names))}); convert the model again",
                    path,
                )
        links.append(Link(model, graph.inputs, graph.outputs))
    return [
        Chain(links[executor.first : executor.last + 1], executor.inputs, executor.outputs)
        for executor in bundle.executors
    ]


def _declared(file: ModelFile) -> Executors | None:
    """Return the executors that the conversion of a model has declared; None for none."""
    if not file.is_onnx or (graph := file().graph) is None or not graph.metadata:
        return None
    from engine.config.declared import executors  # rare

    return executors(graph.metadata)


def _declared_chains(
    file: ModelFile,
    declared: Executors,
    config: Mapping[str, Mapping[str, str]],
    built: Callable[[ModelFile, Mapping[str, Mapping[str, str]]], Model],
) -> list[Chain]:
    """Build each part of a divided model once, and return the chains of declared executors."""
    from engine.formats import ModelFile
    from engine.plan.declared_parts import declared_parts
    from engine.serving.model_chain import Chain, Link

    # Executors have no updates, and a weight is in one part.
    kept = {
        section: {key: value for key, value in keys.items() if "variable_weights" not in key}
        for section, keys in config.items()
    }
    division, parts = declared_parts(file(), declared)

    def own(names: Iterable[str]) -> list[str]:
        return [declared.names.get(name, name) for name in names]

    links = [
        Link(built(ModelFile.of_part(part), kept), own(segment.inputs), own(segment.outputs))
        for segment, part in zip(division.parts, parts, strict=True)
    ]
    return [
        Chain([links[n] for n in executor.parts], own(executor.inputs), own(executor.outputs))
        for executor in division.executors
    ]
