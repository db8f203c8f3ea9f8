"""Rewritten models compute the same, within the bound of each pattern; what only looks alike stays.

Every pattern draws graphs that it matches, and graphs that differ from these in one respect.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import engine
from engine import Model
from engine.backends import open_backend
from engine.errors import EngineError
from engine.formats import open_source
from engine.types import CompileOptions, Device, NodeState
from engine_cpu.compiled import compiled_key
from engine_cpu.rewrites import PATTERNS, key, patterns

Build = Callable[..., Model]
Array = np.ndarray[Any, Any]
Random = np.random.Generator
node = helper.make_node

SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 1e-39, -1e-39, 3e38, -3e38, 0.3, -0.3],
    np.float32,
)


class Drawn(NamedTuple):
    """A graph. expected: its result in float64, where it may differ from the original's."""

    nodes: list[Any]
    inputs: list[str]
    constants: dict[str, Any]
    feeds: dict[str, Array]
    expected: Array | None = None
    opset: int = 17
    outputs: tuple[str, ...] = ("y:float[]",)


def image(random: Random, channels: int, special: bool = False) -> Array:
    shape = (int(random.integers(1, 3)), channels, *random.integers(1, 9, 2).tolist())
    if special:
        return random.choice(SPECIAL, shape).astype(np.float32)
    return random.standard_normal(shape).astype(np.float32)


def with_conv(random: Random, drawn: Drawn, channels: int) -> Drawn:
    """The same behind a convolution that keeps every value; with a kernel after it, or none."""
    ones = np.ones((channels, 1, 1, 1), np.float32)
    conv = node("Conv", ["image", "ones"], ["x"], group=channels, name="conv")
    inputs = [text.replace("x:", "image:") for text in drawn.inputs]
    feeds = {("image" if name == "x" else name): value for name, value in drawn.feeds.items()}
    constants = {**drawn.constants, "ones": ones}
    nodes = [conv, *drawn.nodes]
    return drawn._replace(nodes=nodes, inputs=inputs, constants=constants, feeds=feeds)


def draw_prelu(random: Random, near: bool) -> Drawn:
    channels = int(random.choice([1, 3, 8, 16, 17, 32]))
    slopes = random.standard_normal(channels).astype(np.float32).reshape(channels, 1, 1)
    slopes = slopes * float(random.choice([1.0, 1.0, 0.0]))
    slopes = slopes if random.random() < 0.5 else slopes[None]
    x = image(random, channels, special=True)
    feeds, constants = {"x": x}, {"slope": slopes}
    drawn = Drawn([node("PRelu", ["x", "slope"], ["y"], name="p")],
                  [f"x:float[n,{channels},h,w]"], constants, feeds)  # fmt: skip
    if not near:
        if random.random() < 0.7:
            return with_conv(random, drawn, channels)
        height, width = x.shape[2:]
        return drawn._replace(inputs=[f"x:float[n,{channels},{height},{width}]"])
    kind = random.integers(6)
    if kind == 0:  # of any size, as no Conv has it: it may be empty
        return drawn._replace(feeds={"x": x[:, :, :0]} if random.random() < 0.5 else feeds)
    if kind == 1:  # a caller's
        return with_conv(random, drawn._replace(
            inputs=[*drawn.inputs, f"slope:float[{channels},1,1]"], constants={},
            feeds={**feeds, "slope": slopes.reshape(channels, 1, 1)}), channels)  # fmt: skip
    if kind == 2:  # a slope that is no number
        return with_conv(random, drawn._replace(constants={"slope": slopes * np.float32(np.nan)}),
                         channels)  # fmt: skip
    if kind == 3:  # a slope for each column
        columns = random.standard_normal((1, 1, 1, x.shape[3])).astype(np.float32)
        columns[..., -1] += 1
        columns = np.concatenate([columns, columns + 1], 3)
        x = np.concatenate([x, x], 3)
        return with_conv(random, drawn._replace(constants={"slope": columns}, feeds={"x": x}),
                         channels)  # fmt: skip
    if kind == 4:  # in float64
        return drawn._replace(inputs=[f"x:double[1,{channels},2,2]"],
                              constants={"slope": slopes.astype(np.float64)},
                              feeds={"x": np.ones((1, channels, 2, 2))},
                              outputs=("y:double[]",))  # fmt: skip
    wide = x[..., 0]  # a sequence, of rank 3
    return drawn._replace(inputs=[f"x:float[n,{channels},3]"],
                          constants={"slope": slopes.reshape(channels, 1)},
                          feeds={"x": np.repeat(wide[:, :, :1], 3, 2)})  # fmt: skip


def draw_leaky_relu(random: Random, near: bool) -> Drawn:
    channels = int(random.choice([1, 3, 8, 16, 17]))
    x = image(random, channels, special=True)
    slope = float(random.choice([0.25, -0.5, 0.0, -0.0, 1e-40, 3e38, random.standard_normal()]))
    shape = [(1,), (1, 1, 1), (channels, 1, 1), ()][random.integers(4)]
    slopes = np.full(shape, slope, np.float32)
    drawn = Drawn([node("PRelu", ["x", "slope"], ["y"], name="p")],
                  [f"x:float[n,{channels},h,w]"], {"slope": slopes}, {"x": x})  # fmt: skip
    if not near:
        return with_conv(random, drawn, channels) if random.random() < 0.5 else drawn
    kind = random.integers(4)
    if kind == 0:
        slopes = np.full(shape, random.choice([np.nan, np.inf, -np.inf]), np.float32)
    elif kind == 1:  # zeros of both signs
        slopes = np.array([0.0, -0.0] * 4, np.float32).reshape(8, 1, 1)
        return drawn._replace(inputs=["x:float[n,8,h,w]"], constants={"slope": slopes},
                              feeds={"x": image(random, 8, special=True)})  # fmt: skip
    elif kind == 2:
        return drawn._replace(inputs=[*drawn.inputs, f"slope:float[{channels},1,1]"], constants={},
                              feeds={"x": x, "slope": np.full((channels, 1, 1), slope, "f")},
                              )  # fmt: skip
    else:
        return drawn._replace(inputs=["x:double[n,c,h,w]"], outputs=("y:double[]",),
                              constants={"slope": slopes.astype(np.float64)},
                              feeds={"x": x.astype(np.float64)})  # fmt: skip
    return drawn._replace(constants={"slope": slopes})


def draw_hard_swish(random: Random, near: bool) -> Drawn:
    opset = int(random.choice([9, 11, 13, 17]))
    x = image(random, int(random.choice([1, 3, 8, 16]))) * 4
    rank = int(random.integers(2, 5))
    x = np.ascontiguousarray(x[(0,) * (4 - rank)])
    kind = int(random.integers(9)) if near else -1
    three, low, high, six = np.float32([3, 0, 6, 6])
    if kind == 0:
        three = np.nextafter(three, np.float32(4))
    elif kind == 1:
        low = np.float32(0.1)
    elif kind == 2:
        high = np.float32(5.9)
    elif kind == 3:
        six = np.float32(5)
    is_swish, is_first, is_product = (bool(random.integers(2)) for _ in range(3))
    shape = (1,) * random.integers(0, rank + 1) if kind != 4 else (1,) * (rank + 1)
    constants = {"three": np.full(shape, three),
                 "six": np.full(shape, 1 / six if is_product else six, np.float32)}  # fmt: skip
    limits: dict[str, Any] = {"min": float(low), "max": float(high)} if opset < 11 else {}
    if not limits:
        constants |= {"low": low, "high": high}
    names = [] if limits else ["low", "high"]
    order = ["x", "three"] if random.random() < 0.5 else ["three", "x"]
    nodes = [node("Sub" if kind == 5 else "Add", order, ["a"])]
    nodes.append(node("Clip", ["a", *names], ["c"], **limits))

    def sixth(name: str, out: str) -> Any:
        if is_product:
            return node("Mul", [name, "six"] if random.random() < 0.5 else ["six", name], [out])
        return node("Div", ["six", name] if kind == 6 else [name, "six"], [out])

    def product(name: str, out: str) -> Any:
        return node("Mul", ["x", name] if random.random() < 0.5 else [name, "x"], [out])

    if kind == 6:
        is_product = False
    if not is_swish:
        nodes.append(sixth("c", "y"))
    elif is_first:
        nodes += [sixth("c", "d"), product("d", "y")]
    else:
        nodes += [product("c", "d"), sixth("d", "y")]
    outputs = ["y:float[]"]
    if kind == 7:  # somebody else reads what would go
        outputs.append("a:float[]")
    elif kind == 8:
        outputs.append("z:float[]")
        nodes.append(node("Neg", ["c"], ["z"]))
    sizes = ",".join(f"d{axis}" for axis in range(rank))
    gate = np.clip(x.astype(np.float64) + 3, 0, 6) / 6
    expected = gate * x if is_swish else gate
    drawn = Drawn(nodes, [f"x:float[{sizes}]"], constants, {"x": x}, expected, opset, (*outputs,))
    return with_conv(random, drawn, x.shape[1]) if rank == 4 and not near else drawn


def convolved(x: Array, weights: Array, bias: Array, group: int, pad: int) -> Array:
    """Conv in float64, by ONNX's definition."""
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    size = weights.shape[2]
    windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), (2, 3))
    windows = windows.reshape(len(x), group, -1, *windows.shape[2:])
    grouped = weights.astype(np.float64).reshape(group, -1, *weights.shape[1:])
    y = np.einsum("bgihwkl,goikl->bgohw", windows, grouped)
    return y.reshape(len(x), -1, *y.shape[3:]) + bias[:, None, None]


def scales_and_shifts(
    random: Random, count: int, channels: int, names: tuple[str, str], has_shifts: bool = True
) -> tuple[list[Any], dict[str, Array], list[Callable[[Array], Array]]]:
    """Nodes from one name to another, their constants, and the steps in float64."""
    nodes, constants, steps = [], {}, []
    start, end = names
    for i in range(count):
        operator = str(random.choice(["Mul", "Div", "Add", "Sub"] if has_shifts else ["Mul"]))
        shape = [(), (1,), (1, 1, 1), (channels, 1, 1), (1, channels, 1, 1)][random.integers(5)]
        constant = random.choice([-1, 1], shape) * random.uniform(0.5, 2, shape)
        constant = np.asarray(constant, np.float32)
        name = f"{start}_k{i}"
        constants[name] = constant
        out = end if i == count - 1 else f"{start}_{i}"
        is_first = operator != "Div" and random.random() < 0.5
        given = [name, start] if is_first else [start, name]
        if i:
            given = [f"{names[0]}_{i - 1}" if text == start else text for text in given]
        nodes.append(node(operator, given, [out]))
        if random.random() < 0.2:  # tools leave these
            nodes[-1].output[0] += "_raw"
            nodes.append(node("Identity", [f"{out}_raw"], [out]))
        k = constant.astype(np.float64)
        steps.append({
            "Mul": lambda x, k=k: x * k,
            "Div": lambda x, k=k: x / k,
            "Add": lambda x, k=k: x + k,
            "Sub": lambda x, k=k, is_first=is_first: k - x if is_first else x - k,
        }[operator])  # fmt: skip
    return nodes, constants, steps


def draw_affine(random: Random, near: bool) -> Drawn:
    group = int(random.choice([1, 1, 2, 4]))
    channels, filters = group * int(random.integers(1, 5)), group * int(random.integers(1, 9))
    size, pad = int(random.choice([1, 3])), int(random.integers(2))
    x = random.standard_normal((2, channels, 7, 5)).astype(np.float32)
    shape = (filters, channels // group, size, size)
    weights = random.standard_normal(shape).astype(np.float32)
    bias = random.standard_normal(filters).astype(np.float32) * int(random.integers(2))
    before, after = (0, 1) if near else [(0, 1), (0, 3), (1, 0), (2, 0), (2, 2)][random.integers(5)]
    first, constants, steps = scales_and_shifts(random, before, channels, ("x", "a"), not pad)
    last, more, later = scales_and_shifts(random, after, filters, ("c", "y"))
    while not (before or near) and {made.op_type for made in last} <= {"Add", "Identity"}:
        last, more, later = scales_and_shifts(random, after, filters, ("c", "y"))
    constants |= {**more, "w": weights}
    conv = node("Conv", ["a" if before else "x", "w"], ["c" if after else "y"], group=group,
                pads=[pad] * 4)  # fmt: skip
    if bias.any():
        constants["b"] = bias
        conv.input.append("b")
    inputs, feeds, outputs = [f"x:float[n,{channels},h,w]"], {"x": x}, ["y:float[]"]
    if near:
        kind = random.integers(6)
        if kind == 0:  # a caller's
            name = next(iter(more))
            inputs.append(f"{name}:float[{','.join(map(str, more[name].shape))}]")
            feeds[name] = constants.pop(name)
        elif kind == 1:  # somebody else reads the Conv's result
            outputs.append("c:float[]")
        elif kind == 2:  # a number for each column
            width = 5 + 2 * pad - size + 1
            constants["c_k0"] = random.uniform(1, 2, (1, 1, 1, width)).astype(np.float32)
        elif kind == 3:  # weights of a caller
            inputs.append(f"w:float[{','.join(map(str, shape))}]")
            feeds["w"] = constants.pop("w")
        elif kind == 4:  # a bias, for ONNX Runtime to take
            last = [node("Add", ["c", "c_k0"], ["y"])]
            constants["c_k0"] = random.uniform(1, 2, (filters, 1, 1)).astype(np.float32)
        else:  # a shift before a Conv with padding
            pads = [0, 1, 0, 0]
            conv = node("Conv", ["a", "w"], ["y"], group=group, pads=pads)
            first, last = [node("Add", ["x", "k"], ["a"])], []
            constants = {"w": weights, "k": np.float32([1.5])}
        return Drawn([*first, conv, *last], inputs, constants, feeds, None, 14, (*outputs,))
    y = x.astype(np.float64)
    for step in steps:
        y = step(y)
    y = convolved(y, weights, bias, group, pad)
    for step in later:
        y = step(y)
    return Drawn([*first, conv, *last], inputs, constants, feeds, y, 14, (*outputs,))


def draw_gelu(random: Random, near: bool) -> Drawn:
    x = (random.standard_normal((3, 4, 5)) * 3).astype(np.float32)
    kind = int(random.integers(7)) if near else -1
    root, one, half = 2**0.5, 1.0, 0.5
    root, one, half = {0: (1.5, one, half), 1: (root, 1.1, half), 2: (root, one, 0.4)}.get(
        kind, (root, one, half)
    )
    is_product = bool(random.integers(2))
    shape = (1,) * (random.integers(0, 4) if kind != 3 else 4)
    values = {"root": 1 / root if is_product else root, "one": one, "half": half}
    constants = {name: np.full(shape, number, np.float32) for name, number in values.items()}

    def mixed(operator: str, first: str, second: str, out: str) -> Any:
        given = [first, second] if random.random() < 0.5 else [second, first]
        return node(operator, given, [out])

    scaled = mixed("Mul", "x", "root", "s") if is_product else node("Div", ["x", "root"], ["s"])
    nodes = [scaled, node("Erf", ["s"], ["e"]), mixed("Add", "e", "one", "a")]
    order = random.integers(3)
    other = "z" if kind == 4 else "x"  # the product is with another value
    if order == 0:
        nodes += [mixed("Mul", "a", "half", "h"), mixed("Mul", other, "h", "y")]
    elif order == 1:
        nodes += [mixed("Mul", "a", other, "h"), mixed("Mul", "h", "half", "y")]
    else:
        nodes += [mixed("Mul", other, "half", "h"), mixed("Mul", "h", "a", "y")]
    inputs, feeds, outputs = ["x:float[a,b,c]"], {"x": x}, ["y:float[]"]
    if kind == 4:
        inputs.append("z:float[a,b,c]")
        feeds["z"] = x + 1
    elif kind == 5:
        outputs.append("a:float[]")
    elif kind == 6:  # somebody else reads what Erf reads
        outputs.append("n:float[]")
        nodes.append(node("Neg", ["s"], ["n"]))
    wide = x.astype(np.float64)
    expected = wide * (1 + np.vectorize(math.erf)(wide / 2**0.5)) / 2
    return Drawn(nodes, inputs, constants, feeds, expected, 17, (*outputs,))


def convolved_1d(x: Array, weights: Array, group: int, pads: Sequence[int], stride: int) -> Array:
    """Conv of sequences in float64, by ONNX's definition."""
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (pads[0], pads[1])))
    windows = np.lib.stride_tricks.sliding_window_view(x, weights.shape[2], 2)[:, :, ::stride]
    windows = windows.reshape(len(x), group, -1, *windows.shape[2:])
    grouped = weights.astype(np.float64).reshape(group, -1, *weights.shape[1:])
    y = np.einsum("bgiwk,goik->bgow", windows, grouped)
    return y.reshape(len(x), -1, y.shape[3])


def draw_conv1d(random: Random, near: bool) -> Drawn:
    channels = int(random.choice([1, 3, 8, 16]))
    x = random.standard_normal((int(random.integers(1, 3)), channels, 24)).astype(np.float32)
    constants: dict[str, Array] = {}
    nodes: list[Any] = []
    y, name = x.astype(np.float64), "x"

    def conv(y: Array, name: str, out: str) -> Array:
        inside = y.shape[1]
        group = int(random.choice([1, inside]))
        filters = inside if group > 1 else int(random.choice([3, 8, 16]))
        size, stride = int(random.integers(1, 5)), int(random.integers(1, 3))
        pads = random.integers(0, 3, 2).tolist()
        weights = random.standard_normal((filters, inside // group, size)).astype(np.float32)
        constants[f"w_{out}"] = weights
        given: dict[str, Any] = {"kernel_shape": [size]} if random.random() < 0.5 else {}
        given |= {"strides": [stride]} if stride > 1 else {}
        given |= {"pads": pads} if any(pads) else {}
        given |= {"dilations": [1]} if random.random() < 0.5 else {}
        nodes.append(node("Conv", [name, f"w_{out}"], [out], group=group, **given))
        return convolved_1d(y, weights, group, pads, stride)

    y, name = conv(y, name, "c"), "c"
    for i in range(int(random.integers(0, 4))):
        kind, out = random.integers(7), f"b{i}"
        if kind == 0:
            nodes.append(node("Relu", [name], [out]))
            y = np.maximum(y, 0)
        elif kind == 1:
            nodes.append(node("Tanh", [name], [out]))
            y = np.tanh(y)
        elif kind == 2:  # with itself
            nodes.append(node("Add", [name, name], [out]))
            y = y + y
        elif kind == 3:
            shape = [(), (1,), (y.shape[1], 1), (1, y.shape[1], 1), (y.shape[2],)]
            k = random.uniform(0.5, 2, shape[random.integers(5)]).astype(np.float32)
            constants[f"k{i}"] = k
            nodes.append(node("Mul", [f"k{i}", name] if i % 2 else [name, f"k{i}"], [out]))
            y = y * k
        elif kind == 4:
            constants[f"s{i}"] = np.float32([0.25])
            nodes.append(node("PRelu", [name, f"s{i}"], [out]))
            y = np.where(y < 0, 0.25 * y, y)
        elif kind == 5:
            nodes.append(node("GlobalAveragePool", [name], [f"g{i}"]))
            nodes.append(node("Mul", [name, f"g{i}"], [out]))
            y = y * y.mean(2, keepdims=True)
        else:  # of what no image is made of
            nodes += [node("Neg", [name], [f"n{i}"]), node("Add", [f"n{i}", "one"], [f"m{i}"]),
                      node("Add", [name, f"m{i}"], [out])]  # fmt: skip
            constants["one"] = np.float32([1])
            y = y + (1 - y)
        name = out
    if random.random() < 0.7:
        y, name = conv(y, name, "d"), "d"
    nodes.append(node(str(random.choice(["Relu", "Neg"])), [name], ["y"]))
    y = np.maximum(y, 0) if nodes[-1].op_type == "Relu" else -y
    inputs, feeds, outputs = [f"x:float[n,{channels},w]"], {"x": x}, ["y:float[]"]
    if near:
        kind = random.integers(3)
        weights = [key for key in constants if key.startswith("w_")]
        if kind == 0:  # weights of a caller
            for key in weights:
                inputs.append(f"{key}:float[{','.join(map(str, constants[key].shape))}]")
                feeds[key] = constants.pop(key)
        elif kind == 1:  # weights that are computed
            for key in weights:
                nodes.insert(0, node("Tanh", [f"{key}_t"], [key]))
                constants[f"{key}_t"] = constants.pop(key)
        else:  # images of rank 4 already
            weight = random.standard_normal((3, channels, 2, 2)).astype(np.float32)
            return Drawn([node("Conv", ["x", "w"], ["c"]), node("Tanh", ["c"], ["y"])],
                         [f"x:float[n,{channels},h,w]"], {"w": weight},
                         {"x": image(random, channels).repeat(2, 2).repeat(2, 3)})  # fmt: skip
    return Drawn(nodes, inputs, constants, feeds, y, 17, (*outputs,))


def draw_scales(random: Random, near: bool) -> Drawn:
    channels = int(random.choice([8, 16, 24]))
    x = image(random, channels)
    count = int(random.integers(1, 4))
    nodes, constants, steps = scales_and_shifts(random, count, channels, ("t", "z"))
    nodes = [node("Tanh", ["x"], ["t"]), *nodes, node("Tanh", ["z"], ["y"])]
    height, width = x.shape[2:]
    inputs, feeds = [f"x:float[n,{channels},{height},{width}]"], {"x": x}
    if near:
        kind = random.integers(4)
        if kind == 0:  # it may be empty
            inputs = [f"x:float[n,{channels},h,w]"]
            feeds = {"x": x[:, :, :0]} if random.random() < 0.5 else feeds
        elif kind == 1:  # numbers of a caller
            for name in list(constants):
                sizes = ",".join(map(str, constants[name].shape))
                inputs.append(f"{name}:float[{sizes}]" if sizes else f"{name}:float")
                feeds[name] = constants.pop(name)
        elif kind == 2:  # channels that no layout is made for
            x = np.ascontiguousarray(x[:, :3])
            inputs, feeds = [f"x:float[n,3,{height},{width}]"], {"x": x}
            constants = {
                name: np.ascontiguousarray(k[..., :3, :, :]) if k.ndim > 1 else k
                for name, k in constants.items()
            }
        else:  # of rank 3
            inputs, feeds = [f"x:float[{channels},{height},{width}]"], {"x": x[0]}
            constants = {name: k[0] if k.ndim == 4 else k for name, k in constants.items()}
        return Drawn(nodes, inputs, constants, feeds, None, 14)
    y = np.tanh(x.astype(np.float64))
    for step in steps:
        y = step(y)
    return Drawn(nodes, inputs, constants, feeds, np.tanh(y), 14)


DRAW: Mapping[str, Callable[[Random, bool], Drawn]] = {
    "affine": draw_affine,
    "conv1d": draw_conv1d,
    "gelu": draw_gelu,
    "hard_swish": draw_hard_swish,
    "leaky_relu": draw_leaky_relu,
    "prelu": draw_prelu,
    "scales": draw_scales,
}
OF_NODES = [pattern for pattern in PATTERNS if pattern.operators]
MODE = {pattern.name: "exact" if pattern.is_exact else "on" for pattern in PATTERNS}


def made(build: Build, drawn: Drawn, mode: str) -> Model:
    config = {"cpu_context": {"rewrites": mode, "measure_rewrites": "0"}}
    return build(drawn.nodes, drawn.inputs, list(drawn.outputs), drawn.opset, drawn.constants,
                 {"com.microsoft": 1}, config)  # fmt: skip


def rewritten(model: Model) -> list[int]:
    return [place.index for place in model.placement if "rewritten: " in place.reason]


def plain(path: Path, feeds: Mapping[str, Array]) -> Array:
    """The result of ONNX Runtime alone."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, dict(feeds))[0])


def check(build: Build, path: Path, name: str, random: Random, near: bool) -> None:
    pattern = next(pattern for pattern in PATTERNS if pattern.name == name)
    drawn = DRAW[name](random, near)
    model = made(build, drawn, MODE[name])
    reason = import_module(f"engine_cpu.rewrites.{name}").REASON
    if near:
        assert not any(reason in place.reason for place in model.placement), drawn
    else:  # by this pattern, or by one that is tried before
        assert rewritten(model), drawn
    result = np.asarray(model(**drawn.feeds)["y"])
    original = plain(path, drawn.feeds)
    assert result.shape == original.shape
    assert result.dtype == original.dtype
    if near and rewritten(model):  # by another pattern
        largest = float(np.abs(original[np.isfinite(original)]).max(initial=1))
        np.testing.assert_allclose(result, original, rtol=0, atol=1e-5 * largest)
    elif near or pattern.is_exact:
        assert result.tobytes() == original.tobytes(), drawn
    elif not pattern.bound:
        np.testing.assert_array_equal(result, original)
    else:
        assert drawn.expected is not None
        largest = float(np.abs(drawn.expected).max(initial=1))
        assert np.abs(result - drawn.expected).max(initial=0) <= pattern.bound * largest, drawn


@pytest.mark.parametrize("near", [False, True], ids=["match", "near"])
@pytest.mark.parametrize("name", DRAW)
def test_random_graphs_keep_their_results(
    build: Build, tmp_path: Path, name: str, near: bool
) -> None:
    random = np.random.default_rng(27)
    for _ in range(30):
        check(build, tmp_path / "model.onnx", name, random, near)


@pytest.mark.slow
@pytest.mark.parametrize("near", [False, True], ids=["match", "near"])
@pytest.mark.parametrize("name", DRAW)
def test_a_thousand_random_graphs_keep_their_results(
    build: Build, tmp_path: Path, name: str, near: bool
) -> None:
    random = np.random.default_rng(1)
    for _ in range(1000):
        check(build, tmp_path / "model.onnx", name, random, near)


def test_every_pattern_of_nodes_draws_graphs() -> None:
    assert set(DRAW) == {pattern.name for pattern in OF_NODES}


# ------------------------------------------------------------------------------ changed graphs

Case = tuple[ModelProto, dict[str, Array]]


def model_of(drawn: Drawn) -> Case:
    graph = helper.make_graph(
        drawn.nodes, "g", [value_info(text) for text in drawn.inputs],
        [value_info(text) for text in drawn.outputs],
        [numpy_helper.from_array(array, name) for name, array in drawn.constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", drawn.opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), dict(drawn.feeds)


def value_info(text: str) -> Any:
    name, _, kind = text.partition(":")
    return onnx.parser.parse_graph(f"g ({kind} {name}) => () {{}}").input[0]


def inner_values(model: ModelProto) -> list[str]:
    outputs = {output.name for output in model.graph.output}
    return [name for made in model.graph.node for name in made.output if name not in outputs]


def give_an_inner_value(random: Random, model: ModelProto, feeds: dict[str, Array]) -> None:
    names = inner_values(model)
    if names:
        model.graph.output.append(value_info(f"{random.choice(names)}:float[]"))


def read_in_a_subgraph(random: Random, model: ModelProto, feeds: dict[str, Array]) -> None:
    names = inner_values(model) or [model.graph.input[0].name]
    name = str(random.choice(names))
    branches = [
        helper.make_graph([node("Neg", [name], [f"{side}_out"])], side, [],
                          [value_info(f"{side}_out:float[]")])
        for side in ("then", "else")
    ]  # fmt: skip
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    model.graph.node.append(
        node("If", ["yes"], ["chosen"], then_branch=branches[0], else_branch=branches[1])
    )
    model.graph.output.append(value_info("chosen:float[]"))


def share_constants(random: Random, model: ModelProto, feeds: dict[str, Array]) -> None:
    """Equal constants become one; so do those of one element with one that is not equal."""
    tensors = list(model.graph.initializer)
    names: dict[str, str] = {}
    for tensor in tensors:
        found = names.setdefault(str(numpy_helper.to_array(tensor).tolist()), tensor.name)
        if random.random() < 0.1:
            found = str(random.choice([one.name for one in tensors if one.dims == tensor.dims]))
        for made in model.graph.node:
            made.input[:] = [found if name == tensor.name else name for name in made.input]


def make_constants_of_nodes(random: Random, model: ModelProto, feeds: dict[str, Array]) -> None:
    tensors = list(model.graph.initializer)
    del model.graph.initializer[:]
    made = []
    for tensor in tensors:
        kind, name = random.integers(4), tensor.name
        if kind == 0:
            model.graph.initializer.append(tensor)
        elif kind == 1:
            made.append(node("Constant", [], [name], value=tensor))
        elif kind == 2:
            made += [node("Constant", [], [f"{name}_c"], value=tensor),
                     node("Identity", [f"{name}_c"], [name])]  # fmt: skip
        else:
            array = numpy_helper.to_array(tensor)
            shape = np.array(array.shape, np.int64)
            if shape.size:
                shape[random.integers(shape.size)] = -1
            flat = np.ascontiguousarray(array.reshape(-1))
            model.graph.initializer.append(numpy_helper.from_array(flat, f"{name}_f"))
            model.graph.initializer.append(numpy_helper.from_array(shape, f"{name}_s"))
            made.append(node("Reshape", [f"{name}_f", f"{name}_s"], [name]))
    nodes = [*made, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def give_constants(random: Random, model: ModelProto, feeds: dict[str, Array]) -> None:
    for tensor in model.graph.initializer:
        if random.random() < 0.5:
            model.graph.output.append(value_info(f"{tensor.name}:float[]"))


def change_types(random: Random, model: ModelProto, feeds: dict[str, Array]) -> None:
    dtype = np.dtype(random.choice(["float16", "float64"]))
    number = helper.np_dtype_to_tensor_dtype(dtype)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(dtype),
                                                tensor.name))  # fmt: skip
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.elem_type = number
    for name in feeds:
        feeds[name] = feeds[name].astype(dtype)


def change_shapes_of_constants(random: Random, model: ModelProto, feeds: dict[str, Array]) -> None:
    for tensor in model.graph.initializer:
        if tensor.name in ("low", "high"):  # else no Clip
            continue
        array = numpy_helper.to_array(tensor)
        kind = random.integers(4)
        if kind == 0 and array.ndim < 4:
            array = array[(None,) * int(random.integers(1, 3))]
        elif kind == 1 and array.ndim < 4 and array.size:
            array = np.repeat(array.reshape(-1)[:1], int(random.integers(1, 9)))
            array = array.reshape(-1, *(1,) * int(random.integers(0, 3)))
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))


def open_all_sizes(random: Random, model: ModelProto, feeds: dict[str, Array]) -> None:
    """The model declares no size; the caller gives one channel, or no sample, or no column."""
    for info in model.graph.input:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            dim.dim_param = f"{info.name}_{axis}"
    name = model.graph.input[0].name
    axis = int(random.integers(feeds[name].ndim))
    size = int(random.integers(2))
    feeds[name] = np.ascontiguousarray(np.take(feeds[name], range(size), axis))


def give_no_sample(random: Random, model: ModelProto, feeds: dict[str, Array]) -> None:
    name = model.graph.input[0].name
    feeds[name] = feeds[name][:0]


def give_special_values(random: Random, model: ModelProto, feeds: dict[str, Array]) -> None:
    for name, array in feeds.items():  # but those whose products overflow
        values = SPECIAL[~(np.abs(SPECIAL) > 1e38) | np.isinf(SPECIAL)]
        feeds[name] = random.choice(values, array.shape).astype(np.float32)


def list_constants_as_inputs(random: Random, model: ModelProto, feeds: dict[str, Array]) -> None:
    model.ir_version = int(random.choice([3, 4, 8]))
    for tensor in model.graph.initializer:
        if model.ir_version == 3 or random.random() < 0.7:
            model.graph.input.append(
                helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )


def write_for_another_opset(random: Random, model: ModelProto, feeds: dict[str, Array]) -> None:
    model.opset_import[0].version = int(random.choice([7, 8, 9, 10, 11, 13, 18, 20, 22]))


def write_twice(random: Random, model: ModelProto, feeds: dict[str, Array]) -> None:
    """The same nodes once more on the same values, which now have two readers."""
    inputs = {name for made in model.graph.node for name in made.output}
    for made in list(model.graph.node):
        again = NodeProto()
        again.CopyFrom(made)
        again.ClearField("name")
        again.input[:] = [f"{name}_2" if name in inputs else name for name in made.input]
        if random.random() < 0.5:  # on a value of the first
            again.input[:] = made.input
        again.output[:] = [f"{name}_2" for name in made.output]
        model.graph.node.append(again)
    model.graph.output.append(value_info("y_2:float[]"))


def write_behind_itself(random: Random, model: ModelProto, feeds: dict[str, Array]) -> None:
    """The same nodes once more on the result of the first."""
    first, made_names = model.graph.input[0].name, set()
    for made in list(model.graph.node):
        again = NodeProto()
        again.CopyFrom(made)
        again.ClearField("name")
        again.input[:] = [
            f"{name}_2" if name in made_names else "y" if name == first else name
            for name in made.input
        ]
        made_names |= set(made.output)
        again.output[:] = [f"{name}_2" for name in made.output]
        model.graph.node.append(again)
    model.graph.output[0].CopyFrom(value_info("y_2:float[]"))


def move_by_large_numbers(random: Random, model: ModelProto, feeds: dict[str, Array]) -> None:
    """Inputs around a large number, which a shift takes away."""
    far = float(random.choice([1e3, 1e5, 1e7]))
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.size == 1 or array.ndim == 3:
            tensor.CopyFrom(numpy_helper.from_array(array * np.float32(far), tensor.name))
    name = model.graph.input[0].name
    feeds[name] = np.float32(far) * random.choice([-1, 1]) + feeds[name]
    feeds[name] = feeds[name].astype(np.float32)


CHANGES = (
    give_an_inner_value, read_in_a_subgraph, share_constants, make_constants_of_nodes,
    give_constants, change_types, change_shapes_of_constants, open_all_sizes, give_no_sample,
    give_special_values, write_for_another_opset, write_twice, write_behind_itself,
    move_by_large_numbers, list_constants_as_inputs,
)  # fmt: skip


def results_of_all(path: Path, model: ModelProto, feeds: Mapping[str, Array]) -> Any:
    """ONNX Runtime's results, or None where it has an error; and the largest number inside."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    whole = ModelProto()
    whole.CopyFrom(model)
    names = [output.name for output in model.graph.output]
    whole.graph.output.extend(value_info(f"{name}:float[]") for name in inner_values(model))
    try:
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        results = session.run(names, feeds)
    except Exception:  # ONNX Runtime's own have no common base
        return None, 1.0
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    largest = 1.0
    try:
        session = ort.InferenceSession(whole.SerializeToString(), options, ["CPUExecutionProvider"])
        inner = session.run(None, feeds)
    except Exception:  # an inner value of another type
        inner = results
    for array in inner:
        sizes = np.abs(np.asarray(array, np.float64))
        largest = max(largest, sizes[np.isfinite(sizes)].max(initial=0))
    return results, largest


def check_changed(path: Path, name: str, random: Random) -> bool:
    """Compare one changed graph; return whether it was rewritten."""
    changes = sorted(random.choice(len(CHANGES), int(random.integers(1, 3)), replace=False))
    said = [CHANGES[i].__name__ for i in changes]
    model, feeds = model_of(DRAW[name](random, False))
    for i in changes:
        with np.errstate(over="ignore", invalid="ignore"):
            CHANGES[i](random, model, feeds)
    path.write_bytes(model.SerializeToString())
    expected, largest = results_of_all(path, model, feeds)
    config = {"cpu_context": {"rewrites": MODE[name], "measure_rewrites": "0"}}
    try:
        own = engine.load(path, target="cpu", config=config)
        found = own(**{spec.name: feeds[spec.name] for spec in own.inputs})
    except EngineError:
        assert expected is None, said
        return False
    if expected is None:  # of what ONNX Runtime refuses and this package does not
        assert not rewritten(own), said
        return False
    exact = MODE[name] == "exact" or not rewritten(own)
    for output, wanted in zip(own.outputs, expected, strict=True):
        result = np.asarray(found[output.name])
        assert (result.shape, result.dtype) == (wanted.shape, wanted.dtype), said
        if exact:
            assert result.tobytes() == wanted.tobytes(), said
            continue
        wide, wanted = result.astype(np.float64), wanted.astype(np.float64)
        same = np.isnan(wide) & np.isnan(wanted) | (wide == wanted)
        with np.errstate(invalid="ignore"):
            near = np.abs(wide - wanted) <= 1e-5 * largest
        assert (same | near).all(), said
    return bool(rewritten(own))


@pytest.mark.parametrize("name", DRAW)
def test_graphs_that_no_pattern_is_made_for_keep_their_results(tmp_path: Path, name: str) -> None:
    random = np.random.default_rng(11)
    count = sum(check_changed(tmp_path / "model.onnx", name, random) for _ in range(30))
    assert count > 5


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAW)
def test_a_thousand_graphs_that_no_pattern_is_made_for(tmp_path: Path, name: str) -> None:
    random = np.random.default_rng(12)
    assert sum(check_changed(tmp_path / "model.onnx", name, random) for _ in range(1000)) > 200


@pytest.mark.parametrize("slope", [0.25, [0.25, 0.5, 0.75]])
def test_slopes_that_may_give_more_channels_stay(build: Build, slope: Any) -> None:
    """ONNX Runtime repeats an image of one channel for each of them."""
    slopes = np.broadcast_to(np.float32(slope), (3,)).reshape(3, 1, 1)
    drawn = Drawn([node("PRelu", ["x", "slope"], ["y"])], ["x:float[n,c,4,4]"],
                  {"slope": np.ascontiguousarray(slopes)}, {})  # fmt: skip
    model = made(build, drawn, "on")
    assert not rewritten(model)
    x = np.full((1, 1, 4, 4), -2, np.float32)
    np.testing.assert_array_equal(model(x=x)["y"], np.broadcast_to(-2 * slopes, (1, 3, 4, 4)))


@pytest.mark.parametrize(("shift", "count"), [(2.0, 2), (1e6, 0)])
def test_a_shift_that_takes_a_large_number_away_stays(
    build: Build, shift: float, count: int
) -> None:
    """x - 1000000 is without error where the sums of a Conv of x would have one of 0.1."""
    random = np.random.default_rng(8)
    weights = random.standard_normal((4, 3, 3, 3)).astype(np.float32)
    drawn = Drawn([node("Sub", ["x", "k"], ["s"]), node("Conv", ["s", "w"], ["y"])],
                  ["x:float[1,3,8,8]"], {"k": np.float32([shift]), "w": weights}, {})  # fmt: skip
    model = made(build, drawn, "on")
    assert len(rewritten(model)) == count
    x = (np.float32(shift) + random.integers(-4, 5, (1, 3, 8, 8)) / 4).astype(np.float32)
    expected = convolved(x.astype(np.float64) - shift, weights, np.zeros(4), 1, 0)
    np.testing.assert_allclose(model(x=x)["y"], expected, atol=1e-5, rtol=1e-5)


def test_the_weights_of_a_file_of_ir_version_3_are_constants(tmp_path: Path) -> None:
    """They are listed as inputs there, and nobody may replace them."""
    drawn = drawn_prelu()
    model, feeds = model_of(drawn)
    model.ir_version = 3
    model.graph.input.extend(
        image_info(name, array.shape) for name, array in drawn.constants.items()
    )
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    config = {"cpu_context": {"rewrites": "on", "measure_rewrites": "0"}}
    own = engine.load(tmp_path / "model.onnx", target="cpu", config=config)
    assert rewritten(own) == [1]
    np.testing.assert_array_equal(own(**feeds)["y"], plain(tmp_path / "model.onnx", feeds))


# ------------------------------------------------------------------------------------- the option


def test_weights_that_are_listed_as_inputs_are_constants(tmp_path: Path) -> None:
    """BatchNormalization is folded then, as in the same file without the list."""
    random = np.random.default_rng(3)
    constants = {
        "w": random.standard_normal((8, 3, 3, 3)).astype(np.float32),
        **{name: random.uniform(0.5, 2, 8).astype(np.float32) for name in ("s", "b", "m", "v")},
    }
    nodes = [node("Conv", ["x", "w"], ["c"]),
             node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]),
             node("Relu", ["n"], ["y"])]  # fmt: skip
    x = image_info("x", ["n", 3, 9, 9])
    listed = [image_info(name, value.shape) for name, value in constants.items()]
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    paths = []
    for inputs in ([x, *listed], [x]):
        graph = helper.make_graph(nodes, "g", inputs, [image_info("y", None)], tensors)
        opsets = [helper.make_opsetid("", 14)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=6)
        paths.append(tmp_path / f"{len(inputs)}.onnx")
        paths[-1].write_bytes(model.SerializeToString())
    values = random.standard_normal((2, 3, 9, 9)).astype(np.float32)
    expected = plain(paths[1], {"x": values})
    for mode, is_used in (("on", True), ("exact", False)):
        config = {"cpu_context": {"rewrites": mode, "measure_rewrites": "0"}}
        model = engine.load(paths[0], target="cpu", config=config)
        assert [spec.name for spec in model.inputs] == ["x"]
        result = model(x=values)["y"]
        assert rewritten(model) == ([0, 1] if is_used else [])
        assert (model.placement[1].state is NodeState.FUSED) is is_used
        same_as = expected if is_used else plain(paths[0], {"x": values})
        assert result.tobytes() == same_as.tobytes()
    config = {"cpu_context": {"rewrites": "on", "measure_rewrites": "0"}}
    model = engine.load(paths[0], target="cpu", config=config, variable_weights=["s"])
    model.update_weights({"s": constants["s"] * 2})
    assert not np.allclose(model(x=values)["y"], expected)
    assert not rewritten(engine.load(paths[1], target="cpu", config=config))


def test_a_convolution_of_other_channels_than_its_input_has_stays_an_error(build: Build) -> None:
    """ONNX Runtime's kernel for images would not see it."""
    random = np.random.default_rng(2)
    weights = {name: random.standard_normal((8, 16, 3)).astype(np.float32) for name in ("v", "w")}
    nodes = [node("Constant", [], ["one"], value_float=1.0), node("Conv", ["x", "v"], ["c"]),
             node("Mul", ["c", "one"], ["m"]), node("Conv", ["m", "w"], ["y"])]  # fmt: skip
    model = made(build, Drawn(nodes, ["x:float[n,16,w]"], weights, {}), "on")
    assert rewritten(model) == [1, 2]
    with pytest.raises(EngineError, match="channels"):
        model(x=np.ones((1, 16, 24), np.float32))


@pytest.mark.parametrize("is_linked", [False, True])
def test_external_data_is_constant_too(tmp_path: Path, is_linked: bool) -> None:
    random = np.random.default_rng(4)
    weights = random.standard_normal((8, 3, 3, 3)).astype(np.float32)
    nodes = [node("Conv", ["x", "w"], ["c"]), node("Mul", ["c", "two"], ["y"])]
    drawn = Drawn(nodes, ["x:float[1,3,9,9]"], {"w": weights, "two": np.float32([2])}, {})
    model, _ = model_of(drawn)
    folder = tmp_path / "real"
    folder.mkdir()
    onnx.save(model, folder / "model.onnx", save_as_external_data=True, location="w.data",
              size_threshold=0)  # fmt: skip
    path = folder / "model.onnx"
    if is_linked:
        path = tmp_path / "link.onnx"
        path.symlink_to(folder / "model.onnx")
        (tmp_path / "w.data").symlink_to(folder / "w.data")
    config = {"cpu_context": {"rewrites": "on", "measure_rewrites": "0"}}
    own = engine.load(path, target="cpu", config=config)
    assert rewritten(own) == [0, 1]
    x = random.standard_normal((1, 3, 9, 9)).astype(np.float32)
    expected = 2 * convolved(x, weights, np.zeros(8), 1, 0)
    np.testing.assert_allclose(own(x=x)["y"], expected, atol=1e-5, rtol=1e-5)


def image_info(name: str, shape: Any) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def drawn_prelu() -> Drawn:
    random = np.random.default_rng(5)
    drawn = Drawn([node("PRelu", ["x", "slope"], ["p"], name="p"),
                   node("Sigmoid", ["p"], ["y"], name="s")], ["x:float[n,8,h,w]"],
                  {"slope": np.linspace(0.1, 0.9, 8, dtype=np.float32).reshape(8, 1, 1)},
                  {"x": image(random, 8)})  # fmt: skip
    return with_conv(random, drawn, 8)


def test_nothing_is_rewritten_unless_it_is_asked_for(build: Build) -> None:
    for mode, expected in (("off", []), ("exact", []), ("on", [1])):
        assert rewritten(made(build, drawn_prelu(), mode)) == expected
    drawn = drawn_prelu()
    assert not rewritten(build(drawn.nodes, drawn.inputs, ["y:float[]"], 17, drawn.constants))


def test_nothing_is_rewritten_without_the_optimiser_that_it_is_for(build: Build) -> None:
    drawn = drawn_prelu()
    for level, count in (("all", 1), ("extended", 0), ("none", 0)):
        config = {
            "cpu_context": {"rewrites": "on", "measure_rewrites": "0", "graph_optimization": level}
        }
        model = build(drawn.nodes, drawn.inputs, ["y:float[]"], 17, drawn.constants, None, config)
        assert len(rewritten(model)) == count


def test_the_key_names_the_patterns_and_their_versions() -> None:
    def of(**options: str) -> Mapping[str, str]:
        return compiled_key(CompileOptions(device=Device("cpu"), options=options), "1")

    assert "rewrites" not in of(rewrites="off")
    assert of() == of(rewrites="exact")
    assert of()["rewrites"] == "leaky_relu=2, measured"
    assert of(measure_rewrites="0")["rewrites"] == key("exact") == "leaky_relu=2"
    assert of(rewrites="on")["rewrites"] == key("on") + ", measured"
    assert len(key("on").split()) == len(PATTERNS) == len(patterns("on"))


@pytest.mark.parametrize("is_secret", [False, True])
def test_a_compiled_form_keeps_placement_and_bits(
    build: Build, tmp_path: Path, is_secret: bool
) -> None:
    drawn = drawn_prelu()
    made(build, drawn, "on")
    backend, folder = open_backend("cpu"), tmp_path / "form"
    folder.mkdir()
    source = open_source(tmp_path / "model.onnx")
    source = replace(source, data=(tmp_path / "model.onnx").read_bytes(), is_secret=is_secret)
    options = CompileOptions(
        device=Device("cpu"), options={"rewrites": "on", "measure_rewrites": "0"}
    )
    seen = []
    for given, save_to in ((source, None), (source, folder), (source, folder)):
        is_written = any(folder.iterdir())
        assert not (is_written and is_secret)
        opened = replace(given, compiled=folder) if is_written else given
        own = replace(options, save_to=None if is_written else save_to)
        executable = backend.compile(backend.load(opened, own), own)
        [y] = backend.predict(executable.open_context(), [*drawn.feeds.values()], None, None)
        seen.append((list(executable.placement()), np.asarray(y).tobytes()))
    assert is_secret or is_written
    assert seen[0] == seen[1] == seen[2]
    assert "rewritten: " in seen[0][0][1].reason


def test_a_variable_weight_is_no_constant(build: Build, tmp_path: Path) -> None:
    drawn = drawn_prelu()
    made(build, drawn, "off")
    config = {"cpu_context": {"rewrites": "on", "measure_rewrites": "0"}}
    model = engine.load(
        tmp_path / "model.onnx", target="cpu", config=config, variable_weights=["slope"]
    )
    assert not rewritten(model)
    model.update_weights({"slope": np.full((8, 1, 1), 2, np.float32)})
    x = drawn.feeds["image"]
    expected = 1 / (1 + np.exp(-np.where(x < 0, 2 * x, x).astype(np.float64)))
    np.testing.assert_allclose(model(image=x)["y"], expected, rtol=1e-5)


def test_the_parts_of_a_cut_model_are_rewritten(build: Build) -> None:
    drawn = drawn_prelu()
    nodes = [*drawn.nodes[:-1], node("Cast", ["p"], ["wide"], to=TensorProto.DOUBLE),
             node("Erf", ["wide"], ["y"])]  # fmt: skip
    cut = drawn._replace(nodes=nodes, outputs=("y:double[]",))
    model, original = made(build, cut, "on"), made(build, cut, "off")
    assert [place.backend for place in model.placement][-1] == "reference"
    assert rewritten(model) == [1]
    result, expected = (own(**drawn.feeds)["y"] for own in (model, original))
    np.testing.assert_array_equal(result, expected)


def test_the_states_of_a_large_model_are_known_too(build: Build, tmp_path: Path) -> None:
    random = np.random.default_rng(6)
    weights = random.standard_normal((512, 512, 3, 3)).astype(np.float32)  # 9 MB: not kept
    nodes = [node("Mul", ["x", "two"], ["m"]), node("Conv", ["m", "w"], ["c"]),
             node("Relu", ["c"], ["y"])]  # fmt: skip
    drawn = Drawn(nodes, ["x:float[1,512,4,4]"], {"two": np.float32([2]), "w": weights}, {})
    model = made(build, drawn, "on")
    assert rewritten(model) == [0, 1]
    places = [(place.state, place.fused_into) for place in model.placement]
    assert places == [(NodeState.FUSED, 2), (NodeState.FUSED, 2), (NodeState.RUNS, None)]
    config = {"cpu_context": {"rewrites": "on", "measure_rewrites": "0"}}
    model = engine.load((tmp_path / "model.onnx").read_bytes(), target="cpu", config=config)
    assert model.placement[0].state is NodeState.FUSED


def test_a_profile_names_the_node_of_each_kernel(build: Build) -> None:
    drawn = drawn_prelu()
    profile = made(build, drawn, "on").profile(drawn.feeds, 2)
    kernels = {kernel.nodes for kernel in profile.kernels if kernel.op_type == "Conv"}
    assert (0,) in kernels
    assert kernels - {(0,)}, kernels
    assert all(1 in nodes for nodes in kernels - {(0,)}), kernels


def test_a_model_without_candidates_needs_no_onnx(build: Build, tmp_path: Path) -> None:
    drawn = Drawn([node("Relu", ["x"], ["y"])], ["x:float[n]"], {}, {})
    made(build, drawn, "off")
    program = f"""
import sys, engine
config = {{"cpu_context": {{"rewrites": "on", "measure_rewrites": "0"}}}}
engine.load({str(tmp_path / "model.onnx")!r}, target="cpu", config=config)
assert "onnx" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_nodes_of_one_group_are_fused_into_its_last(build: Build) -> None:
    model = made(build, drawn_prelu(), "on")
    conv, prelu, sigmoid = model.placement
    assert conv.state is sigmoid.state is NodeState.RUNS
    assert (prelu.state, prelu.fused_into) == (NodeState.FUSED, 2)  # in the last depthwise Conv
