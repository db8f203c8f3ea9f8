"""Resizing and sampling images."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine_mindir.emit import MAX_ELEMENTS, Emitter, Unsupported
from engine_mindir.primitives import primitive
from engine_mindir.primitives.axes import as_static
from engine_mindir.primitives.convolution import check_layout
from engine_mindir.values import FLOATS, DType, Value


def _resize(
    g: Emitter, x: Value, size: Any, mode: str, coordinates: str, nearest: str = "floor",
    **attributes: Any,
) -> Value:  # fmt: skip
    size = as_static(size)
    count = len(size) if isinstance(size, tuple) else 2
    work = (
        x
        if x.dtype in (DType.FLOAT32, DType.UINT8, DType.INT8, DType.INT32)
        else g.cast(x, DType.FLOAT32)
    )
    if isinstance(size, tuple):
        axes = list(range(g.rank(x) - count, g.rank(x)))
        target = g.node("Concat", g.shape_part(x, 0, axes[0]), g.ints(size), axis=0)
    else:
        target = g.node("Concat", g.shape_part(x, 0, g.rank(x) - 2), g.ints(size), axis=0)
    y = g.node(
        "Resize", work, None, None, target, mode=mode,
        coordinate_transformation_mode=coordinates,
        nearest_mode=nearest if mode == "nearest" else None, **attributes,
    )  # fmt: skip
    return g.cast(y, x.dtype)


def _coordinates(align_corners: Any, half_pixel: Any) -> str:
    if align_corners:
        return "align_corners"
    return "half_pixel" if half_pixel else "asymmetric"


def _nearest(g: Emitter, x: Value, size: Any, align_corners: Any, half_pixel: Any) -> Value:
    """Resize to nearest neighbours; by a Gather with MindSpore's formula where sizes are known."""
    size = as_static(size)
    if not isinstance(size, tuple) or x.shape is None:
        return _resize(
            g,
            x,
            size,
            "nearest",
            _coordinates(align_corners, half_pixel),
            "round_prefer_ceil" if align_corners else "floor",
        )
    first = g.rank(x) - len(size)
    for position, new in enumerate(size):
        axis = first + position
        old = x.shape[axis] if x.shape is not None else None
        if old is None or not isinstance(new, int):
            return _resize(
                g,
                x,
                size,
                "nearest",
                _coordinates(align_corners, half_pixel),
                "round_prefer_ceil" if align_corners else "floor",
            )
    for position, new in enumerate(size):
        axis = first + position
        assert x.shape is not None
        old = int(x.shape[axis] or 0)
        if old == new:
            continue
        g.bounded(new)
        coordinates = np.arange(new, dtype=np.float32)
        if align_corners and new > 1:
            picked = np.floor(coordinates * np.float32((old - 1) / (new - 1)) + np.float32(0.5))
        elif half_pixel:
            picked = np.floor((coordinates + np.float32(0.5)) * np.float32(old / new))
        else:
            picked = np.floor(coordinates * np.float32(old / new))
        index = np.minimum(picked.astype(np.int64), old - 1)
        shape = tuple(new if a == axis else dim for a, dim in enumerate(x.shape))
        x = g.node("Gather", x, g.constant(index), axis=axis, shape=shape)
    return g.node("Identity", x)


@primitive("ResizeNearestNeighbor", "ResizeNearestNeighborV2")
def nearest(
    g: Emitter, x: Value, size: Any, align_corners: Any = False, half_pixel_centers: Any = False, *,
    format: Any = "NCHW",
) -> Value:  # fmt: skip
    check_layout(format)
    return _nearest(g, x, size, align_corners, half_pixel_centers)


@primitive("UpsampleNearest1D", "UpsampleNearest2D", "UpsampleNearest3D")
def upsample_nearest(g: Emitter, x: Value, output_size: Any = None, scales: Any = None) -> Value:
    return _nearest(g, x, _target(g, x, output_size, scales), False, False)


def _target(g: Emitter, x: Value, size: Any, scales: Any) -> Any:
    if size is not None:
        return size
    declared = getattr(g.result, "shape", None)
    if declared is None or None in declared[2:]:
        raise Unsupported("an upsampling to an unknown size")
    return tuple(declared[2:])


@primitive("ResizeBilinear", "ResizeBilinearV2")
def bilinear(
    g: Emitter, x: Value, size: Any, align_corners: Any = False, half_pixel_centers: Any = False, *,
    format: Any = "NCHW",
) -> Value:  # fmt: skip
    check_layout(format)
    return _resize(g, x, size, "linear", _coordinates(align_corners, half_pixel_centers))


@primitive("UpsampleBilinear2D", "UpsampleLinear1D", "UpsampleTrilinear3D")
def upsample_linear(
    g: Emitter, x: Value, output_size: Any = None, scales: Any = None, align_corners: Any = False
) -> Value:
    return _resize(
        g, x, _target(g, x, output_size, scales), "linear", _coordinates(align_corners, True)
    )


@primitive("ResizeLinear1D")
def linear_1d(
    g: Emitter, x: Value, size: Any, coordinate_transformation_mode: Any = "align_corners"
) -> Value:
    mode = coordinate_transformation_mode
    names = {0: "asymmetric", 1: "align_corners", 2: "half_pixel"}
    return _resize(g, x, size, "linear", names.get(mode, mode))


def _cubic(g: Emitter, old: int, new: int, align_corners: bool, half: bool) -> np.ndarray[Any, Any]:
    """Return the matrix float32[new, old] that resizes one axis as MindSpore does.

    Places between pixels are rounded to 1/1024, for which it keeps a table of coefficients.
    """
    g.bounded(max(old, 1), new)
    a = -0.5 if half else -0.75
    steps = np.arange(1025, dtype=np.float64) / 1024
    near = ((a + 2) * steps - (a + 3)) * steps * steps + 1
    far_steps = steps + 1
    far = ((a * far_steps - 5 * a) * far_steps + 8 * a) * far_steps - 4 * a
    scale = np.float32((old - 1) / (new - 1) if align_corners and new > 1 else old / new)
    coordinates = np.arange(new, dtype=np.float32)
    sources = (
        (coordinates + np.float32(0.5)) * scale - np.float32(0.5) if half else coordinates * scale
    )
    first = np.floor(sources).astype(np.int64)
    offset = np.rint((sources - first) * 1024).astype(np.int64)
    weights = np.stack([far[offset], near[offset], near[1024 - offset], far[1024 - offset]])
    columns = first + np.arange(-1, 3)[:, None]
    if half:
        weights = np.where((columns >= 0) & (columns < old), weights, 0)
        weights /= weights.sum(0)
    matrix = np.zeros((new, old), np.float32)
    for row_weights, row_columns in zip(weights, columns.clip(0, old - 1), strict=True):
        np.add.at(matrix, (np.arange(new), row_columns), row_weights.astype(np.float32))
    return matrix


@primitive("ResizeBicubic")
def bicubic(
    g: Emitter, x: Value, size: Any, align_corners: Any = False, half_pixel_centers: Any = False
) -> Value:
    """Resize by cubic convolution; a = -0.5 with outside excluded for half pixels, else -0.75."""
    half = bool(half_pixel_centers)
    size = as_static(size)
    old = x.shape[2:] if x.shape is not None else (None,)
    if (
        None not in old
        and isinstance(size, tuple)
        and all(type(dim) is int for dim in size)
        and not any(
            MAX_ELEMENTS < int(before or 0) * after <= 16 * MAX_ELEMENTS
            for before, after in zip(old, size, strict=True)
        )
    ):
        rows, columns = (
            _cubic(g, int(before or 0), after, bool(align_corners), half)
            for before, after in zip(old, size, strict=True)
        )
        y = g.cast(x, DType.FLOAT32)
        y = g.node("MatMul", g.node("MatMul", g.constant(rows), y, like=y), g.constant(columns.T))
        return g.cast(y, x.dtype)
    return _resize(
        g, x, size, "cubic", _coordinates(align_corners, half),
        cubic_coeff_a=-0.5 if half else -0.75, exclude_outside=1 if half else 0,
    )  # fmt: skip


@primitive("UpsampleBicubic2D")
def upsample_bicubic(
    g: Emitter, x: Value, output_size: Any = None, scales: Any = None, align_corners: Any = False
) -> Value:
    return _resize(
        g,
        x,
        _target(g, x, output_size, scales),
        "cubic",
        _coordinates(align_corners, True),
        cubic_coeff_a=-0.75,
    )


@primitive("Resize")
def resize(
    g: Emitter, x: Value, size: Any, *, method: Any = 0, coordinate_transform_mode: Any = 0,
    cubic_coeff: float = -0.75, exclude_outside: Any = 0, nearest_mode: Any = 0,
    format: Any = "NCHW",
) -> Value:  # fmt: skip
    """Lower MindSpore Lite's fused Resize: method 0 linear, 1 nearest, 2 cubic."""
    check_layout(format)
    method = {"linear": 0, "nearest": 1, "cubic": 2}.get(method, method)
    coordinates = {0: "asymmetric", 1: "align_corners", 2: "half_pixel"}[
        int(coordinate_transform_mode)
    ]
    mode = {0: "linear", 1: "nearest", 2: "cubic"}[int(method)]
    size = as_static(size)
    if isinstance(size, Value) and size.dtype in FLOATS:
        raise Unsupported("a Resize by computed scales")
    if isinstance(size, tuple) and len(size) == 4:
        size = size[2:]
    return _resize(g, x, size, mode, coordinates)


@primitive("GridSampler2D", "GridSampler3D")
def grid_sampler(
    g: Emitter, x: Value, grid: Value, interpolation_mode: Any = 0, padding_mode: Any = 0,
    align_corners: Any = False,
) -> Value:  # fmt: skip
    modes = {
        0: "linear",
        1: "nearest",
        2: "cubic",
        "bilinear": "linear",
        "nearest": "nearest",
        "bicubic": "cubic",
    }
    pads = {0: "zeros", 1: "border", 2: "reflection"}
    return g.node(
        "GridSample", x, grid, mode=modes[interpolation_mode],
        padding_mode=pads.get(padding_mode, padding_mode), align_corners=int(bool(align_corners)),
    )  # fmt: skip


@primitive("AffineGrid")
def affine_grid(g: Emitter, theta: Value, size: Any, align_corners: Any = False) -> Value:
    """Sampling position in the image of each result element; theta [n, 2, 3] or [n, 3, 4]."""
    return g.node(
        "AffineGrid", theta, g.ints(as_static(size)), align_corners=int(bool(align_corners))
    )
