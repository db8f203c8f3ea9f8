"""Slice a model: read, choose, write aside, check, and put into place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import ModelError
from engine.formats.collectives import Part
from engine.host.folder import temporary_folder
from engine.sharding.files import NotAFolder
from engine.sharding.strategy import Strategy
from engine.types import CancelToken

if TYPE_CHECKING:
    from onnx import NodeProto

    from engine.context import Context
    from engine.sharding.slicing.program import Program
    from engine.sharding.slicing.report import Report
    from engine.types import Progress

WHERE = ("all", "last")


def slice_model(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    tp: int = 1,
    pp: int = 1,
    strategy: str | os.PathLike[str] | Strategy | None = None,
    outputs: str = "all",
    micro_batches: bool = False,
    annotate: bool = False,
    replicas: bool = False,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    fix_shapes: bool = False,
    check: bool = True,
    context: Context | None = None,
    progress: Progress | None = None,
    cancel: CancelToken | None = None,
) -> Report:
    """Slice a model into those of tp x pp ranks, `<out>/<stem><rank>.onnx`.

    model: ONNX or MindIR. tp: ranks that share each layer's work; pp: pipeline stages. Rank r is
    place r % tp of stage r // tp.
    strategy: None divides all that can be, "auto" what is worth it, else a strategy or a file of
    one, MindSpore's: what it says nothing of is divided as with None.
    outputs: "all" ranks give them, or those of the "last" stage.
    micro_batches: stages run a batch in parts of the size that `input_shapes` gives axis 0, and
    work at the same time; a predict takes any batch.
    annotate: also write `<stem>.annotated.onnx`, the whole model with ONNX's annotations of what
    was divided how; a model that brings such is divided so where no strategy is given.
    replicas: also write ranks that each hold the whole model, where nothing can be divided among
    tp ranks; else that is an error with the reason of each node.
    input_shapes: sizes with which the check runs, where it is not to choose those of open dims
    itself; the slices stay as open as the model. fix_shapes: the slices have these sizes alone, so
    that also a strategy may divide these axes.
    check: run the slices in this process, on generated inputs, and compare them with the original
    before they are put into place; on the target of `context`, the cpu by default.
    Weights are beside the ranks' files: `<stem><rank>.onnx.data`, and `<stem>.data` for what ranks
    have in common. Raises ModelError, Cancelled.
    """
    _require_onnx()
    from engine.sharding.slicing.original import open_original
    from engine.sharding.slicing.placing import put_into_place, require_free

    path, folder = Path(model), Path(out)
    cancel = cancel or CancelToken()
    tell = progress or _silent
    if tp < 1 or pp < 1:
        raise ModelError(f"tp {tp} and pp {pp}: expected 1 or more")
    if outputs not in WHERE:
        raise ModelError(f"outputs {outputs!r}: expected {' or '.join(map(repr, WHERE))}")
    if folder.exists() and not folder.is_dir():
        raise NotAFolder(
            f"{folder}: is a file; expected a folder to write the slices to; give another name "
            "(--out)",
            str(folder),
        )
    names = [f"{path.stem}{rank}.onnx" for rank in range(tp * pp)]
    require_free(folder, path.stem, names, annotate=annotate)
    tell("read", 0, None)
    fixed_axes = None if fix_shapes else int(micro_batches)  # rows of a part are the file's
    original = open_original(path, input_shapes=dict(input_shapes or {}), fixed_axes=fixed_axes)
    cancel.check()
    tell("choose", 0, None)
    from engine.sharding.slicing.annotations import annotated_strategy, write_annotated
    from engine.sharding.slicing.costs import Costs
    from engine.sharding.slicing.partitioner import choose, require_divided, write_program
    from engine.sharding.slicing.strategies import narrowed, written_down

    given: Strategy | None
    if strategy is None:
        given = annotated_strategy(original, tp)
    elif isinstance(strategy, Strategy):
        given = strategy
    else:
        given = None if strategy == "auto" else Strategy.load(Path(strategy))
    narrow = None if given is None else narrowed(given, original, tp)
    choice = choose(original, Costs(original, tp, divide_all=strategy != "auto"), narrow)
    if not replicas:
        require_divided(original, choice)
    program = write_program(original, choice)
    from engine.sharding.slicing.report import Report, counted_shapes, rank_report, whole_weights
    from engine.sharding.slicing.stages import micro_batches as in_parts
    from engine.sharding.slicing.stages import pipeline

    batches = in_parts(original, pp) if micro_batches else None
    stages = pipeline(program, pp, outputs == "last", batches)
    stem = path.stem
    report = Report(original.name, tp, pp, strategy=f"{stem}.strategy.json")
    try:
        with _made(folder), temporary_folder(".slicing-", folder) as aside:
            from engine.sharding.slicing.program import identity
            from engine.sharding.slicing.rank_files import RankFiles

            files = RankFiles(aside, stem, cancel, batches)
            slicing = identity(program, tp, pp, outputs, micro_batches)
            paths = []
            for rank in range(tp * pp):
                tell("write", rank, tp * pp)
                stage, member = divmod(rank, tp)
                nodes = stages.nodes(stage, member)
                part = Part(rank, tp * pp, slicing)
                paths.append(
                    files.write(program, nodes, stages.outputs(stage, member), part, member)
                )
                report.ranks.append(rank_report(program, nodes, rank, stage, paths[-1].name))
                if rank == 0:
                    report.collectives = _counted(nodes)
            original.source.check_unchanged()
            kept = {file.resolve() for file in (path, *original.weight_files())}
            for written in aside.iterdir():
                if (folder / written.name).resolve() in kept:
                    raise ModelError(
                        f"{folder / written.name}: is a file of the model itself and would be "
                        "overwritten; choose another folder (--out)",
                        str(path),
                    )
            report.weight_bytes = sum(original.nbytes(name) for name in original.constants)
            report.divided_bytes = _divided(program)
            report.counted_shapes = counted_shapes(original)
            report.whole = whole_weights(program, choice)
            report.undivided_nodes = choice.reasons if tp > 1 else {}
            if check:
                tell("check", 0, None)
                from engine.context import Context
                from engine.sharding.slicing.check import compare, compare_parts

                where = context or Context()
                report.differences, report.note = compare(original, path, paths, where)
                if batches is not None:
                    compare_parts(original, path, paths, where, batches)
            else:
                report.note = "not checked"
            cancel.check()
            written_down(original, choice, program, pp).save(aside / report.strategy)
            # Strategy files are their owner's; this one is for whoever may read the slices.
            shutil.copymode(paths[0], aside / report.strategy)
            if annotate:
                write_annotated(original, choice, aside / f"{stem}.annotated.onnx")
            put_into_place(aside, folder, stem, [file.name for file in paths], kept)
    except OSError as error:
        name = error.filename or folder
        raise ModelError(f"{name}: cannot be written: {error.strerror}", str(folder)) from error
    report.files = [str(folder / file.name) for file in paths]
    return report


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Make a folder; where the block fails, what was made for it is removed while it is empty."""
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for each in new:
            with suppress(OSError):  # somebody else writes there
                each.rmdir()
        raise


def _counted(nodes: Sequence[NodeProto]) -> dict[str, int]:
    from collections import Counter

    from engine.formats.collectives import is_collective

    return dict(Counter(n.op_type for n in nodes if is_collective(n.op_type, n.domain)))


def _divided(program: Program) -> int:
    divided = {w.source for w in program.weights.values() if w.state.is_shard}
    return sum(program.model.nbytes(name) for name in divided)


def _silent(phase: str, done: int, total: int | None) -> None:
    pass


def _require_onnx() -> None:
    try:
        import onnx  # noqa: F401
    except ImportError:
        raise ModelError('slicing takes the onnx package; run: pip install "onnx>=1.23"') from None
