"""Compare two models, or one model on two targets, on the same inputs: `engine.compare`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias

import numpy as np

from engine.config.wording import own_text, reworded
from engine.errors import EngineError, InputError
from engine.formats.given import found
from engine.model import Model
from engine.model.shortcut import load
from engine.report.differences import Comparison, compare_outputs
from engine.report.files import require_model
from engine.report.filled import Fill, run_filled
from engine.report.inspection import of_file
from engine.report.measurement import ranks_of
from engine.report.parts import arrays_of
from engine.runtime.casting import widened
from engine.tensor import Tensor
from engine.tensor.protocols import is_array
from engine.types import DType, TensorSpec, ValueKind

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from engine.tensor.description import Array
    from engine.typing import Inputs

__all__ = ["Comparison", "compare", "outputs_of", "values_for"]


def compare(
    a: Model | str | os.PathLike[str],
    b: Model | str | os.PathLike[str] | None = None,
    inputs: Inputs | None = None,
    *,
    targets: tuple[str, str] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
    timeout_s: float | None = None,
) -> Comparison:
    """Run two models on the same inputs and compare their outputs; b is the reference.

    >>> found = engine.compare("m.onnx")  # cpu against the reference evaluator  # doctest: +SKIP
    >>> found.is_within, str(found)  # doctest: +SKIP

    a, b: built models, as engine.load gives them with any target and settings; or paths, which are
    loaded one after the other and closed. b is None for the file of a again.
    inputs: as Model.predict takes them, in the order of a or by its names; None for random ones.
    targets: where paths are loaded; by default ("cpu", "reference") for one file, "cpu" for two.
    rtol, atol: an output is within them where |a - b| <= atol + rtol * |b|; whole numbers have
    atol alone. By default 1e-3 and 1e-5 for float32 and float64, 1e-2 and 1e-3 for 2 bytes, 1e-1
    and 1e-2 for 1 byte, and 0 for whole numbers.
    seed: of the random inputs. timeout_s: for each of the two runs.

    Raises what engine.load and Model.predict raise, and InputError for models whose inputs or
    outputs are not as many.
    """
    if b is None and isinstance(a, Model):
        raise TypeError("give b: a built model has one target only, and None means its file again")
    one, other = targets_of(targets, b is None)
    require_sides(a, a if b is None else b, "engine.compare")
    ran = run_both(
        (a, lambda: _opened(a, one)),
        (b, lambda: _opened(a if b is None else b, other)),
        other,
        inputs,
        seed,
        timeout_s,
    )
    return compare_outputs(ran.a, ran.b, rtol, atol)


def targets_of(targets: tuple[str, str] | None, is_one_file: bool) -> tuple[str, str]:
    """Return the targets of both sides, where none are given the usual ones. Raises TypeError."""
    both = targets or ("cpu", "reference" if is_one_file else "cpu")
    if not isinstance(both, tuple | list) or len(both) != 2:
        raise TypeError(f"targets must be two, as ('cpu', 'reference'), but got {targets!r}")
    return both


def require_sides(a: Given, b: Given, function: str) -> None:
    """Raise ModelNotFound for a side whose file is not there, TypeError for what is no model."""
    for side, model in ("a", a), ("b", b):
        path = _name(model, side)
        if not isinstance(model, Model | bytes):
            with naming(side, ""):
                require_model(os.fspath(found(path)), function)


class BothRan(NamedTuple):
    """Outputs of both sides by name, and the inputs that both had, in the order of a's."""

    a: dict[str, Array]
    b: dict[str, Array]
    specs: Sequence[TensorSpec]
    values: Sequence[Any]


Opened: TypeAlias = "Callable[[], AbstractContextManager[Model]]"
Given: TypeAlias = "Model | str | os.PathLike[str]"


def run_both(
    a: tuple[Given, Opened],
    b: tuple[Given | None, Opened],
    target_b: str,
    inputs: Inputs | None,
    seed: int,
    timeout_s: float | None,
) -> BothRan:
    """Run two sides on the same inputs, one after the other; see `compare`.

    a, b: each the model as it was given, and a function that opens it.
    """
    (given_a, open_a), (given_b, open_b) = a, b
    files = _name(given_a, "a"), _name(given_a if given_b is None else given_b, "b")
    others: Sequence[TensorSpec] | None = None
    if inputs is None and given_b is not None:
        with naming("b", files[1]):
            others = (
                given_b.inputs if isinstance(given_b, Model) else inputs_of_file(given_b, target_b)
            )
    with naming("a", files[0]), open_a() as model:
        specs: Sequence[TensorSpec] = model.inputs
        if others is not None:
            specs = common_inputs(specs, others, files)
        if inputs is None:
            values, first = run_filled(
                specs,
                Fill.RANDOM,
                lambda values: outputs_of(model, values, timeout_s),
                seed,
                "give inputs",
                1 if ranks_of(model) else None,
            )
        else:
            values = _in_order(specs, inputs)
            first = outputs_of(model, values, timeout_s)
    with naming("b", files[1]), open_b() as model:
        second = outputs_of(model, values_for(model, specs, values), timeout_s)
    return BothRan(first, second, specs, values)


@contextmanager
def naming(side: str, file: str) -> Iterator[None]:
    """Say in an error that comes out of the block which side it is of, and the side's file."""
    try:
        yield
    except (EngineError, ValueError, TypeError) as error:
        if not isinstance(error, UnicodeError) and not hasattr(error, _SIDE):
            setattr(error, _SIDE, side)
            text = own_text(error)
            named = f"{side}: " if not file or text.startswith(file) else f"{side}: {file}: "
            reworded(error, f"{named}{text}")
        raise


_SIDE = "_side"


def inputs_of_file(path: str | os.PathLike[str], target: str = "") -> Sequence[TensorSpec] | None:
    """Return the inputs that a model's file declares; None for a form that only a backend reads.

    Raises ModelError.
    """
    from engine.formats import ModelFile
    from engine.formats.given import found

    name = os.fspath(found(os.fspath(path)))
    return of_file(name, ModelFile(name), (target,) if target else ()).inputs


def common_inputs(
    specs: Sequence[TensorSpec], others: Sequence[TensorSpec], files: tuple[str, str]
) -> list[TensorSpec]:
    """Return the inputs of a with the sizes that b fixes where a leaves them open.

    Where their types differ they have the narrower one, which both sides take: float16 beside
    float32. specs, others: the inputs of a and of b, which are the same by name or else by place.
    files: of a and of b, for messages. Raises InputError for inputs that no array fits both.
    """
    by_name = {spec.name: spec for spec in others}
    if len(specs) != len(others):
        _refuse_counts(specs, others)
    is_by_name = {spec.name for spec in specs} == by_name.keys()
    pairs = [
        (spec, by_name[spec.name] if is_by_name else other)
        for spec, other in zip(specs, others, strict=True)
    ]
    sizes: dict[str, int] = {}  # of symbolic axes: one name has one size in all inputs
    for spec, other in pairs:
        both = f"input {spec.name!r}: a ({files[0]}) takes {spec} and b ({files[1]}) {other}"
        if spec.kind is not other.kind or not _may_agree(spec, other):
            raise _of_both(f"{both}; no array fits both", spec.name)
        if not (_may_be_cast(spec, other) or _may_be_cast(other, spec)):
            raise _of_both(
                f"{both}: the inputs differ in type, and neither of {spec.dtype} and {other.dtype} "
                "is cast to the other; compare models whose inputs have the same types",
                spec.name,
            )
        for dim, fixed in zip(spec.shape or (), other.shape or (), strict=False):
            if isinstance(dim, str) and isinstance(fixed, int):
                sizes.setdefault(dim, fixed)
    return [_narrowed(spec, other, sizes) for spec, other in pairs]


def _may_be_cast(spec: TensorSpec, other: TensorSpec) -> bool:
    """Return whether `other` takes an array of the type of `spec`, as Model.predict does."""
    if spec.dtype is other.dtype or spec.kind is not ValueKind.TENSOR:
        return True
    if DType.STRING in (spec.dtype, other.dtype):  # numpy's objects take anything
        return False
    return widened(np.empty(0, spec.dtype.numpy), other.dtype.numpy) is not None


def _may_agree(spec: TensorSpec, other: TensorSpec) -> bool:
    if spec.shape is None or other.shape is None:
        return True
    return len(spec.shape) == len(other.shape) and all(
        one == two or not (isinstance(one, int) and isinstance(two, int))
        for one, two in zip(spec.shape, other.shape, strict=True)
    )


def _narrowed(spec: TensorSpec, other: TensorSpec, sizes: Mapping[str, int]) -> TensorSpec:
    if not _may_be_cast(spec, other):
        spec = replace(spec, dtype=other.dtype)
    if spec.shape is None:
        return spec if other.shape is None else replace(spec, shape=other.shape)
    fixed = other.shape or (None,) * len(spec.shape)
    shape = [
        two if not isinstance(one, int) and isinstance(two, int)
        else sizes.get(one, one) if isinstance(one, str)
        else one
        for one, two in zip(spec.shape, fixed, strict=True)
    ]  # fmt: skip
    return replace(spec, shape=tuple(shape))


def _refuse_counts(specs: Sequence[TensorSpec], others: Sequence[TensorSpec]) -> NoReturn:
    of_a, of_b = (", ".join(spec.name for spec in side) for side in (specs, others))
    raise _of_both(
        f"expected two models with the same inputs, but a has {len(specs)} ({of_a}) and b has "
        f"{len(others)} ({of_b})"
    )


def outputs_of(
    model: Model, values: Sequence[Any], timeout_s: float | None = None
) -> dict[str, Array]:
    """Return a model's outputs by name; the parts of one that is no tensor have names of their own.

    Raises what predict raises.
    """
    results = model.predict(list(values), timeout_s=timeout_s)
    found: dict[str, Array] = {}
    for spec, result in zip(model.outputs, results, strict=True):
        found |= arrays_of(spec.name, plain_value(result), spec.dtype)
    return found


def plain_value(result: Any) -> Any:
    """Return what predict gave for one output, with arrays in place of the Tensors."""
    if isinstance(result, list):
        return [plain_value(element) for element in result]
    return result.get_data_to_numpy() if isinstance(result, Tensor) else result


def values_for(model: Model, specs: Sequence[TensorSpec], values: Sequence[Any]) -> list[Any]:
    """Return values that were made for `specs` in the order of a model's own inputs.

    By name, or by place where its names are others but as many. Raises InputError.
    """
    own = [spec.name for spec in model.inputs]
    if len(own) != len(values):
        _refuse_counts(specs, model.inputs)
    by_name = {spec.name: value for spec, value in zip(specs, values, strict=True)}
    return [by_name[name] for name in own] if by_name.keys() == {*own} else list(values)


def _of_both(text: str, name: str = "") -> InputError:
    error = InputError(text, name)
    setattr(error, _SIDE, "")
    return error


def _name(model: Model | str | os.PathLike[str], side: str) -> str:
    if isinstance(model, Model):
        return model.model_path_
    try:
        return os.fspath(model)
    except TypeError:
        from engine.formats.given import wrong_type  # rare

        raise wrong_type(model, side, "a built model or a path") from None


def _opened(model: Model | str | os.PathLike[str], target: str) -> AbstractContextManager[Model]:
    return nullcontext(model) if isinstance(model, Model) else load(model, target)


def _in_order(specs: Sequence[TensorSpec], inputs: Any) -> list[Any]:
    if not isinstance(inputs, Mapping):
        return [inputs] if is_array(inputs) else list(inputs)
    names = [spec.name for spec in specs]
    if {*inputs} != {*names}:
        raise InputError(f"inputs: expected {', '.join(names)}, got {', '.join(inputs) or 'none'}")
    return [inputs[name] for name in names]
