"""Make a MatMul, whole and cut by rows for two ranks, and what the second tutorial's ranks need.

    python make_model.py [FOLDER]

Writes Matmul.onnx, Matmul0.onnx, Matmul1.onnx, rank_table.json and config.ini. A rank multiplies
its half of x's columns with its half of the weight's rows; the sum over the ranks is the product.
"""

import json
import sys
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

RANKS = 2
ROWS, INNER, COLUMNS = 4, 128, 64


def value(name, shape):
    """Return the description of a float32 input or output."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def write(path, nodes, constants):
    """Write a model that makes y of x."""
    graph = helper.make_graph(
        nodes, path.stem, [value("x", [ROWS, INNER])], [value("y", [ROWS, COLUMNS])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


def main(folder):
    """Write all files into a folder."""
    weight = np.random.default_rng(0).standard_normal((INNER, COLUMNS)).astype(np.float32)
    write(folder / "Matmul.onnx", [helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": weight})
    part = INNER // RANKS
    nodes = [
        helper.make_node("Slice", ["x", "first", "last", "axis"], ["x_part"]),
        helper.make_node("MatMul", ["x_part", "w"], ["partial"]),
        helper.make_node(
            "AllReduce", ["partial"], ["y"], "sum of all ranks", domain="com.microsoft"
        ),
    ]
    for rank in range(RANKS):
        first, last = part * rank, part * (rank + 1)
        constants = {"first": np.array([first]), "last": np.array([last]), "axis": np.array([1])}
        write(folder / f"Matmul{rank}.onnx", nodes, {"w": weight[first:last], **constants})
    table = {
        "version": "1.0",
        "server_count": "1",
        "status": "completed",
        "server_list": [
            {
                "server_id": "127.0.0.1",
                "device": [{"device_id": str(n), "rank_id": str(n)} for n in range(RANKS)],
            }
        ],
    }
    (folder / "rank_table.json").write_text(json.dumps(table, indent=2))
    (folder / "config.ini").write_text(
        f"[ascend_context]\nprovider=ge\nrank_table_file={folder / 'rank_table.json'}\n"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1] if sys.argv[1:] else ".").absolute())
