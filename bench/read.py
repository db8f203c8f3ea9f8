"""Reading a model, before any runtime: CPU time over the onnx package's.

    python bench/read.py                     a tree ensemble of 100 MB, a graph of 10,000 nodes
    python bench/read.py graph --rounds 50   one of them

"onnx.load" is the baseline and its own control; "and checker" is onnx.load with
onnx.checker.check_model. Reading here is what engine.load and engine inspect do before a runtime:
open, recognise, read and check, with all that a plan needs to know. Needs the onnx package.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from measure import bar, compare, parser_of, report
from onnx import TensorProto, helper, numpy_helper

from engine import formats


def trees(path: Path, nodes: int = 2_400_000) -> None:
    """Write a regressor of trees with 1,023 nodes each: 100 MB of unpacked attributes."""
    random = np.random.default_rng(0)
    tree, inside = np.divmod(np.arange(nodes), 1023)
    leaves = nodes // 2

    def floats(count: int) -> list[float]:
        values: list[float] = random.normal(size=count).astype(np.float32).tolist()
        return values

    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1,
        nodes_treeids=tree.tolist(), nodes_nodeids=inside.tolist(),
        nodes_featureids=random.integers(0, 200, nodes).tolist(),
        nodes_modes=["BRANCH_LEQ" if place % 2 else "LEAF" for place in inside.tolist()],
        nodes_values=floats(nodes), nodes_hitrates=[1.0] * nodes,
        nodes_truenodeids=random.integers(0, 1023, nodes).tolist(),
        nodes_falsenodeids=random.integers(0, 1023, nodes).tolist(),
        nodes_missing_value_tracks_true=[0] * nodes,
        target_ids=[0] * leaves, target_weights=floats(leaves),
        target_nodeids=random.integers(0, 1023, leaves).tolist(),
        target_treeids=(np.arange(leaves) // 512).tolist(),
    )  # fmt: skip
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 200])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph([node], "trees", [x], [y])
    path.write_bytes(helper.make_model(graph, opset_imports=opsets).SerializeToString())


def graph(path: Path, nodes: int = 10_000) -> None:
    """Write a chain of nodes with names, shapes and weights as exporters write them: 2 MB."""
    steps, weights, name = [], [], "x"
    for i in range(nodes):
        result = f"/model/layers.{i // 40}/block.{i % 40}/out_{i}"
        title = f"/model/layers.{i // 40}/node_{i}"
        if i % 4 == 0:
            weight = f"model.layers.{i}.weight"
            weights.append(numpy_helper.from_array(np.ones((4, 4), np.float32), weight))
            steps.append(helper.make_node("MatMul", [name, weight], [result], name=title))
        elif i % 4 == 1:
            steps.append(helper.make_node("Add", [name, name], [result], name=title))
        elif i % 4 == 2:
            steps.append(helper.make_node("Softmax", [name], [result], name=title, axis=-1))
        else:
            steps.append(helper.make_node("Transpose", [name], [result], name=title, perm=[1, 0]))
        name = result
    values = [
        helper.make_tensor_value_info(title, TensorProto.FLOAT, [4, 4])
        for title in ("x", *(step.output[0] for step in steps))
    ]
    body = helper.make_graph(steps, "g", values[:1], values[-1:], weights, value_info=values[1:-1])
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)])
    path.write_bytes(model.SerializeToString())


# Each with its rounds, and the most that reading may take over onnx.load and its checker.
CASES: dict[str, tuple[Callable[[Path], None], int, float]] = {
    "trees": (trees, 9, 1.0),
    "graph": (graph, 50, 2.0),
}


def main() -> None:
    parser = parser_of(__doc__, json=True)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, help="rounds of each instead of its own number")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.cases or CASES:
            if name not in CASES:
                parser.error(f"unknown case {name!r}, expected one of: {', '.join(CASES)}")
            write, rounds, at_most = CASES[name]
            path = Path(folder) / f"{name}.onnx"
            write(path)

            def checked(path: Path = path) -> None:
                onnx.checker.check_model(onnx.load(path))

            def read(path: Path = path) -> None:
                formats.open_source(path)

            rows += [
                *compare(
                    lambda path=path: onnx.load(path),  # type: ignore[misc]
                    {f"{name}: reading, over onnx.load": (read, None)},
                    rounds=arguments.rounds or rounds,
                    calls=1,
                    clock=time.process_time,
                    progress=bar(name),
                ),
                *compare(
                    checked,
                    {f"{name}: reading, over onnx.load and checker": (read, at_most)},
                    rounds=arguments.rounds or rounds,
                    calls=1,
                    clock=time.process_time,
                    progress=bar(name),
                ),
            ]
    report(rows, arguments.json)


if __name__ == "__main__":
    main()
