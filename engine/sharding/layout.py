"""Places of the parts of one tensor: the rank that holds each box of it.

    layout = Layout(dev_matrix=(2, 4), tensor_map=(0, -1))
    layout.box(5, (16, 3))          # rank 5 holds rows 4 to 8: ((4, 8), (0, 3))

MindSpore's description: the ranks form a matrix of devices, and each dimension of the tensor is
either whole (-1) or split over one dimension of that matrix, counted from the right. Ranks that
differ only in other dimensions hold replicas. Where the optimizer's state is sharded too, a
replica holds only a part of its first dimension (opt_weight_shard_step and _size).

Plain arithmetic: no file, no framework. Ranks here are those of one pipeline stage, from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from math import prod
from typing import NamedTuple, TypeAlias

Shape: TypeAlias = "tuple[int, ...]"
Box: TypeAlias = "tuple[tuple[int, int], ...]"
"""Start and end in each dimension of a tensor; () for a scalar."""

MOST_DEVICES = 1 << 17  # of one stage: a damaged file must not keep us counting
MOST_DIMS = 64  # of a device matrix, and of a tensor, as numpy has it


class LayoutError(ValueError):
    """A layout contradicts itself, or does not fit a tensor. The message says how."""


class NodeStrategy(NamedTuple):
    """Strategy of one operator: for each input, into how many slices each dimension is split."""

    inputs: tuple[tuple[int, ...], ...]
    stage: int = 0


class Layout(NamedTuple):
    """The layout of one tensor. The first seven fields are MindSpore's list, in its order.

    dev_matrix: sizes of the matrix of devices; the last varies fastest from rank to rank.
    tensor_map: for each dimension of the tensor -1, or a dimension of dev_matrix counted from the
        right; () for a tensor that is whole on each rank.
    param_split_shape: rows of each slice, where they differ; () for an even split. Where rows are
        not split and the sizes differ, they are those along the one dimension that is.
    field_size: columns that were interleaved when a table was split (EmbeddingLookup); 0 for none.
    opt_weight_shard_step, opt_weight_shard_size: of the ranks that hold one slice, each `size` that
        are `step` apart share it: each holds one part of its first dimension. 0 for none; a size
        of -1 means as many as there are.
    pipeline_stages: the stages whose ranks hold the tensor.
    indices_offset, tensor_shape: what a strategy file says beside; kept, not used.
    """

    dev_matrix: Shape = (1,)
    tensor_map: Shape = ()
    param_split_shape: Shape = ()
    field_size: int = 0
    opt_weight_shard_step: int = 0
    opt_weight_shard_size: int = 0
    pipeline_stages: Shape = (0,)
    indices_offset: Shape = ()
    tensor_shape: Shape = ()

    @property
    def device_count(self) -> int:
        """Number of ranks of a stage."""
        return prod(self.dev_matrix)

    @property
    def optimizer_shard(self) -> tuple[int, int]:
        """(step, size) of the optimizer's sharding; (1, 1) where there is none."""
        step, size = self.opt_weight_shard_step, self.opt_weight_shard_size
        if step == 0 or size == 0:
            return 1, 1
        if step == -1:
            step = prod(self.counts(len(self.tensor_map)))
        return step, max(1, self.device_count // step) if size == -1 else size

    @property
    def is_whole(self) -> bool:
        """True where each rank holds the whole tensor."""
        return prod(self.counts(len(self.tensor_map))) * self.optimizer_shard[1] == 1

    def counts(self, dims: int) -> Shape:
        """Return into how many slices each of the tensor's dimensions is split.

        Without the optimizer's sharding. Raises LayoutError for another number of dimensions.
        """
        if not self.tensor_map:
            return (1,) * dims
        if len(self.tensor_map) != dims:
            raise LayoutError(
                f"its tensor map {list(self.tensor_map)} has {len(self.tensor_map)} entries, but "
                f"the tensor has {dims} dimensions"
            )
        return tuple(1 if index < 0 else self.dev_matrix[-1 - index] for index in self.tensor_map)

    def divisors(self, dims: int) -> Shape:
        """Return what each dimension of the whole tensor must be divisible by.

        Where slices have rows of their own number (param_split_shape) that is the number of all.
        """
        divisors = list(self.counts(dims))
        if dims:
            divisors[0] *= self.optimizer_shard[1]
            if self.param_split_shape:
                at = self.uneven_dim
                divisors[at] = sum(self._sizes(divisors[at]))
        return tuple(divisors)

    @property
    def uneven_dim(self) -> int:
        """The dimension of the tensor along which `param_split_shape` gives the sizes of slices."""
        counts = self.counts(len(self.tensor_map))
        split = [dim for dim, count in enumerate(counts) if count > 1]
        return split[0] if len(split) == 1 and len({*self.param_split_shape}) > 1 else 0

    def whole_shape(self, slice_shape: Sequence[int]) -> Shape:
        """Return the shape of the whole tensor, given that of a slice. Raises LayoutError."""
        dims = len(slice_shape)
        whole = [size * count for size, count in zip(slice_shape, self.counts(dims), strict=True)]
        if dims:
            whole[0] *= self.optimizer_shard[1]
            if self.param_split_shape:
                at = self.uneven_dim
                whole[at] = sum(self._sizes(self.counts(dims)[at]))
        return tuple(whole)

    def box(self, rank: int, shape: Sequence[int]) -> Box:
        """Return the part of a tensor of this shape that a rank holds. Raises LayoutError."""
        return boxes(self, tuple(shape))[rank]

    def coordinates(self, rank: int) -> Shape:
        """Return the number of a rank's slice in each dimension of the tensor."""
        place = []
        for size in reversed(self.dev_matrix):
            rank, position = divmod(rank, size)
            place.append(position)
        return tuple(0 if index < 0 else place[index] for index in self.tensor_map)

    def check(self) -> None:
        """Raise LayoutError unless the layout says for every rank what it holds."""
        _check(self)

    def _sizes(self, count: int) -> Shape:
        """Return the size of each of `count` slices along `uneven_dim`."""
        sizes = self.param_split_shape
        others, rest = divmod(len(sizes), count)
        rows = sizes[::others] if others and not rest else ()
        if len(rows) != count or any(
            sizes[index] != rows[index // others] for index in range(len(sizes))
        ):
            raise LayoutError(
                f"its param_split_shape {list(sizes)} does not give one number of rows for each of "
                f"{count} slices"
            )
        return rows


def _slices(layout: Layout, shape: Shape) -> list[list[tuple[int, int]]]:
    """Return start and end of each slice in each dimension, optimizer's sharding left out."""
    counts = layout.counts(len(shape))
    found = []
    for dim, (size, count) in enumerate(zip(shape, counts, strict=True)):
        if layout.param_split_shape and dim == layout.uneven_dim:
            ends = list(accumulate(layout._sizes(count)))
            if ends[-1] != size:
                raise LayoutError(
                    f"its param_split_shape {list(layout.param_split_shape)} gives {ends[-1]} in "
                    f"dimension {dim}, but the tensor has {size}"
                )
            found.append(list(zip([0, *ends[:-1]], ends, strict=True)))
            continue
        if size % count:
            raise LayoutError(f"dimension {dim} of {list(shape)} cannot be split {count} ways")
        step = size // count
        found.append([(index * step, (index + 1) * step) for index in range(count)])
    return found


@lru_cache(4096)
def boxes(layout: Layout, shape: Shape) -> tuple[Box, ...]:
    """Return the box of each rank of a tensor of this shape. Raises LayoutError."""
    layout.check()
    if layout.field_size:
        raise LayoutError(
            f"it has field_size {layout.field_size}: a table whose columns were interleaved is no "
            "box of the whole; merge it with merge_sliced_parameter"
        )
    slices = _slices(layout, shape)
    step, size = layout.optimizer_shard
    found = []
    for rank in range(layout.device_count):
        place = layout.coordinates(rank) or (0,) * len(shape)
        box = [slices[dim][index] for dim, index in enumerate(place)]
        if size > 1:
            if not box:
                raise LayoutError(f"a scalar cannot be sharded {size} ways by the optimizer")
            start, end = box[0]
            if (end - start) % size:
                raise LayoutError(
                    f"the {end - start} rows of a slice of {list(shape)} cannot be sharded {size} "
                    "ways by the optimizer"
                )
            part = (end - start) // size
            start += rank // step % size * part
            box[0] = (start, start + part)
        found.append(tuple(box))
    return tuple(found)


@lru_cache(4096)
def holders(layout: Layout, shape: Shape) -> dict[Box, tuple[int, ...]]:
    """Return the ranks that hold each box of a tensor of this shape. Raises LayoutError."""
    found: dict[Box, list[int]] = {}
    for rank, box in enumerate(boxes(layout, shape)):
        found.setdefault(box, []).append(rank)
    return {box: tuple(ranks) for box, ranks in found.items()}


@lru_cache(4096)
def overlapping(layout: Layout, shape: Shape, target: Box) -> tuple[tuple[Box, Shape], ...]:
    """Return the boxes of a tensor that `target` needs a part of, and the ranks that hold each."""
    return tuple(
        (box, ranks)
        for box, ranks in holders(layout, shape).items()
        if overlap(box, target) is not None
    )


@lru_cache(4096)
def _check(layout: Layout) -> None:
    devices, depth = layout.dev_matrix, len(layout.dev_matrix)
    if not devices or any(size < 1 for size in devices):
        raise LayoutError(f"its device matrix is {list(devices)}; expected sizes of 1 or more")
    if max(depth, len(layout.tensor_map)) > MOST_DIMS:
        raise LayoutError(
            f"its device matrix has {depth:,} dimensions and its tensor map "
            f"{len(layout.tensor_map):,}; at most {MOST_DIMS} are expected"
        )
    # By its sizes first: Python writes no number of any length.
    if max(devices) > MOST_DEVICES or layout.device_count > MOST_DEVICES:
        raise LayoutError(
            f"its device matrix {str(list(devices))[:60]} is of too many devices; at most "
            f"{MOST_DEVICES:,} are expected"
        )
    used = [index for index in layout.tensor_map if index != -1]
    for index in used:
        if not 0 <= index < depth:
            raise LayoutError(
                f"its tensor map {list(layout.tensor_map)} names dimension {index} of a device "
                f"matrix of {depth}; expected -1 to {depth - 1}"
            )
    if len({*used}) < len(used):
        raise LayoutError(
            f"its tensor map {list(layout.tensor_map)} splits two dimensions over the same devices"
        )
    if layout.opt_weight_shard_step < -1 or layout.opt_weight_shard_size < -1:
        raise LayoutError(
            f"its optimizer shard is {layout.opt_weight_shard_size} parts at step "
            f"{layout.opt_weight_shard_step}; expected -1 or more"
        )
    step, size = layout.optimizer_shard
    if size <= 1:
        return
    for first in range(layout.device_count):
        if first // step % size:
            continue  # in the group of one before it
        group = range(first, first + size * step, step)
        place = layout.coordinates(first)
        if group[-1] >= layout.device_count or any(
            layout.coordinates(member) != place for member in group
        ):
            raise LayoutError(
                f"its optimizer shard puts {size} parts on ranks {step} apart, but these do not "
                f"all hold the same slice (device matrix {list(devices)}, tensor map "
                f"{list(layout.tensor_map)})"
            )


def shape_of(box: Box) -> Shape:
    """Return the shape of a box."""
    return tuple(end - start for start, end in box)


def overlap(one: Box, other: Box) -> Box | None:
    """Return what two boxes have in common; None for nothing."""
    both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return None if any(start >= end for start, end in both) else both


def within(box: Box, outer: Box) -> tuple[slice, ...]:
    """Return the index of a box inside an array that holds `outer`."""
    return tuple(
        slice(start - first, end - first)
        for (start, end), (first, _) in zip(box, outer, strict=True)
    )
