"""Graphs for the tests of rewrites: random ones for each pattern, and the models of them.

Every pattern draws graphs that it matches, and graphs that differ from these in one respect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
from onnx import ModelProto, helper, numpy_helper

from engine import Model
from engine_cpu.rewrites import PATTERNS

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
