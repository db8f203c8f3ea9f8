"""engine.diff: faults planted in models, each to be named, and no fault where there is none."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from deep_models import FAULTS, deep, planted
from diffs import diff_of, fused_overflow, named
from graphs import written

import engine
from engine.errors import ModelError
from engine.report.fault.found import Diff, FaultKind

KINDS = sorted(FAULTS)


def require_named(found: Diff, fault: str, value: str) -> None:
    """Require the very node; of a node in bfloat16 also the casts around it."""
    extra = {f"{value}/wide", f"{value}/bf16"} if fault == "bfloat16" else set()
    assert named(found) == {value} | extra, str(found)


@pytest.mark.parametrize("fault", ["epsilon", "axis", "bfloat16"])
def test_a_fault_among_300_nodes_is_named(tmp_path: Path, fault: str) -> None:
    found, value = diff_of(tmp_path, fault, seed=1)
    require_named(found, fault, value)
    assert found.fault is not None
    # Against float64 the faulty side is the one that is off.
    assert found.fault.exact_a is not None
    assert found.fault.exact_b is not None
    assert found.fault.exact_a.apart > 0
    assert found.fault.exact_b.apart == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_thirty_faults_of_thirty_are_named(tmp_path: Path, seed: int) -> None:
    fault = KINDS[seed % len(KINDS)]
    found, value = diff_of(tmp_path, fault, seed, inside=True)  # one has no effect on the outputs
    require_named(found, fault, value)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_a_fault_is_named_behind_rounding_that_is_beyond_small_tolerances(
    tmp_path: Path, seed: int
) -> None:
    """cpu and the reference round differently, and the tolerances are below that."""
    given: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6, "targets": ("cpu", "reference")}
    found, value = diff_of(tmp_path, KINDS[seed], seed, **given)
    require_named(found, KINDS[seed], value)


def test_two_equal_sides_have_nothing_apart(tmp_path: Path) -> None:
    onnx.save(deep(40, 3), tmp_path / "m.onnx")
    for targets in (("cpu", "cpu"), ("cpu", "reference"), ("reference", "cpu")):
        found = engine.diff(tmp_path / "m.onnx", targets=targets, folder=tmp_path / "none")
        assert (found.is_within, found.fault, found.builds) == (True, None, 2)
        assert str(found) == "nothing apart"
        assert engine.diff(tmp_path / "m.onnx", targets=targets, inside=True).is_within
    assert not (tmp_path / "none").exists()


def test_a_fault_without_effect_on_the_outputs_is_found_inside(tmp_path: Path) -> None:
    def model(name: str, factor: float) -> Path:
        return written(
            tmp_path / name,
            "g (float[4] x) => (float[4] y) { s = Mul(x, k) c = Clip(s, zero, one) y = Neg(c) }",
            k=np.float32(factor),
            zero=np.float32(0),
            one=np.float32(1),
        )

    a, b = model("a.onnx", 5), model("b.onnx", 6)
    x = [np.float32([1, 2, 3, 4])]
    assert str(engine.diff(a, b, x)) == "nothing apart"
    found = engine.diff(a, b, x, inside=True)
    assert named(found) == {"s"}
    assert engine.diff(a, a, x, inside=True).has_inside
    assert not engine.diff(a, a, x).has_inside
    assert (found.is_within, found.outputs.is_within) == (False, True)


# ------------------------------------------------------------------------------- kinds of fault


def test_a_fault_that_only_fused_nodes_have_is_the_smallest_block_that_is_fused(
    tmp_path: Path,
) -> None:
    path = fused_overflow(tmp_path / "m.onnx")
    found = engine.diff(path, targets=("cpu", "reference"))
    assert found.fault is not None
    assert found.fault.kind is FaultKind.FUSED
    assert [node.op_type for node in found.fault.nodes] == ["Conv", "BatchNormalization"]
    assert found.fault.own.nans[1] == found.fault.own.infinities[1] == 0
    assert found.fault.exact_b is not None
    assert found.fault.exact_b.apart == 0
    # The other way round it is the same block.
    other = engine.diff(path, targets=("reference", "cpu"))
    assert other.fault is not None
    assert [node.op_type for node in other.fault.nodes][:2] == ["Conv", "BatchNormalization"]


def test_a_block_in_place_of_one_node_is_named_by_the_nodes_of_both(tmp_path: Path) -> None:
    """b has GELU as one node; a as five, with a wrong constant."""
    a = written(
        tmp_path / "a.onnx",
        """g (float[4, 8] x) => (float[4, 8] y) { h = Tanh(x) d = Div(h, root) e = Erf(d)
            p = Add(e, one) m = Mul(h, p) g = Mul(m, half) y = Neg(g) }""",
        root=np.float32(1.5),
        one=np.float32(1),
        half=np.float32(0.5),
    )
    b = written(
        tmp_path / "b.onnx",
        "g (float[4, 8] x) => (float[4, 8] y) { h = Tanh(x) g = com.microsoft.Gelu(h) y = Neg(g) }",
    )
    found = engine.diff(a, b)
    assert found.fault is not None
    assert found.fault.kind is FaultKind.BLOCK
    assert named(found) == {"d", "e", "p", "m", "g"}
    assert [node.op_type for node in found.fault.nodes_b] == ["Gelu"]
    assert found.unpaired == (("d", "e", "p", "m"), ())


def test_a_small_error_that_later_nodes_enlarge_is_the_first_nodes(tmp_path: Path) -> None:
    """x * 1.0005 is within 1e-3 of x, and the difference of two such numbers is not."""

    def model(name: str, factor: float) -> Path:
        return written(
            tmp_path / name,
            """g (float[4] x) => (float[4] y) {
                s = Mul(x, factor) t = Mul(s, two) d = Sub(t, near) y = Mul(d, two) }""",
            factor=np.float32(factor),
            two=np.float32(2),
            near=np.float32([2, 4, 6, 8]),
        )

    x = np.float32([1.01, 2.01, 3.01, 4.01])
    found = engine.diff(model("a.onnx", 1.0005), model("b.onnx", 1.0), [x])
    assert named(found) == {"s"}
    assert found.fault is not None
    assert found.fault.first.name == "d"


def test_an_error_of_many_nodes_is_said_to_grow(tmp_path: Path) -> None:
    """Each of 20 factors is off by 2e-4, within 1e-3; six of them are not."""

    def model(name: str, factor: float) -> Path:
        steps = " ".join(f"v{i + 1} = Mul(v{i}, factor) " for i in range(20))
        text = f"g (float[4] x) => (float[4] y) {{ v0 = Abs(x) {steps} y = Neg(v20) }}"
        return written(tmp_path / name, text, factor=np.float32(factor))

    found = engine.diff(model("a.onnx", 1.0002), model("b.onnx", 1.0), [np.float32([1, 2, 3, 4])])
    assert found.fault is not None
    assert found.fault.kind is FaultKind.GROWS
    # 1.0002 ** 5 - 1 is 1.0004e-3, within 1e-3 + 1e-5 / 1 for 1 and just beyond for 4.
    assert found.fault.first.name in ("v5", "v6")
    assert all(node.own is not None and node.own < 0.21 for node in found.fault.nodes)


def test_a_node_with_a_body_is_one_node(tmp_path: Path) -> None:
    def model(name: str, operator: str) -> Path:
        return written(
            tmp_path / name,
            f"""g (float[4] x, bool c) => (float[4] y) {{ s = Mul(x, k)
                t = If (c) <then_branch = one () => (float[4] o) {{ o = Mul(s, k) }},
                            else_branch = two () => (float[4] o) {{ o = {operator}(s, k) }}>
                y = Tanh(t) }}""",
            k=np.float32(0.5),
        )

    x = [np.float32([1, 2, 3, 4]), np.array(False)]
    found = engine.diff(model("a.onnx", "Add"), model("b.onnx", "Sub"), x)
    assert named(found) == {"t"}


def test_nodes_of_other_names_are_paired_by_structure(tmp_path: Path) -> None:
    def model(name: str, p: str, axis: int) -> Path:
        return written(
            tmp_path / name,
            f"""g (float[4, 4] {p}x) => (float[4, 4] {p}y) {{ {p}p = MatMul({p}x, {p}w)
                {p}q = MatMul({p}x, {p}v) {p}r = Softmax<axis = {axis}>({p}p)
                {p}s = Mul({p}r, {p}q) {p}y = Tanh({p}s) }}""",
            **{f"{p}w": np.eye(4, dtype=np.float32), f"{p}v": np.ones((4, 4), np.float32)},
        )

    found = engine.diff(model("a.onnx", "a", 0), model("b.onnx", "b", 1))
    assert named(found) == {"ar"}
    assert found.fault is not None
    assert (found.fault.value_b, found.unpaired) == ("br", ((), ()))


def numbered(place: Path, fault: str, *, with_a_node_more: bool) -> Path:
    """Write a model whose values have numbers for names; one of its nodes has `fault` for axis."""
    steps = ["Exp", "Neg", "Softmax<axis = 0>", f"Softmax<axis = {fault}>", "Sin", "Cos", "Tanh"]
    steps = [*["Identity"] * with_a_node_more, *steps]
    text = " ".join(f"v{at + 1} = {step}(v{at})" for at, step in enumerate(steps))
    return written(
        place, f"g (float[3, 4] v0) => (float[3, 4] y) {{ {text} y = Neg(v{len(steps)}) }}"
    )


@pytest.mark.parametrize("is_longer", [False, True])
def test_values_that_are_numbered_otherwise_are_paired_by_what_they_hold(
    tmp_path: Path, is_longer: bool
) -> None:
    right = numbered(tmp_path / "right.onnx", "1", with_a_node_more=not is_longer)
    same = numbered(tmp_path / "same.onnx", "1", with_a_node_more=is_longer)
    faulty = numbered(tmp_path / "faulty.onnx", "0", with_a_node_more=is_longer)
    assert engine.diff(same, right, inside=True).is_within
    found = engine.diff(faulty, right)
    assert named(found) == {"v5" if is_longer else "v4"}
    assert found.fault is not None
    assert [node.outputs for node in found.fault.nodes_b] == [("v4" if is_longer else "v5",)]
    assert any("equal names stand for other values" in note for note in found.notes)


def test_a_nan_is_traced_to_the_node_that_makes_it(tmp_path: Path) -> None:
    text = "g (float[4] x) => (float[4] y) {{ s = Sub(x, c) {}l = Log({}) y = Tanh(l) }}"
    c = np.float32(0.5)
    a = written(tmp_path / "a.onnx", text.format("", "s"), c=c)
    b = written(tmp_path / "b.onnx", text.format("q = Abs(s) ", "q"), c=c)
    found = engine.diff(a, b, [np.float32([0.1, 0.7, 0.9, 0.2])])
    assert named(found) == {"l"}
    assert found.fault is not None
    assert found.fault.own.nans == (2, 0)


def test_an_axis_that_changes_the_shape_is_named(tmp_path: Path) -> None:
    def model(name: str, perm: str) -> Path:
        text = f"g (float[2, 3] x) => (float[p, q] y) {{ h = Abs(x) t = Transpose<perm = [{perm}]>(h) y = Tanh(t) }}"  # noqa: E501
        return written(tmp_path / name, text)

    found = engine.diff(model("a.onnx", "0, 1"), model("b.onnx", "1, 0"))
    assert named(found) == {"t"}
    assert found.fault is not None
    assert found.fault.own.reason == "shape [2, 3] in a, [3, 2] in b"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (
            """g (float[1, 4] x) => (seq(float[1, 2]) y) {
                t = Mul(x, k) y = SplitToSequence<axis = 1>(t, n) }""",
            "t",
        ),
        (
            """g (float[1, 4] x) => (float[1, 4] y) { s = SplitToSequence<axis = 1>(x, n)
                c = ConcatFromSequence<axis = 1>(s) t = Mul(c, k) y = Tanh(t) }""",
            "t",
        ),
        ("g (float[1, 4] x) => (string[1, 4] y) { t = Mul(x, k) y = Cast<to = 8>(t) }", "t"),
    ],
    ids=["sequence out", "sequence inside", "text"],
)
def test_values_that_are_no_numbers_are_passed_over(tmp_path: Path, text: str, value: str) -> None:
    a, b = (
        written(tmp_path / f"{k}.onnx", text, k=np.float32(k), n=np.int64(2)) for k in (2.0, 3.0)
    )
    assert named(engine.diff(a, b)) == {value}


def test_a_quantized_value_that_is_a_step_off_is_rounding(tmp_path: Path) -> None:
    """0.4999 and 0.5001 are within 1e-3, and are rounded to 0 and 1 of 255 steps."""

    def model(name: str, factor: float) -> Path:
        return written(
            tmp_path / name,
            """g (float[4] x) => (float[4] y) { s = Mul(x, k) q = QuantizeLinear(s, one, zero)
                d = DequantizeLinear(q, one, zero) y = Mul(d, s) }""",
            k=np.float32(factor),
            one=np.float32(1),
            zero=np.uint8(0),
        )

    x = [np.float32([0.5, 1, 2, 3])]
    found = engine.diff(model("a.onnx", 0.9998), model("b.onnx", 1.0002), x)
    assert named(found) >= {"s"}
    assert found.fault is not None
    assert found.fault.first.name == "d"


@pytest.mark.parametrize(
    "text",
    [
        "g (float[3] x) => (float[3] y, float[3] k) { y = Relu(x) }",  # an initializer
        "g (float[3] x) => (float[3] y, float[3] o) { y = Relu(x) o = Add(k, k) }",
        "g () => (float[3] o) { o = Add(k, k) }",
    ],
)
def test_a_constant_output_that_is_apart_is_no_nodes_fault(tmp_path: Path, text: str) -> None:
    sides = [
        written(tmp_path / f"{side}.onnx", text, k=np.array([1, 2, last], np.float32))
        for side, last in (("a", 3), ("b", 4))
    ]
    found = engine.diff(*sides)
    assert (found.is_within, found.fault) == (False, None)
    assert "is apart, and no node of a is to blame: there it is a constant" in str(found)


def test_a_fault_is_named_beside_a_constant_output_that_is_apart(tmp_path: Path) -> None:
    text = "g (float[3] x) => (float[3] y, float[3] k) {{ h = {}(x) y = Neg(h) }}"
    found = engine.diff(
        written(tmp_path / "a.onnx", text.format("Relu"), k=np.ones(3, np.float32)),
        written(tmp_path / "b.onnx", text.format("Exp"), k=np.zeros(3, np.float32)),
    )
    assert named(found) == {"h"}
    assert any("output 'k' is apart" in note for note in found.notes)


def test_the_node_that_makes_a_sequence_of_right_tensors_is_noted(tmp_path: Path) -> None:
    text = """g (float[3] x) => (seq(float[3]) s)
        {{ y = Relu(x) z = Neg(x) s = SequenceConstruct({}) }}"""
    found = engine.diff(
        written(tmp_path / "a.onnx", text.format("y, z")),
        written(tmp_path / "b.onnx", text.format("z, y")),
    )
    assert (found.is_within, found.fault) == (False, None)
    assert "look at SequenceConstruct 's', which makes it" in str(found)


def test_an_error_that_a_node_of_two_outputs_enlarges_is_anothers(tmp_path: Path) -> None:
    text = """g (float[4] x, bool c) => (float[4] y, float[4] z)
        { h = Mul(x, k) y, z = If(c)
          <then_branch = t () => (float[4] p, float[4] q)
            { r = Mul(h, h) s = Mul(r, r) p = Mul(s, s) q = Neg(h) },
           else_branch = e () => (float[4] u, float[4] v) { u = Neg(h) v = Neg(h) }> }"""
    sides = [
        written(tmp_path / f"{factor}.onnx", text, k=np.float32(factor)) for factor in (1.0003, 1)
    ]
    found = engine.diff(*sides, {"x": np.array([1, 2, 3, 4], np.float32), "c": np.array(True)})
    assert named(found) == {"h"}
    assert found.fault is not None
    assert found.fault.value == "y"


def test_a_nan_of_one_side_is_not_called_rounding(tmp_path: Path) -> None:
    text = "g (float[4] x) => (float[4] y) {{ {}h = Sqrt({}) y = Neg(h) }}"
    found = engine.diff(
        written(tmp_path / "a.onnx", text.format("", "x")),
        written(tmp_path / "b.onnx", text.format("p = Abs(x) ", "p")),
        {"x": np.array([1, -2, 3, 4], np.float32)},
    )
    assert named(found) == {"h"}
    assert found.fault is not None
    assert found.fault.exact_a is not None
    assert found.fault.exact_b is not None
    assert (found.fault.exact_a.unmatched, found.fault.exact_b.unmatched) == (1, 0)
    assert not found.fault.is_rounding


def test_whole_numbers_that_float64_cannot_tell_apart_are_counted(tmp_path: Path) -> None:
    text = "g (int64[2] x) => (int64[2] y) { h = Add(x, k) y = Identity(h) }"
    sides = [
        written(tmp_path / f"{term}.onnx", text, k=np.array([term, 1], np.int64)) for term in (1, 2)
    ]
    found = engine.diff(*sides, {"x": np.array([2**62, 5], np.int64)})
    assert named(found) == {"h"}
    assert found.fault is not None
    spreads = (found.fault.spread, found.fault.exact_a, found.fault.exact_b)
    assert [spread and (spread.apart, spread.absolute[-1]) for spread in spreads] == [
        (1, 1.0), (1, 1.0), (0, 0.0),
    ]  # fmt: skip
    assert found.fault.nodes[0].own is None or found.fault.nodes[0].own > 1
    assert not found.fault.is_rounding


def test_whole_numbers_are_traced_to_the_node_that_decides_them(tmp_path: Path) -> None:
    """The largest of nearly equal numbers changes; the numbers themselves are within."""

    def model(name: str, last: float) -> Path:
        text = "g (float[1, 4] x) => (int64[1] y) { s = Mul(x, k) t = Tanh(s) y = ArgMax<axis = 1, keepdims = 0>(t) }"  # noqa: E501
        return written(tmp_path / name, text, k=np.float32([[1, 1, 1, last]]))

    x = np.float32([[0.5, 0.1, 0.2, 0.4999]])
    found = engine.diff(model("a.onnx", 1.0), model("b.onnx", 1.0005), [x])
    assert named(found) == {"s"}
    assert found.fault is not None
    assert (found.fault.value, found.fault.own.absolute.error) == ("y", 3)  # type: ignore[union-attr]


# -------------------------------------------------------------------------------- what is refused


def test_random_nodes_are_refused_with_the_reason(tmp_path: Path) -> None:
    path = written(
        tmp_path / "m.onnx",
        "g (float[4] x) => (float[4] y) { r = RandomNormalLike(x) y = Add(x, r) }",
    )
    with pytest.raises(ModelError, match="RandomNormalLike 'r' gives another result in each run"):
        engine.diff(path)


def test_a_mindir_is_compared_with_its_onnx(tmp_path: Path) -> None:
    from engine.cli import main

    mindir = Path(__file__).parents[1] / "data" / "mindir" / "lenet_bn.mindir"
    assert main(["convert", str(mindir), str(tmp_path / "same"), "-q"]) == 0
    model = onnx.load(tmp_path / "same.mindir")
    assert engine.diff(mindir, tmp_path / "same.mindir", inside=True).is_within
    node = next(node for node in model.graph.node if node.op_type == "Gemm")
    kept = [attribute for attribute in node.attribute if attribute.name != "alpha"]
    del node.attribute[:]
    node.attribute.extend([*kept, onnx.helper.make_attribute("alpha", 1.1)])
    onnx.save(model, tmp_path / "other.onnx")
    assert named(engine.diff(mindir, tmp_path / "other.onnx", inside=True)) == {node.output[0]}


TRAINING = """g (float[4] x) => (float[4] y) { h = Relu(x)
    d, m = Dropout(h, ratio, training) y = Neg(d) }"""
IN_A_BODY = """g (float[4] x, bool c) => (float[4] y) { h = Relu(x)
    y = If(c) <then_branch = one () => (float[4] o) { o, m = Dropout(h, ratio, training) },
               else_branch = two () => (float[4] o) { o = Neg(h) }> }"""
BY_A_NODE = """g (float[4] x) => (float[4] y) { h = Relu(x)
    training = Constant<value = bool {0}>() d, m = Dropout(h, ratio, training) y = Neg(d) }"""


def dropped(path: Path, text: str, *, training: bool) -> Path:
    given = {} if "Constant" in text else {"training": np.array(training)}
    return written(path, text, ratio=np.float32(0.5), **given)


@pytest.mark.parametrize("text", [TRAINING, IN_A_BODY, BY_A_NODE])
def test_a_dropout_that_is_not_in_training_is_no_random_node(tmp_path: Path, text: str) -> None:
    a = dropped(tmp_path / "a.onnx", text.replace("Relu", "Abs"), training=False)
    b = dropped(tmp_path / "b.onnx", text, training=False)
    x = {"x": np.float32([1, -2, 3, 4]), **({"c": np.array(True)} if "If" in text else {})}
    assert named(engine.diff(a, b, x)) == {"h"}


@pytest.mark.parametrize("text", [TRAINING, IN_A_BODY])
def test_a_dropout_in_training_is_refused(tmp_path: Path, text: str) -> None:
    path = dropped(tmp_path / "m.onnx", text, training=True)
    x = {"x": np.float32([1, -2, 3, 4]), **({"c": np.array(True)} if "If" in text else {})}
    with pytest.raises(ModelError, match=r"a: .*Dropout .* gives another result in each run"):
        engine.diff(path, inputs=x, inside=True)


def test_a_side_that_cannot_be_searched_is_named(tmp_path: Path) -> None:
    text = "g (float[4] x) => (float[4] y) { h = Relu(x) y = Neg(h) }"
    a = written(tmp_path / "a.onnx", text)
    b = written(tmp_path / "b.onnx", text.replace("Relu", "RandomNormalLike"))
    with pytest.raises(ModelError, match=r"^b: .*b\.onnx: RandomNormalLike 'h' gives another"):
        engine.diff(a, b)
    with pytest.raises(ModelError, match=r"^a: .*b\.onnx: RandomNormalLike 'h' gives another"):
        engine.diff(b, a)


def test_a_side_that_was_tuned_is_looked_into(tmp_path: Path) -> None:
    """A tuning counts for the whole model: its parts, and the reproducer, have what it chose."""
    faulty, value = planted(deep(20, 1), "epsilon", 1)
    onnx.save(deep(20, 1), tmp_path / "model.onnx")
    onnx.save(faulty, tmp_path / "faulty.onnx")
    tuned = tmp_path / "tuned.ini"
    engine.tune(tmp_path / "faulty.onnx", targets="cpu", budget_s=0.2, out=tuned)
    said = re.sub(r"^threads=.*\n", "", tuned.read_text(), flags=re.M)
    tuned.write_text(said.replace("[tuned]\n", "[tuned]\nthreads=3\n"))
    found = engine.diff(
        tmp_path / "faulty.onnx",
        tmp_path / "model.onnx",
        configs=(tuned, None),
        folder=tmp_path / "fault",
    )
    assert named(found) == {value}
    command = json.loads((tmp_path / "fault/fault.json").read_text())["command"]
    assert command[command.index("--a") + 1] == "cpu"
    assert not [word for word in command if word.startswith("tuned.")]
    assert command[command.index("--threads-a") + 1] == "3"
    assert "--threads-b" not in command
