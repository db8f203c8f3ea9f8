"""The proof for a model as it is opened, without its weights being read."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx

from engine.errors import EngineError, one_line
from engine.formats.onnx.weights import with_weights_apart
from engine.host.interrupts import pass_interrupt
from engine.layouts.batch.proof import Proof, prove
from engine.types import ModelSource


def prove_source(open_again: Callable[[], ModelSource], axes: Mapping[str, int | None]) -> Proof:
    """Prove for a model that the samples of a batch do not meet; see `prove`.

    open_again: gives the model, with inputs in place of the weights whose values may change. A
    model of which there is no graph, as of a compiled form, or that cannot be read, has no proof.
    """
    try:
        source = open_again()
        if source.graph is None:
            return Proof("its graph is not known", {})
        light = with_weights_apart(source)
        if light.data is not None:
            model = onnx.load_model_from_string(light.data)
        else:
            model = onnx.load(str(light.path), load_external_data=False)
            check = getattr(source, "check_unchanged", None)
            if check is not None:
                check()
    except EngineError as error:
        return Proof(one_line(error), {})
    except Exception as error:  # protobuf's and the file system's share no base
        pass_interrupt(error)
        return Proof(f"its graph cannot be read: {one_line(error)}", {})
    return prove(model, axes)
