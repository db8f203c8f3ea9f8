"""Memory of ranks: weights are mapped, those that ranks have in common once a machine."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from processes import facts_of, started
from rank_models import node, save, together

SIZE = 1536
WEIGHT_BYTES = SIZE * SIZE * 4
LAYERS = 10

BUILDS = """
import json, os, sys, threading
import numpy as np
import onnx  # which a build imports
import engine

def anonymous_bytes():
    with open("/proc/self/status") as status:
        return int(status.read().partition("RssAnon:")[2].split()[0]) * 1024

engine.load(sys.argv[2], threads=1).close()  # what every process takes
begin, peak, is_over = anonymous_bytes(), 0, threading.Event()

def watch():
    global peak
    while not is_over.wait(0.002):
        peak = max(peak, anonymous_bytes() - begin)

watcher = threading.Thread(target=watch)
watcher.start()
model = engine.load(sys.argv[1] + os.environ["ENGINE_RANK"] + ".onnx", threads=1)
[y] = model(x=np.ones((1, SIZE), np.float32)).values()
is_over.set()
watcher.join()
mapped = {}
for line in open("/proc/self/maps"):
    area, _, _, _, inode, *path = line.split()
    begin_at, end_at = (int(text, 16) for text in area.split("-"))
    if path and "/cache/" in path[0]:
        mapped[inode] = mapped.get(inode, 0) + end_at - begin_at
print(json.dumps({"peak": peak, "mapped": mapped, "y": float(y.sum())}))
""".replace("SIZE", str(SIZE))


def layers(folder: Path) -> None:
    """Write two ranks' models: products, each followed by an all-reduce; one weight is in both.

    Rank files as the slicer writes them: weights beside them, common ones in a file of their own.
    """
    chance = np.random.default_rng(0)
    common = chance.standard_normal((SIZE, SIZE), np.float32)
    for rank in range(2):
        nodes, constants, x = [], {}, "x"
        for layer in range(LAYERS):
            constants[f"w{layer}"] = common + np.float32(layer and 2 * layer + rank)
            nodes += [
                node("MatMul", f"{x} w{layer}", f"h{layer}"),
                together("AllReduce", f"h{layer}", f"y{layer}", reduction="max"),
            ]
            x = f"y{layer}"
        path = save(
            folder / f"layers{rank}.onnx", nodes, {"x": [1, SIZE]}, {x: [1, SIZE]}, constants
        )
        model = onnx.load(path)
        for tensor in model.graph.initializer:
            file = "layers.data" if tensor.name == "w0" else f"layers{rank}.{tensor.name}"
            (folder / file).write_bytes(tensor.raw_data)
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value=file)
        onnx.save(model, path)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("engine_cpu") is None, reason="the cpu backend is not installed")
def test_ranks_map_their_weights_and_those_in_common_once(tmp_path: Path) -> None:
    layers(tmp_path)
    tiny = save(tmp_path / "tiny.onnx", [node("Neg", "x", "y")], {"x": [1]}, {"y": [1]})
    cache = {"ENGINE_CACHE_DIR": str(tmp_path / "cache"), "ENGINE_CACHE": "on"}
    own = LAYERS * WEIGHT_BYTES
    for how, most in (("cold", 0.8), ("warm", 0.4)):
        with started(BUILDS, 2, str(tmp_path / "layers"), str(tiny), **cache) as ranks:
            one, other = [facts_of(rank)[-1] for rank in ranks]
        assert one["y"] == other["y"]
        for facts in (one, other):
            assert facts["peak"] <= most * own, how
            assert sum(facts["mapped"].values()) >= own, "all weights are mapped"
        shared = one["mapped"].keys() & other["mapped"].keys()
        assert sum(one["mapped"][inode] for inode in shared) >= WEIGHT_BYTES, how
        assert len(shared) < len(one["mapped"]), "the others are the rank's own"
