"""PyTorch models: torch.export's .pt2 and TorchScript's .pt, each by torch.onnx's exporter for it.

TorchScript has no way into the new exporter (torch.export refuses a ScriptModule), so it goes
through `dynamo=False`, which PyTorch has deprecated and still ships.

torch runs in a process of its own, as every exporter does (see `exporter`), and loads
pickled data by `weights_only` rules. A file of torch.save is refused unread: a state_dict has no
graph, and a pickled module is code. That is no wall against a hostile file: TorchScript is a
program that can read and write files and is run to learn its shapes, and torch.export.load
evaluates the file's expressions of shapes as Python. Convert only models whose author you trust.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from importlib import import_module
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.converter.job import Job, Read
from engine.converter.sources.exporter import Shapes, exported, shortened
from engine.errors import ModelError, one_line
from engine.formats import recognise
from engine.formats.kinds import FOREIGN

if TYPE_CHECKING:
    from onnx import ModelProto

title = "a PyTorch model"
kinds = ("pytorch",)
suffixes = (".pt", ".pt2", ".pth")
packages = ("torch", "onnxscript")
extra = "pytorch"

_DO = "in Python: torch.export.save(torch.export.export(model.eval(), example_inputs), 'model.pt2')"
_EXPECTED = "expected a .pt2 of torch.export.save, or TorchScript of torch.jit.save"


class _Kind(Enum):
    PROGRAM = "torch.export"
    SCRIPT = "TorchScript"


def read(job: Job) -> Read:
    """See engine.converter.sources.read.

    job.input_shape: TorchScript needs it, by the names of `forward`'s arguments; -1 is a dim that
        stays open. Element types are found by trying: job.input_dtype, the weights' own, int64,
        bool, the first that `forward` takes. A .pt2 file says both itself.
    Outputs are named as the model names them (keys of a dict), else "output" or "output_0" ...
    """
    try:
        _kind(job.model_file)
    except ModelError as error:
        raise job.error(f"{error}") from error
    model, notes = exported(job, __name__, "PyTorch", extra, packages)
    _forget_origin(model)
    return model, notes


def _forget_origin(model: ModelProto) -> None:
    """Drop what the exporter says of each node and value: source lines and paths of its author."""
    from onnx import GraphProto

    from engine.formats.onnx.graphs import bodies

    for body in bodies(model):
        values = [*body.value_info]
        if isinstance(body, GraphProto):
            values += [*body.input, *body.output]
        for node in (body, *body.node, *values):
            del node.metadata_props[:]


def _kind(path: Path) -> _Kind:
    """Tell the kind of a PyTorch file by the names in the archive; nothing is unpacked."""
    try:
        with zipfile.ZipFile(path) as archive:
            # Each name stands in a folder that is called as the file was.
            names = [name.partition("/")[2] or name for name in archive.namelist()]
    except Exception as error:  # zipfile raises many kinds for a damaged directory
        with path.open("rb") as file:
            is_archive = file.read(2) == b"PK"
        if is_archive:
            raise ModelError(f"the archive is damaged ({one_line(error)})") from error
        kind = recognise(path)
        if kind in ("pytorch", "pickle"):
            raise _pickled() from error
        raise ModelError(f"is {FOREIGN.get(kind, [kind])[0]}; {_EXPECTED}") from error
    if any(name.startswith("data/aotinductor/") for name in names):
        raise ModelError(f"holds machine code that torch has compiled, and no graph; {_DO}")
    if any("/opaque_obj_" in name for name in names):
        raise ModelError(f"holds a pickled Python object, which is not loaded; {_EXPECTED}")
    if "archive_format" in names and any(name.startswith("models/") for name in names):
        return _Kind.PROGRAM
    if "constants.pkl" in names and any(name.startswith("code/") for name in names):
        return _Kind.SCRIPT
    if "data.pkl" in names:
        raise _pickled()
    if "serialized_exported_program.json" in names:
        raise ModelError(f"is a .pt2 of torch before 2.8; load and save it with a newer one; {_DO}")
    raise ModelError(f"is a zip archive, but not of PyTorch; {_EXPECTED}")


def _pickled() -> ModelError:
    return ModelError(
        "holds pickled Python objects (torch.save), which are not loaded: weights alone have no "
        f"graph, and a pickled module is code; {_DO}"
    )


# --------------------------------------------------------------------------------- in that process


def export(request: Mapping[str, Any], step: Callable[[], None]) -> list[str]:
    """See `exporter.exported`."""
    os.environ.pop("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", None)
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    import torch

    with suppress(ImportError):
        import torchvision  # noqa: F401 - its operators, if the model has any
    step()
    path, result = request["model"], request["result"]
    if _kind(Path(path)) is _Kind.PROGRAM:
        _register_classes(path)
        with open(path, "rb") as file:  # torch judges a name by its ending, a file by its content
            program = torch.export.load(file)
        step()
        _export_program(program, result)
        return []
    module = torch.jit.load(path, map_location="cpu")
    with suppress(RuntimeError):  # a frozen module is in that mode, and has none
        module.eval()
    step()
    with torch.no_grad():
        return _export_script(module, request["input_shape"], request["input_dtype"], result)


# ------------------------------------------------------------------------------------ torch.export


def _register_classes(path: str) -> None:
    """Import what tells torch of the classes that a program takes and gives.

    A .pt2 names them; torch.export.load fails without a reason where one is not registered. Only
    transformers is imported, which registers its outputs: a file may name any module.
    """
    names = classes_of(Path(path))
    if "transformers" in {name.partition(".")[0] for name in names}:
        try:
            outputs = import_module("transformers.modeling_outputs")
        except ImportError as error:
            raise ModelError(
                "takes or gives objects of transformers "
                f"({next(name for name in names if name.startswith('transformers.'))}), which "
                f"cannot be imported ({one_line(error)}); run: pip install transformers"
            ) from error
        _ = outputs.BaseModelOutput  # loaded when it is asked for, as all in that package
    import torch

    known = getattr(torch.utils._pytree, "SERIALIZED_TYPE_TO_PYTHON_TYPE", names)
    if unknown := [name for name in names if name not in known]:
        raise ModelError(
            f"takes or gives objects of class {unknown[0]}, which torch does not know here; let "
            "the model give tensors, tuples or dicts of them, and export it again"
        )


_CLASS = re.compile(rb'type\\*"\s*:\s*\\*"([A-Za-z_]\w*(?:\.\w+)+)\\*"\s*,\s*\\*"context')
_LARGEST_PROGRAM = 1 << 28


def classes_of(path: Path) -> list[str]:
    """Return the classes that a .pt2's inputs and outputs are nested in, Python's own ones too."""
    found: dict[str, None] = {}
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            name = entry.filename.partition("/")[2]
            if name.startswith("models/") and name.endswith(".json"):
                with archive.open(entry) as file:
                    for match in _CLASS.finditer(file.read(_LARGEST_PROGRAM)):
                        found[match[1].decode()] = None
    return list(found)


def _export_program(program: Any, result: str) -> None:
    import onnx_ir as ir
    import torch

    # The exporter drops such changes without a word; only this form of the program tells of them.
    functional = program.run_decompositions({})
    changed = list(functional.graph_signature.buffers_to_mutate.values())
    if changed:
        raise _stateful(changed[0])
    converted = torch.onnx.export(program, verbose=False)
    graph = converted.model.graph
    edges = {*graph.inputs, *graph.outputs}
    taken = {
        value.name
        for node in ir.traversal.RecursiveGraphIterator(graph)
        for value in node.outputs
        if value not in edges
    } | {value.name for value in graph.initializers.values()}
    signature = program.graph_signature
    inputs = [name for name in signature.user_inputs if isinstance(name, str)]
    if len(inputs) == len(graph.inputs):
        _rename(graph.inputs, inputs, taken)
    outputs = _output_names(program.call_spec.out_spec, signature.user_outputs)
    if len(outputs) == len(graph.outputs):
        taken |= {value.name for value in graph.inputs}
        _rename(graph.outputs, outputs, taken)
    converted.save(result, external_data=True)


def _rename(values: Sequence[Any], names: Sequence[str], taken: set[str]) -> None:
    for value, name in zip(values, names, strict=True):
        while name in taken:
            name += "_"
        taken.add(name)
        value.name = name


def _output_names(spec: Any, outputs: Sequence[Any]) -> list[str]:
    """Name each output that is a tensor: {"a": (x, y)} gives a_0, a_1; (x, y) gives output_0 ..."""
    from torch.utils import _pytree as tree

    if spec is None or spec.num_leaves != len(outputs):
        return []
    leaves, _ = tree.tree_flatten_with_path(tree.tree_unflatten(list(range(len(outputs))), spec))
    names = []
    for path, index in leaves:
        if outputs[index] is not None:
            parts = [str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path]
            if not parts or parts[0].isdigit():
                parts.insert(0, "output")
            names.append("_".join(parts))
    return names


# ------------------------------------------------------------------------------------- TorchScript


def _export_script(module: Any, shapes: Shapes, dtype: str | None, result: str) -> list[str]:
    """Export it, and return a note on the types of its inputs, which it does not say."""
    import torch

    names = _arguments(module, shapes)
    returned = _tensors(module.forward.schema.returns[0].type)
    buffers = _state(module)
    example = _example(module, [shapes[name] for name in names], dtype)
    for name, state in _state(module).items():
        if state != buffers[name]:
            raise _stateful(name)
    if len(names) < len(module.forward.schema.arguments) - 1:  # the exporter wants them all
        module = torch.jit.trace(_with_defaults(module), example, check_trace=False)
    outputs = ["output"] if returned == 1 else [f"output_{i}" for i in range(returned)]
    try:
        torch.onnx.export(
            module,
            example,
            result,
            dynamo=False,
            input_names=names,
            output_names=[f"{name}_" if name in names else name for name in outputs],
            dynamic_axes={
                name: {axis: f"{name}_{axis}" for axis, dim in enumerate(shapes[name]) if dim < 0}
                for name in names
            },
        )
    except Exception as error:  # its errors share no base
        raise ModelError(
            f"the exporter of TorchScript does not take it: {shortened(one_line(error))}; that of "
            f"torch.export may: {_DO}"
        ) from error
    types = ", ".join(
        f"{name!r} {str(value.dtype).removeprefix('torch.')}" for name, value in zip(names, example)
    )
    return [
        f"TorchScript does not say its inputs' types; the first that it took: {types} (input type "
        "says which is tried first)"
    ]


def _state(module: Any) -> dict[str, tuple[int, int]]:
    """Return each buffer's address and version counter, which tell whether a run wrote to it."""
    return {name: (buffer.data_ptr(), buffer._version) for name, buffer in module.named_buffers()}


def _stateful(name: str) -> ModelError:
    return ModelError(
        f"a call changes the model's own buffer {name!r}: it is in training mode (call "
        "model.eval() before it is exported) or keeps a state, which must become an input and an "
        "output"
    )


def _with_defaults(module: Any) -> Any:
    """Return the module as one that takes only the first of its arguments."""
    import torch

    class Call(torch.nn.Module):  # type: ignore[misc] # Any where torch is not installed
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *inputs: Any) -> Any:
            return self.module(*inputs)

    return Call()


def _arguments(module: Any, shapes: Shapes) -> list[str]:
    """Return the names of `forward`'s arguments that become inputs: what was given a shape."""
    arguments = module.forward.schema.arguments[1:]  # the first is the module itself
    names = [argument.name for argument in arguments]
    needed = [argument.name for argument in arguments if not argument.has_default_value()]
    unknown = [name for name in shapes if name not in names]
    if unknown:
        raise ModelError(
            f"{unknown[0]!r} (of input_shape) is no input of it; its inputs: "
            f"{', '.join(map(repr, names)) or 'none'}"
        )
    missing = [name for name in needed if name not in shapes]
    if missing or not names:
        texts = ";".join(f"{name}:1,..." for name in needed)
        raise ModelError(
            f"TorchScript does not say the shapes of its inputs; give those of "
            f"{', '.join(map(repr, names))}, "
            f'-1 for an open dim, as input_shape (on the command line: --inputShape="{texts}")'
        )
    chosen = [name for name in names if name in shapes]
    if chosen != names[: len(chosen)]:
        raise ModelError(
            f"input_shape gives {', '.join(chosen)}, but forward's arguments before the last of "
            f"these too must be given: {', '.join(names)}"
        )
    for argument in arguments[: len(chosen)]:
        if str(argument.type) not in ("Tensor", "Optional[Tensor]"):
            raise ModelError(
                f"input {argument.name!r} is {argument.type}; TorchScript is converted where all "
                f"inputs are tensors, others by torch.export; {_DO}"
            )
    return chosen


_ATTEMPTS = 500


def _example(module: Any, shapes: Sequence[Sequence[int]], wanted: str | None) -> tuple[Any, ...]:
    """Return zero inputs of these shapes, of the first types that `forward` takes."""
    import torch

    floating = (
        parameter.dtype for parameter in module.parameters() if parameter.is_floating_point()
    )
    asked = getattr(torch, wanted or "", None)  # None too for a type that torch has not
    dtypes = [*([asked] if asked else []), next(floating, torch.float32), torch.int64, torch.bool]
    first: Exception | None = None
    for sizes in _sizes(shapes):
        for choice in islice(product(dict.fromkeys(dtypes), repeat=len(sizes)), _ATTEMPTS):
            example = tuple(
                torch.zeros(size, dtype=dtype) for size, dtype in zip(sizes, choice, strict=True)
            )
            try:
                module(*example)
            except Exception as error:  # whatever a program raises that is run on the wrong input
                first = first or error
            else:
                return example
    assert first is not None
    shown = ", ".join(str(list(shape)) for shape in shapes)
    raise ModelError(
        f"forward does not take inputs of the shapes {shown}: "
        f"{one_line(first).rpartition('RuntimeError: ')[2]}; check input_shape"
    ) from first


def _sizes(shapes: Sequence[Sequence[int]]) -> Iterator[list[list[int]]]:
    """Fill in the shapes' open dims: 2 for the first axis, others large enough for most nets."""
    tried = []
    for size in (8, 64, 256):
        filled = [
            [dim if dim > 0 else (size if axis else 2) for axis, dim in enumerate(shape)]
            for shape in shapes
        ]
        if filled not in tried:
            tried.append(filled)
            yield filled


def _tensors(returned: Any) -> int:
    """Count the tensors that a return type begins with, as far as the type says."""
    if returned.kind() == "TensorType":
        return 1
    if returned.kind() != "TupleType":
        return 0
    count = 0
    for element in returned.elements():
        inner = _tensors(element)
        count += inner
        if not inner:
            break
    return count
