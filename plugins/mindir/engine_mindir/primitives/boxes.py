"""Bounding boxes of object detectors: IoU, non-maximum suppression, RoI pooling, decoding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from engine_mindir.emit import Emitter, Unsupported
from engine_mindir.primitives import primitive
from engine_mindir.primitives.axes import as_int, as_static
from engine_mindir.values import DType, Value


def _columns(g: Emitter, boxes: Value) -> list[Value]:
    """Return each coordinate of [..., 4] boxes as [..., 1]."""
    return [
        g.node("Slice", boxes, *map(g.ints, (column, column + 1, -1)), shape=(None, 1))
        for column in range(4)
    ]


@primitive("IOU")
def iou(g: Emitter, anchors: Value, truth: Value, *, mode: str = "iou") -> Value:
    """Return overlaps [m, n] of anchors [n, 4] and truth [m, 4]; sizes count both end pixels."""
    ax1, ay1, ax2, ay2 = (g.transpose(column, [1, 0]) for column in _columns(g, anchors))
    tx1, ty1, tx2, ty2 = _columns(g, truth)
    zero = g.constant(0, anchors.dtype)

    def side(low: Value, high: Value) -> Value:
        return g.node("Max", g.node("Add", g.node("Sub", high, low), 1), zero)

    width = side(g.node("Max", ax1, tx1), g.node("Min", ax2, tx2))
    height = side(g.node("Max", ay1, ty1), g.node("Min", ay2, ty2))
    shared = g.node("Mul", width, height)
    of_truth = g.node("Mul", side(tx1, tx2), side(ty1, ty2))
    if mode == "iof":
        return g.node("Div", shared, of_truth)
    of_anchors = g.node("Mul", side(ax1, ax2), side(ay1, ay2))
    return g.node("Div", shared, g.node("Sub", g.node("Add", of_truth, of_anchors), shared))


@primitive("NMSWithMask")
def nms_with_mask(
    g: Emitter, boxes: Value, *, iou_threshold: float = 0.5
) -> tuple[Value, Value, Value]:
    """Return boxes [n, 5] sorted by their score, their indices, and the mask of those kept."""
    count = g.dim(boxes, 0)
    scores = g.squeeze(g.node("Slice", boxes, *map(g.ints, (4, 5, 1)), shape=(None, 1)), (1,))
    top, order = g.nodes(
        "TopK", scores, g.ints(count), types=[(None, None), (DType.INT64, None)], axis=0
    )
    ordered = g.node("Gather", boxes, order, axis=0, shape=boxes.shape)
    corners = g.node("Slice", ordered, *map(g.ints, (0, 4, 1)))
    kept = g.node(
        "NonMaxSuppression", g.unsqueeze(corners, (0,)),
        g.reshape(top, (1, 1, -1)), g.ints(count), g.constant(np.array([iou_threshold], "f4")),
        dtype=DType.INT64, shape=(None, 3),
    )  # fmt: skip
    rows = g.node("Slice", kept, *map(g.ints, (2, 3, 1)), shape=(None, 1))
    none = g.node("Expand", g.constant(0, DType.INT32), g.ints(count))
    ones = g.node("Expand", g.constant(1, DType.INT32), g.node("Shape", rows, dtype=DType.INT64))
    mask = g.node("ScatterND", none, rows, g.squeeze(ones, (1,)))
    numbers = g.node(
        "Range", g.constant(0), g.scalar(count, DType.INT64), g.constant(1), dtype=DType.INT64
    )
    return ordered, g.cast(numbers, DType.INT32), g.cast(mask, DType.BOOL)


@primitive("ROIAlign")
def roi_align(
    g: Emitter, x: Value, rois: Value, *, pooled_height: Any, pooled_width: Any,
    spatial_scale: float, sample_num: Any = 2, roi_end_mode: Any = 1,
) -> Value:  # fmt: skip
    """Pool regions of interest; rois [n, 5]: image, x1, y1, x2, y2."""
    which = g.cast(g.squeeze(g.node("Slice", rois, *map(g.ints, (0, 1, 1))), (1,)), DType.INT64)
    boxes = g.node("Slice", rois, *map(g.ints, (1, 5, 1)))
    ends = g.constant(np.array([0, 0, roi_end_mode, roi_end_mode]), rois.dtype)
    return g.node(
        "RoiAlign", x, g.node("Add", boxes, ends), which, mode="avg",
        coordinate_transformation_mode="output_half_pixel", output_height=int(pooled_height),
        output_width=int(pooled_width), sampling_ratio=int(sample_num),
        spatial_scale=float(spatial_scale),
    )  # fmt: skip


@primitive("CropAndResize")
def crop_and_resize(
    g: Emitter, x: Value, boxes: Value, which: Value, size: Any, *, method: str = "bilinear",
    extrapolation_value: float = 0.0,
) -> Value:  # fmt: skip
    """x [n, height, width, channels]; boxes [m, 4] as parts of 1: y1, x1, y2, x2."""
    if method != "bilinear":
        raise Unsupported(f"CropAndResize by {method!r}")
    rows, columns = as_static(size)
    y1, x1, y2, x2 = _columns(g, boxes)

    def along(low: Value, high: Value, count: int) -> Value:
        """Return sampling positions [m, count] in 0 to 1."""
        if count == 1:
            return g.node("Mul", g.node("Add", low, high), 0.5)
        g.bounded(count)
        steps = g.constant(np.arange(count).reshape(1, -1) / (count - 1), boxes.dtype)
        return g.node("Add", low, g.node("Mul", g.node("Sub", high, low), steps))

    m = g.dim(boxes, 0)
    full = g.ints((m, rows, columns, 1))
    down = g.node("Expand", g.reshape(along(y1, y2, rows), (-1, rows, 1, 1)), full)
    right = g.node("Expand", g.reshape(along(x1, x2, columns), (-1, 1, columns, 1)), full)
    places = g.node("Concat", right, down, axis=-1)
    images = g.node("Gather", g.cast(x, DType.FLOAT32), g.cast(which, DType.INT64), axis=0)
    grid = g.node("Sub", g.node("Mul", places, 2.0), 1.0)
    y = g.node(
        "GridSample", g.node("Transpose", images, perm=[0, 3, 1, 2]), grid, mode="linear",
        padding_mode="border", align_corners=1,
    )  # fmt: skip
    inside = g.node(
        "And",
        g.node("GreaterOrEqual", places, g.constant(0, boxes.dtype), dtype=DType.BOOL),
        g.node("LessOrEqual", places, g.constant(1, boxes.dtype), dtype=DType.BOOL),
    )
    both = g.node("ReduceMin", g.cast(inside, DType.INT32), g.ints((3,)), keepdims=1)
    y = g.node("Transpose", y, perm=[0, 2, 3, 1])
    outside = g.constant(extrapolation_value, DType.FLOAT32)
    return g.node("Where", g.cast(both, DType.BOOL), y, outside, like=y)


def _centred(g: Emitter, boxes: Value) -> tuple[Value, Value, Value, Value]:
    """Return the centre and size of boxes, whose sizes count both end pixels."""
    x1, y1, x2, y2 = _columns(g, boxes)
    return (
        g.node("Mul", g.node("Add", x1, x2), 0.5), g.node("Mul", g.node("Add", y1, y2), 0.5),
        g.node("Add", g.node("Sub", x2, x1), 1.0), g.node("Add", g.node("Sub", y2, y1), 1.0),
    )  # fmt: skip


@primitive("BoundingBoxEncode")
def encode_boxes(
    g: Emitter, anchors: Value, truth: Value, *, means: Any = (0.0,) * 4, stds: Any = (1.0,) * 4
) -> Value:
    px, py, pw, ph = _centred(g, anchors)
    gx, gy, gw, gh = _centred(g, truth)
    deltas = g.node(
        "Concat",
        g.node("Div", g.node("Sub", gx, px), pw), g.node("Div", g.node("Sub", gy, py), ph),
        g.node("Log", g.node("Div", gw, pw)), g.node("Log", g.node("Div", gh, ph)), axis=-1,
    )  # fmt: skip
    apart = g.node("Sub", deltas, g.constant(np.array(means), anchors.dtype))
    return g.node("Div", apart, g.constant(np.array(stds), anchors.dtype))


@primitive("BoundingBoxDecode")
def decode_boxes(
    g: Emitter, anchors: Value, deltas: Value, *, max_shape: Any, means: Any = (0.0,) * 4,
    stds: Any = (1.0,) * 4, wh_ratio_clip: float = 0.016,
) -> Value:  # fmt: skip
    """Decode deltas to boxes, clipped to max_shape: the image's height and width."""
    scaled = g.node("Mul", deltas, g.constant(np.array(stds), deltas.dtype))
    dx, dy, dw, dh = _columns(g, g.node("Add", scaled, g.constant(np.array(means), deltas.dtype)))
    px, py, pw, ph = _centred(g, anchors)
    most = abs(math.log(wh_ratio_clip))
    edges: list[Value] = []
    for d, scale, middle, size in ((dx, dw, px, pw), (dy, dh, py, ph)):
        limits = g.constant(-most, d.dtype), g.constant(most, d.dtype)
        wide = g.node("Mul", size, g.node("Exp", g.node("Clip", scale, *limits)))
        centre = g.node("Add", middle, g.node("Mul", size, d))
        half = g.node("Mul", g.node("Sub", wide, 1.0), 0.5)
        edges += [g.node("Sub", centre, half), g.node("Add", centre, half)]
    height, width = (as_int(size) for size in as_static(max_shape))
    zero = g.constant(0, deltas.dtype)
    bounded = [
        g.node("Clip", edge, zero, g.constant(limit, deltas.dtype))
        for edge, limit in zip(edges, (width, width, height, height), strict=True)
    ]
    return g.node("Concat", bounded[0], bounded[2], bounded[1], bounded[3], axis=-1)
