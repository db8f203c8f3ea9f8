"""Find where two models, or one on two targets, come apart: `engine.diff`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from engine.config.declared import Sections
from engine.config.reader import configuration
from engine.config.sections import sections_of
from engine.context import Context
from engine.formats import ModelFile
from engine.formats.given import found
from engine.model.shortcut import load
from engine.report.comparison import naming, require_sides, run_both, targets_of
from engine.report.differences import Comparison, compare_outputs
from engine.report.fault.blame import Blame
from engine.report.fault.found import Diff
from engine.report.fault.ranks import together
from engine.report.fault.reproducer import require_place, write
from engine.report.fault.search import Search
from engine.report.fault.sides import Side, Values, opener, settled
from engine.report.files import require_config
from engine.types import Progress

if TYPE_CHECKING:
    from engine.typing import Inputs

    Config: TypeAlias = str | os.PathLike[str] | Mapping[str, Mapping[str, Any]]


def diff(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str] | None = None,
    inputs: Inputs | None = None,
    *,
    targets: tuple[str, str] | None = None,
    configs: tuple[Config | None, Config | None] = (None, None),
    rtol: float | None = None,
    atol: float | None = None,
    inside: bool = False,
    seed: int = 0,
    timeout_s: float | None = None,
    folder: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Diff:
    """Run two models on the same inputs and find the node that sets them apart.

    >>> found = engine.diff("m.onnx", "m_fp16.onnx")  # doctest: +SKIP
    >>> found.is_within, str(found), found.fault.nodes  # doctest: +SKIP

    a, b, inputs, targets, rtol, atol, seed, timeout_s: as for engine.compare, but for built models,
    which cannot be taken apart. configs: of either side, as engine.load takes one.
    inside: look at the values between nodes even if all outputs are within the tolerances.
    folder: where to write a reproducer; None to write none. progress: called with each step.

    Raises what engine.compare raises; ModelError for a model whose nodes cannot be run alone, or
    again with the same result (random numbers, other ranks); InputError for a folder with other
    files in it.
    """
    one, other = targets_of(targets, b is None)
    path_b = a if b is None else b
    require_sides(a, path_b, "engine.diff")
    joined = together(a, path_b)
    model_a, model_b = joined.a or a, joined.b or path_b
    asked = _recipe(one, configs[0]), _recipe(other, configs[1])
    if folder is not None:
        require_place(Path(folder))
    ran = run_both(
        (a, lambda: load(model_a, one, config=configs[0])),
        (b, lambda: load(model_b, other, config=configs[1])),
        other,
        inputs,
        seed,
        timeout_s,
    )
    files = file_of(model_a), file_of(model_b)
    recipes = [settled(file, *recipe) for file, recipe in zip(files, asked, strict=True)]
    side_a, side_b = (
        Side(file, opener(*recipe), timeout_s, partial(naming, name, os.fspath(path)))
        for name, path, file, recipe in zip("ab", (a, path_b), files, recipes, strict=True)
    )
    given = {spec.name: value for spec, value in zip(ran.specs, ran.values, strict=True)}
    return find(
        side_a,
        side_b,
        given,
        (ran.a, ran.b),
        rtol=rtol,
        atol=atol,
        inside=inside,
        is_sliced=joined.is_sliced,
        folder=None if folder is None else Path(folder),
        command=words_of(recipes, rtol, atol),
        show=progress or quiet,
    )


def file_of(model: str | os.PathLike[str] | bytes) -> ModelFile:
    """Return a model that is a file or in memory, to be opened."""
    if isinstance(model, bytes):
        return ModelFile.of_bytes(model)
    return ModelFile(found(os.fspath(model)))


def _recipe(target: str, config: Config | None) -> tuple[Context, Sections]:
    """Return a side's context and configuration, as engine.load would have them."""
    context = Context()
    context.target = [target]
    path, sections = "", {}
    if isinstance(config, str | os.PathLike):
        path = os.fspath(config)
        require_config(path, "engine.diff")
    elif config is not None:
        sections = sections_of("config", config)
    return context, configuration(path, sections, "engine.diff")


def words_of(
    recipes: Sequence[tuple[Context, Sections]], rtol: float | None, atol: float | None
) -> list[str]:
    """Return the options of `engine compare` for both sides' settings and the tolerances."""
    words = []
    for side, (context, config) in zip("ab", recipes, strict=True):
        words += [f"--{side}", ",".join(context.target)]
        settings = (
            f"{section}.{key}={value}"
            for section, keys in config.items()
            for key, value in keys.items()
        )
        words += [word for setting in settings for word in (f"--set-{side}", setting)]
        if context.cpu.thread_num:
            words += [f"--threads-{side}", str(context.cpu.thread_num)]
    if number := recipes[0][0].gpu.device_id:
        words += ["--device-id", str(number)]
    for name, tolerance in (("--rtol", rtol), ("--atol", atol)):
        words += [] if tolerance is None else [name, f"{float(tolerance)!r}"]
    return words


def quiet(phase: str, done: int, total: int | None) -> None:
    """Show nothing: the progress by default."""


def find(
    a: Side,
    b: Side,
    inputs: Mapping[str, Any],
    outputs: tuple[Values, Values],
    *,
    rtol: float | None = None,
    atol: float | None = None,
    inside: bool = False,
    is_sliced: bool = False,
    folder: Path | None = None,
    command: Sequence[str] = (),
    show: Progress = quiet,
) -> Diff:
    """Find the fault that sets two sides apart.

    inputs: by a's names. outputs: what the whole models gave on these. inside: see `diff`.
    is_sliced: one side is the ranks of the other. folder: for a reproducer.
    command: options of `engine compare` that run parts of both sides, for the reproducer.
    Raises what building and running parts of the models raises.
    """
    compared = compare_outputs(*outputs, rtol, atol)
    if compared.is_within and not inside:
        return Diff(compared)
    if folder is not None:
        require_place(folder)
    search = Search(a, b, inputs, outputs, (rtol, atol), show, is_sliced)
    apart = search.first_apart()
    beside = _beside_nodes(a, search, compared, is_alone=apart is None)
    if apart is None:
        return Diff(
            compared,
            builds=2 + a.builds + b.builds,
            notes=(*search.notes, *beside),
            has_inside=search.knows_all,
        )
    blame = Blame(search, *apart)
    fault = blame.fault()
    notes = [*search.notes, *beside]
    if is_sliced:
        notes.append(
            "the parts of values that ranks hold have no counterpart in the model before slicing; "
            "to have the node and its rank named, slice that model again and diff both slices"
        )
    written = ""
    if folder is not None:
        refused = write(folder, search, blame, fault, command)
        notes, written = [*notes, *refused], "" if refused else str(folder)
    return Diff(
        compared,
        fault,
        builds=2 + a.builds + b.builds,
        unpaired=search.pairs.unpaired,
        folder=written,
        notes=tuple(notes),
    )


def _beside_nodes(a: Side, search: Search, compared: Comparison, is_alone: bool) -> list[str]:
    """Name the outputs that are apart and at which the search does not look.

    is_alone: no tensor that a node makes is apart, so those of other kinds are at fault themselves.
    """
    apart = {output.name for output in compared.outputs if not output.is_within}
    notes = [
        f"output {name!r} is apart, and no node of a is to blame: there it is a constant or input"
        for name in a.outputs
        if name not in search.pairs.computed and name in apart
    ]
    if is_alone:
        for name in a.outputs:
            if name in a.makers and any(
                part.startswith((f"{name}[", f"{name}.")) for part in apart
            ):
                node = a.nodes[a.makers[name]]
                notes.append(
                    f"output {name!r} is apart, and no tensor inside was found that is: look at "
                    f"{node.op_type} {node.name or name!r}, which makes it"
                )
    return notes
