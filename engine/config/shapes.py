"""Read `input_shape`, `dynamic_dims` and `opt_dims` into `CompileOptions.shapes` and `.profiles`.

They stand in a backend's section; the core reads them for every backend, so a backend finds none
of the three in `CompileOptions.options`. It finds in `shapes` and `profiles`:

* `shapes[name]` is there for each input of which the settings say more than the model declares:
  those that `input_shape` names, and those that share a symbolic dim with one of them. An input
  that is missing keeps its declared dims. It has one entry an axis:

      fixed              lowest == usual == highest
      a range            lowest <= usual <= highest; `usual` is opt_dims', else the highest
      left open          (0, -1, -1), that is `OPEN`: nothing is said of this axis; the backend's
                         own default counts, or it stays open
      "4~-1"             (4, -1, -1): at least 4, without a highest

  An axis that the model fixes has that size. Axes of one symbol agree.
* `profiles` is () or holds at least two: what the user gave as several profiles ([gpu_context])
  or gears ([ascend_context]). Each names the same inputs as `shapes`. `shapes` encloses them: the
  least lowest, the greatest highest, and the usual size of the first profile. A gear fixes every
  axis: lowest == usual == highest throughout, in all of `profiles`.

Checked here, so that a backend need not: names, ranks, dims that the model fixes, equal symbols.
The two sections spell the same keys differently (see `shape_text`): a device of type "ascend" is
asked in the words of [ascend_context], any other in those of [gpu_context].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.config.shape_text import OPEN, Axis, Inputs, Spelling, axis_text, spelling_of
from engine.types import ShapeRange, TensorSpec

__all__ = ["KEYS", "OPEN", "Shapes", "read_shapes"]

KEYS = ("input_shape", "dynamic_dims", "opt_dims")


@dataclass(frozen=True, slots=True)
class Shapes:
    """The shapes to compile for, as `CompileOptions.shapes` and `.profiles` say them."""

    shapes: Mapping[str, ShapeRange] = field(default_factory=dict)
    profiles: tuple[Mapping[str, ShapeRange], ...] = ()


def read_shapes(
    settings: Mapping[str, str], inputs: Sequence[TensorSpec] | None, device_type: str
) -> Shapes:
    """Read the three keys of a backend's section for one model.

    settings: the section; other keys are not looked at. inputs: the model's, None where it is a
        compiled form, whose inputs nobody knows yet: names are not checked then.
    Raises ValueError naming the key that cannot be read or does not fit the model.
    """
    texts = {key: settings.get(key, "").strip() for key in KEYS}
    if not any(texts.values()):
        return Shapes()
    spelling = spelling_of(device_type)
    named = spelling.input_shape(texts["input_shape"])
    specs = {spec.name: spec for spec in inputs or ()}
    if inputs is not None:
        _check(named, specs, spelling)
    known = _spread(named, specs)
    profiles = [
        _spread(_keep_declared(profile, specs), specs)
        for profile in spelling.profiles(
            named, _complete(known, specs), texts["dynamic_dims"], texts["opt_dims"]
        )
    ]
    ranges = [_ranges(profile) for profile in profiles or [_keep_declared(known, specs)]]
    # An input of which every profile says only what the model says anyway is left out.
    names = [
        name
        for name in ranges[0]
        if any(_says_more(profile[name], specs.get(name)) for profile in ranges)
    ]
    ranges = [{name: profile[name] for name in names} for profile in ranges]
    shapes = {name: _enclosing([profile[name] for profile in ranges]) for name in names}
    return Shapes(shapes, tuple(ranges) if len(ranges) > 1 and names else ())


def _check(named: Inputs, specs: Mapping[str, TensorSpec], spelling: Spelling) -> None:
    """Raise ValueError for a name, rank or dim of `input_shape` that is not the model's."""
    for name, axes in named.items():
        if name not in specs:
            listed = ", ".join(map(repr, specs)) or "none"
            text = spelling.unknown_input.format(name=name, inputs=[*specs], listed=listed)
            raise ValueError(text)
        spec = specs[name]
        if spec.shape is None:
            continue
        if len(spec.shape) != len(axes):
            facts = {"spec": spec, "rank": len(spec.shape), "count": len(axes)}
            raise ValueError(spelling.wrong_rank.format(**facts))
        for index, (dim, axis) in enumerate(zip(spec.shape, axes, strict=True)):
            if isinstance(dim, int) and not spelling.leaves(dim, axis):
                facts = {"spec": spec, "index": index, "dim": dim, "axis": axis}
                raise ValueError(spelling.wrong_dim.format(**facts, text=axis_text(axis)))


def _keep_declared(known: Inputs, specs: Mapping[str, TensorSpec]) -> Inputs:
    """Give axes that the model fixes the model's size.

    Raises ValueError where a profile says another.
    """
    kept: dict[str, tuple[Axis, ...]] = {}
    for name, axes in known.items():
        spec = specs.get(name)
        dims = spec.shape if spec is not None and spec.shape is not None else [None] * len(axes)
        for index, (dim, axis) in enumerate(zip(dims, axes, strict=True)):
            if isinstance(dim, int) and axis not in (OPEN, (dim, dim, dim)):
                raise ValueError(
                    f"input {name!r}: dim {index} is {dim} in the model, but the settings "
                    f"say {axis[0]} to {axis[2]}"
                )
        kept[name] = tuple(
            (dim, dim, dim) if isinstance(dim, int) else axis
            for dim, axis in zip(dims, axes, strict=True)
        )
    return kept


def _spread(known: Inputs, specs: Mapping[str, TensorSpec]) -> Inputs:
    """Bring axes of one symbol to what all of them allow, in the inputs not named too.

    Raises ValueError where two of them exclude each other.
    """
    symbols: dict[str, Axis] = {}
    for name, axes in known.items():
        spec = specs.get(name)
        for dim, axis in zip((spec.shape if spec else None) or (), axes, strict=False):
            if not isinstance(dim, str):
                continue
            before = symbols.get(dim, OPEN)
            both = _intersection(before, axis)
            if both is None:
                raise ValueError(
                    f"input {name!r}: {dim!r} is {_words(axis)}, but {_words(before)} "
                    "in another input; equal names are equal sizes"
                )
            symbols[dim] = both
    spread: dict[str, tuple[Axis, ...]] = {}
    for name, axes in known.items():
        spec = specs.get(name)
        dims = spec.shape if spec is not None and spec.shape is not None else [None] * len(axes)
        spread[name] = tuple(
            symbols[dim] if isinstance(dim, str) else axis
            for dim, axis in zip(dims, axes, strict=True)
        )
    for name, spec in specs.items():
        if name not in known and not symbols.keys().isdisjoint(spec.shape or ()):
            spread[name] = tuple(_declared(dim, symbols) for dim in spec.shape or ())
    return spread


def _complete(known: Inputs, specs: Mapping[str, TensorSpec]) -> Inputs:
    """Return `known` with the declared axes of every other input whose rank is known."""
    others = {
        name: tuple(_declared(dim, {}) for dim in spec.shape)
        for name, spec in specs.items()
        if name not in known and spec.shape is not None
    }
    return {**known, **others}


def _declared(dim: int | str | None, symbols: Mapping[str, Axis]) -> Axis:
    if isinstance(dim, int):
        return dim, dim, dim
    return symbols.get(dim, OPEN) if dim is not None else OPEN


def _intersection(first: Axis, second: Axis) -> Axis | None:
    """Return the sizes in both ranges, the usual one that of `one` where it fits; None for none."""
    lowest = max(first[0], second[0])
    highest = min((axis[2] for axis in (first, second) if axis[2] >= 0), default=-1)
    if highest < 0:
        return lowest, -1, -1
    if lowest > highest:
        return None
    usual = first[1] if first[1] >= 0 else second[1]
    return lowest, min(max(usual, lowest), highest), highest


def _words(axis: Axis) -> str:
    return f"{axis[0]} to {axis[2]}" if axis[2] >= 0 else f"at least {axis[0]}"


def _ranges(known: Inputs) -> dict[str, ShapeRange]:
    return {
        name: ShapeRange(
            tuple(axis[0] for axis in axes),
            tuple(axis[1] for axis in axes),
            tuple(axis[2] for axis in axes),
        )
        for name, axes in known.items()
    }


def _says_more(given: ShapeRange, spec: TensorSpec | None) -> bool:
    """Return whether `given` says anything beyond the declared dims of `spec`."""
    if spec is None or spec.shape is None:
        return True
    axes = zip(given.lowest, given.usual, given.highest, strict=True)
    return any(
        axis not in (OPEN, (dim, dim, dim)) for dim, axis in zip(spec.shape, axes, strict=True)
    )


def _enclosing(ranges: Sequence[ShapeRange]) -> ShapeRange:
    """Return the hull of the profiles' ranges; an axis open in one of them is open."""
    return ShapeRange(
        tuple(map(min, zip(*(bounds.lowest for bounds in ranges), strict=True))),
        ranges[0].usual,
        tuple(
            -1 if min(sizes) < 0 else max(sizes)
            for sizes in zip(*(bounds.highest for bounds in ranges), strict=True)
        ),
    )
