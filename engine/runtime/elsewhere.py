"""Names that other libraries' models and tensors have: reading one says what does it here.

Descriptors, not `__getattr__`: a class with that has slower attributes, also those that it has (20
instead of 5 ns each). The price: isinstance with a runtime_checkable Protocol looks into the class,
not at what reading a name gives, and is True where every name that it asks for is real or listed
here. `hasattr`, and getattr with a default, tell.
"""

from __future__ import annotations

from typing import NoReturn


class Elsewhere:
    """A name that the objects of a class do not have. hint: what to write instead."""

    __slots__ = ("_hint", "_name")

    def __init__(self, hint: str) -> None:
        self._hint, self._name = hint, ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, found: object, owner: type) -> NoReturn:
        kind = owner.__name__
        raise AttributeError(f"{kind!r} object has no attribute {self._name!r}; {self._hint}")


_CALL = "call the model: model(x=array) gives a dict of arrays, model.predict([array]) Tensors"
_TARGET = "a model is loaded for its target: engine.load(path, target='gpu')"
_TYPES = "it runs in the types of its file: `engine convert --fp16` stores float16"
_WEIGHTS = "weights are in its file; model.update_weights exchanges those declared as variable"
_ARRAY = "its array has it: tensor.numpy()"
_TORCH = "tensor.numpy() is its array, torch.from_dlpack(tensor) torch's"


class OfModels:
    """What onnxruntime's sessions, OpenVINO's and torch's models have."""

    run = Elsewhere(_CALL)
    forward = Elsewhere(_CALL)
    infer = Elsewhere(_CALL)
    eval = Elsewhere(f"it only runs; {_CALL}")
    to = Elsewhere(_TARGET)
    cuda = Elsewhere(_TARGET)
    run_async = Elsewhere("await model.predict_async(inputs)")
    run_with_iobinding = Elsewhere("model.predict(inputs, outputs) fills the Tensors of outputs")
    train = Elsewhere(f"it only runs; {_CALL}")
    cpu = Elsewhere("its results are arrays on the host; engine.load(path) runs it on the CPU")
    half = Elsewhere(_TYPES)
    float = Elsewhere(_TYPES)
    bfloat16 = Elsewhere(_TYPES)
    parameters = Elsewhere(_WEIGHTS)
    state_dict = Elsewhere(_WEIGHTS)
    load_state_dict = Elsewhere(_WEIGHTS)
    input_names = Elsewhere("[spec.name for spec in model.inputs]")
    output_names = Elsewhere("[spec.name for spec in model.outputs]")
    set_providers = Elsewhere(_TARGET)
    get_session_options = Elsewhere("settings are those of engine.load(path, config=...)")
    get_providers = Elsewhere("model.placement says what runs where, engine.backends() all")
    get_modelmeta = Elsewhere("model.metadata is a dict, model.summary() prints")
    end_profiling = Elsewhere("model.profile(inputs) measures")
    io_binding = Elsewhere("Tensors may be on a device: model.predict(inputs, outputs) fills them")

    def __dir__(self) -> list[str]:
        return _own(self)


class OfTensors:
    """What numpy's arrays, onnxruntime's inputs and torch's tensors have."""

    __slots__ = ()

    type = Elsewhere("tensor.dtype is its type")
    argmax = Elsewhere(_ARRAY)
    astype = Elsewhere(_ARRAY)
    reshape = Elsewhere(_ARRAY)
    squeeze = Elsewhere(_ARRAY)
    max = Elsewhere(_ARRAY)
    item = Elsewhere(_ARRAY)
    tolist = Elsewhere(_ARRAY)
    cpu = Elsewhere(_TORCH)
    detach = Elsewhere(_TORCH)
    float = Elsewhere(_TORCH)
    view = Elsewhere(_TORCH)
    topk = Elsewhere(_TORCH)
    softmax = Elsewhere(_TORCH)
    to = Elsewhere(_TORCH)

    def __dir__(self) -> list[str]:
        return _own(self)


def _own(found: object) -> list[str]:
    """Return what `found.<Tab>` is to offer: not these names."""
    members = (member for base in type(found).__mro__ for member in vars(base).items())
    strange = {name for name, thing in members if type(thing) is Elsewhere}
    return [name for name in object.__dir__(found) if name not in strange]
