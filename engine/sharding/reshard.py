"""One rank's parameters, put together from the files of other ranks that were split otherwise.

Every part is a box of the whole tensor: what a rank is to hold is copied from the boxes that
overlap it, one parameter at a time. Neither the whole of a tensor nor of a file is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import lcm
from pathlib import Path

import numpy as np

from engine.errors import ModelError
from engine.sharding.checkpoint import open_checkpoint
from engine.sharding.layout import (
    Box,
    Layout,
    LayoutError,
    Shape,
    boxes,
    overlap,
    overlapping,
    shape_of,
    within,
)
from engine.sharding.stored import Array, Checkpoint, Stored, ToWrite
from engine.sharding.strategy import Arrangement


class Sources:
    """The checkpoints of a job's ranks, each opened when it is first needed.

    files: by rank of the whole job. arrangement: of the job that wrote them.
    open_file: how to open one.
    """

    def __init__(
        self,
        files: Mapping[int, Path],
        arrangement: Arrangement,
        open_file: Callable[[Path], Checkpoint] = open_checkpoint,
    ) -> None:
        self.files = files
        self.arrangement = arrangement
        self._open_file = open_file
        self._opened: dict[int, Checkpoint] = {}
        self.same: set[str] = set()  # parameters found to be the same in all files

    def __getitem__(self, rank: int) -> Checkpoint:
        found = self._opened.get(rank)
        if found is None:
            found = self._opened[rank] = self._open_file(self.files[rank])
        return found

    def ordered(self, ranks: Sequence[int], rank: int) -> Iterator[int]:
        """Yield those of a stage's ranks whose files there are, the ones to be preferred first.

        rank: for which one of another job; its own number goes first, then what is open already.
        """
        devices = self.arrangement.stage_devices
        own = ranks[0] - ranks[0] % devices + rank % devices
        if own in ranks and own in self.files:
            yield own
        others = [other for other in ranks if other in self.files and other != own]
        opened = {other for other in others if other in self._opened}
        yield from (other for other in others if other in opened)
        yield from (other for other in others if other not in opened)

    def error(self, rank: int, name: str, what: str) -> ModelError:
        """Return the error for a parameter of a rank's file."""
        path = str(self.files[rank])
        return ModelError(f"{path}: parameter {name!r}: {what}", path)


@dataclass(frozen=True)
class Part:
    """A part of a parameter for one rank: its box of the whole, and which rank has which box."""

    spec: ToWrite
    box: Box
    chosen: Mapping[Box, int]  # ranks of the whole job

    @property
    def kind(self) -> str:
        """The type as the file calls it, of what is no plain tensor; else ""."""
        return self.spec.stored.kind if self.spec.stored is not None else ""


def needed_ranks(
    rank: int, source: Arrangement, target: Arrangement, names: Iterable[str] | None = None
) -> list[int]:
    """Return the ranks whose checkpoints a target rank needs, without looking at any file.

    names: the parameters that count; None for all that both strategies know. Of replicas that of
    the rank itself is taken, else one that is needed anyway. Raises ModelError where the two
    strategies do not fit each other.
    """
    stage, local = target.place(rank)
    if source.is_single:
        return [0]
    found: dict[int, None] = {}
    handled: set[tuple[int, Layout, Layout]] = set()
    own = rank % source.stage_devices
    for name in names if names is not None else _common(source, target, stage):
        of_target = target.stages(name).get(stage)
        if of_target is None:
            continue
        of_stage, layout = min(source.stages(name).items())
        if (of_stage, layout, of_target) in handled:
            continue
        handled.add((of_stage, layout, of_target))
        try:
            shape = _any_shape(layout, of_target)
            held = _held(layout, shape, _box(of_target, local, shape), source)
        except LayoutError as error:
            raise _unfit(name, source, target, error) from error
        first = of_stage * source.stage_devices
        for _, holding in held:
            ranks = [first + other for other in holding]
            if first + own in ranks:
                found[first + own] = None
            else:
                found[next((other for other in ranks if other in found), ranks[0])] = None
    return sorted(found) or [rank % source.stage_devices]


def _common(source: Arrangement, target: Arrangement, stage: int) -> list[str]:
    if target.is_single:
        return [name for of in range(source.stage_count) for name in source.names(of)]
    return [name for name in target.names(stage) if name in source]


def _box(layout: Layout, local: int, shape: Shape) -> Box:
    """Return what a rank is to hold; a layout of one device is that of every rank."""
    return layout.box(local if layout.device_count > 1 else 0, shape)


def _any_shape(one: Layout, other: Layout) -> Shape:
    """Return a shape that both layouts can split: which ranks overlap does not hang on sizes."""
    dims = max(len(one.tensor_map), len(other.tensor_map))
    shape = [lcm(a, b) for a, b in zip(one.divisors(dims), other.divisors(dims), strict=True)]
    for layout in (one, other):
        if layout.param_split_shape and shape:
            shape[layout.uneven_dim] = layout.divisors(dims)[layout.uneven_dim]
    return tuple(shape)


def _unfit(name: str, source: Arrangement, target: Arrangement, error: LayoutError) -> ModelError:
    return ModelError(
        f"parameter {name!r}: the layouts of {source.source} and {target.source} do not fit one "
        f"tensor: {error}",
        source.source,
    )


def part_for(name: str, rank: int, sources: Sources, target: Arrangement) -> Part | None:
    """Return what a target rank is to hold of a parameter, and where that is.

    None where its stage does not hold it, or where nobody has saved it.
    Raises ModelError naming file and parameter: where a needed part is in no file, where the files
    contradict their strategy, or the target's layout does not fit.
    """
    stage, local = target.place(rank)
    of_target = target.stages(name).get(stage)
    if of_target is None:
        return None
    source = sources.arrangement
    if name not in source and not source.is_single:
        return _same_in_all(name, rank, sources, of_target, local)
    found = _sample(name, rank, sources)
    if found is None:
        wanted = needed_ranks(rank, source, target, [name])
        absent = [other for other in wanted if other not in sources.files]
        if absent:
            raise _missing(name, rank, sources, absent)
        return None
    of_stage, layout, first_found = found
    sample = sources[first_found][name]
    if sample.dtype is None:
        return _opaque(name, [first_found], sources)
    try:
        shape = layout.whole_shape(sample.shape)
        boxes(layout, shape)
    except LayoutError as error:
        raise sources.error(
            first_found, name, f"{sample.dtype}{list(sample.shape)} does not fit its layout in "
            f"{source.source}: {error}",
        ) from error  # fmt: skip
    try:
        box = _box(of_target, local, shape)
    except LayoutError as error:
        raise ModelError(
            f"{target.source}: parameter {name!r} is {sample.dtype}{list(shape)}: {error}",
            target.source,
        ) from error
    first = of_stage * source.stage_devices
    chosen = {
        of: _holder(name, rank, sources, [first + other for other in holding])
        for of, holding in _held(layout, shape, box, source)
    }
    for of, other in (*chosen.items(), (None, first_found)):
        stored = sources[other][name]
        wanted_shape = shape_of(of or _box(layout, other - first, shape))
        if (stored.dtype, stored.shape) != (sample.dtype, wanted_shape):
            raise sources.error(
                other,
                name,
                f"expected {sample.dtype}{list(wanted_shape)}, as {sources.files[first_found]} and "
                f"{source.source} have it, got {stored.dtype}{list(stored.shape)}; it is another "
                "rank's or another model's file",
            )
    return Part(ToWrite(name, sample.dtype, shape_of(box)), box, chosen)


def _held(
    layout: Layout, shape: Shape, box: Box, arrangement: Arrangement
) -> Iterable[tuple[Box, Sequence[int]]]:
    """Return the boxes that `box` needs a part of, and the ranks of a stage that hold each."""
    held = overlapping(layout, shape, box)
    if layout.device_count > 1:
        return held
    return [(of, range(arrangement.stage_devices)) for of, _ in held]  # whole on each of them


def _sample(name: str, rank: int, sources: Sources) -> tuple[int, Layout, int] | None:
    """Return a stage that holds a parameter, its layout there, and a rank whose file has it.

    The files that are open already are looked into first, after the rank's own.
    """
    source = sources.arrangement
    for stage, layout in sorted(source.stages(name).items()):
        first = stage * source.stage_devices
        for other in sources.ordered(range(first, first + source.stage_devices), rank):
            if name in sources[other]:
                return stage, layout, other
    return None


def _holder(name: str, rank: int, sources: Sources, holding: Sequence[int]) -> int:
    """Return the one of several ranks, all with the same part, whose file is taken."""
    for other in sources.ordered(holding, rank):
        if name in sources[other]:
            return other
    raise _missing(name, rank, sources, holding)


def _missing(name: str, rank: int, sources: Sources, holders: Iterable[int]) -> ModelError:
    wanted = list(holders)
    given = [other for other in wanted if other in sources.files]
    needed = f"rank {wanted[0]}" if len(wanted) == 1 else f"one of ranks {wanted}"
    if not given:
        return ModelError(
            f"the checkpoint of {needed} is missing: rank {rank} needs its part of parameter "
            f"{name!r}; got those of ranks {sorted(sources.files)}"
        )
    path = str(sources.files[given[0]])
    return ModelError(
        f"{path}: has no parameter {name!r}, of which rank {rank} needs the part of {needed}; "
        f"{sources.arrangement.source} says that it is there: is this the file of that job?",
        path,
    )


def _same_in_all(
    name: str, rank: int, sources: Sources, of_target: Layout, local: int
) -> Part | None:
    """Return a part of a parameter that the strategy does not know: the same on all ranks.

    Raises ModelError where it is not: then it was split, and nobody says how.
    """
    ranks = [other for other in sorted(sources.files) if name in sources[other]]
    if not ranks:
        return None
    sample = sources[ranks[0]][name]
    for other in ranks[1:] if name not in sources.same else ():
        if not are_equal(sample, sources[other][name]):
            raise sources.error(
                other,
                name,
                f"differs from that in {sources.files[ranks[0]]}, but the strategy "
                f"{sources.arrangement.source} does not know it; a parameter that it does not know "
                "must be the same on all ranks: give the strategy that the job was trained with",
            )
    sources.same.add(name)
    if sample.dtype is None:
        return _opaque(name, ranks, sources)
    try:
        box = _box(of_target, local, sample.shape)
    except LayoutError as error:
        raise sources.error(ranks[0], name, str(error)) from error
    whole = tuple((0, size) for size in sample.shape)
    return Part(ToWrite(name, sample.dtype, shape_of(box)), box, {whole: ranks[0]})


def _opaque(name: str, ranks: list[int], sources: Sources) -> Part:
    """Return something that is no plain tensor, to be handed on as it is."""
    stored = sources[ranks[0]][name]
    if sources.arrangement.stages(name) and any(
        not layout.is_whole for layout in sources.arrangement.stages(name).values()
    ):
        raise sources.error(ranks[0], name, f"is {stored.kind!r}, and cannot be split or joined")
    return Part(ToWrite(name, None, stored.shape, stored), (), {(): ranks[0]})


def are_equal(one: Stored, other: Stored) -> bool:
    """Return whether two parameters are the same, byte by byte; no more than these is read."""
    if (one.dtype, one.shape, one.nbytes) != (other.dtype, other.shape, other.nbytes):
        return False
    return one.pieces == other.pieces or b"".join(one.pieces) == b"".join(other.pieces)


def value_of(part: Part, sources: Sources) -> Array:
    """Return the elements of a part: a view of a file where they lie in one, else a new array."""
    if len(part.chosen) == 1:
        [(held, rank)] = part.chosen.items()
        # Without a copy: the file's own bytes, or a part of them.
        whole = sources[rank][part.spec.name].array()
        return whole if held == part.box else whole[within(part.box, held)]
    assert part.spec.dtype is not None
    result = np.empty(part.spec.shape, part.spec.dtype.numpy)
    for held, rank in part.chosen.items():
        common = overlap(held, part.box)
        assert common is not None
        stored = sources[rank][part.spec.name].array()
        result[within(common, part.box)] = stored[within(common, held)]
    return result


def parts_for(
    rank: int, sources: Sources, target: Arrangement, passed: Iterable[int]
) -> Iterator[Part]:
    """Yield all that a target rank is to hold, in the order of the files.

    passed: the ranks whose files are looked through; what no strategy knows is passed on.
    A name that only the source's strategy knows is no parameter of the target, but
    the state of an optimizer or the like: it is left out.
    """
    source, stage = sources.arrangement, target.place(rank)[0]
    names: dict[str, None] = {}
    for other in passed:
        if other in sources.files:
            names.update(dict.fromkeys(sources[other].tensors))
    if not source.is_single:
        names.update(dict.fromkeys(_common(source, target, stage)))
    for name in names:
        if name in source and name not in target and not target.is_single:
            continue
        if part := part_for(name, rank, sources, target):
            yield part
