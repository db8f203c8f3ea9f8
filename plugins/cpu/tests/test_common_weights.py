"""Forms of different models store once what they have in common."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import engine
from engine.weights.store import Store
from engine_cpu import weights_pool
from engine_cpu.common_weights import share
from engine_cpu.compiled import GRAPH, WEIGHTS
from engine_testing.heavy_models import LAYER_WIDTH as WIDTH
from engine_testing.heavy_models import layer, layers

Load = Callable[[Path], engine.Model]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENGINE_CACHE", "on")
    return tmp_path / "cache"


@pytest.fixture
def check(cache: Path) -> Callable[[Path], None]:
    """Build a model twice, and hold its results against a plain session's, bit by bit."""

    def check(path: Path) -> None:
        x = np.random.default_rng(7).standard_normal((3, WIDTH)).astype(np.float32)
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        [expected] = ort.InferenceSession(path, options).run(None, {"x": x})
        for _ in range(2):
            config = {"common_context": {"model_cache_dir": str(cache)}}
            with engine.load(path, threads=1, config=config) as model:
                [y] = model(x=x).values()
            assert y.tobytes() == expected.tobytes()

    return check


def forms(cache: Path) -> dict[str, dict[str, int]]:
    """The sizes of each form's mapped files, by the number of its links to others."""
    found = {}
    for form in sorted(cache.glob("v1/entries/*/form"), key=lambda path: path.stat().st_mtime):
        found[form.parent.name] = {file.name: file.stat().st_size for file in form.glob("*.bin")}
    return found


def stored_bytes(cache: Path) -> int:
    """The bytes of all weights on the disk, each file once."""
    files = {file.stat().st_ino: file.stat().st_size for file in cache.rglob("*.bin")}
    return sum(files.values())


def test_a_common_backbone_is_stored_once(tmp_path, cache, check) -> None:
    backbone = [layer(seed) for seed in range(4)]
    check(layers(tmp_path / "a.onnx", [*backbone, layer(10, 100)]))
    alone = stored_bytes(cache)
    check(layers(tmp_path / "b.onnx", [*backbone, layer(11, 200)]))
    head = 2 * 4 * WIDTH * 256  # raw and packed, the packed one padded to a multiple of 16 columns
    assert alone < stored_bytes(cache) < alone + head
    first, second = forms(cache).values()
    assert [*first] == [WEIGHTS]
    assert len(second) == 2
    assert second[WEIGHTS] < head


def test_a_common_backbone_of_two_at_the_same_time_is_stored_once(tmp_path, cache, check) -> None:
    backbone = [layer(seed) for seed in range(4)]
    check(layers(tmp_path / "a.onnx", [*backbone, layer(10, 100)]))
    alone = stored_bytes(cache)
    shutil.rmtree(cache)
    paths = [layers(tmp_path / f"n{n}.onnx", [*backbone, layer(n, 100)]) for n in range(2)]
    config = {"common_context": {"model_cache_dir": str(cache)}}
    together = threading.Barrier(2)

    def build(path: Path) -> None:
        together.wait(60)
        engine.load(path, threads=1, config=config).close()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(build, paths))
    assert stored_bytes(cache) < alone + 2 * 4 * WIDTH * 128


@pytest.fixture
def held_pool(tmp_path, cache, check) -> Iterator[Path]:
    """A pool with the weights of a first model, which another process holds."""
    check(layers(tmp_path / "a.onnx", [layer(0), layer(1)]))
    [pool] = cache.glob("v1/shared/*")
    descriptor = os.open(pool / "linked", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield pool
    os.close(descriptor)


def test_a_pool_that_another_holds_for_ever_is_used_all_the_same(
    tmp_path, cache, check, monkeypatch, held_pool
) -> None:
    monkeypatch.setattr(weights_pool, "_WAIT_S", 0.05)
    stored = stored_bytes(cache)
    check(layers(tmp_path / "b.onnx", [layer(0), layer(1), layer(2, 100)]))
    assert stored_bytes(cache) - stored < 3 * layer(2, 100).nbytes


def test_a_build_that_waits_for_the_pool_can_be_cancelled(tmp_path, cache, held_pool) -> None:
    class CancelledInPool(engine.CancelToken):
        def check(self) -> None:
            if weights_pool._open_here:
                self.cancel()
            super().check()

    config = {"common_context": {"model_cache_dir": str(cache)}}
    path = layers(tmp_path / "b.onnx", [layer(0), layer(3)])
    with pytest.raises(engine.Cancelled):
        engine.load(path, threads=1, config=config, cancel=CancelledInPool())
    assert not weights_pool._open_here
    assert list((cache / "v1/building").iterdir()) == []


def test_a_child_forked_while_the_pool_is_held_does_not_hold_it_on(tmp_path) -> None:
    """Also where its parent is killed, so that nobody lets go of it."""
    script = f"""
import os, time
from pathlib import Path
from engine_cpu import weights_pool
with weights_pool.held(Path({str(tmp_path)!r})):
    if not os.fork():
        print(os.getpid(), flush=True)
    time.sleep(300)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())  # from the child itself: what a fork does is done
        parent.kill()
    try:
        with weights_pool.held(tmp_path, lambda: pytest.fail("the child holds it")) as is_held:
            assert is_held
    finally:
        os.kill(child, signal.SIGKILL)


def test_large_weights_begin_behind_the_start_of_a_page(tmp_path, cache, check) -> None:
    check(layers(tmp_path / "a.onnx", [layer(0), layer(1), layer(2, 100)]))
    [form] = cache.glob("v1/entries/*/form")
    model = onnx.load(form / GRAPH, load_external_data=False)
    spans = []
    for tensor in model.graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if not entries:
            continue
        [packed] = entries["prepacked_0"].split("|")[1:]
        begin, length, _ = map(int, packed.split(";"))
        spans += [(int(entries["offset"]), int(entries["length"])), (begin, length)]
    assert len(spans) == 6
    offsets = [begin % 4096 for begin, _ in spans]
    if version("onnxruntime") >= "1.32":  # which copies packed ones that do not begin a page
        assert offsets[1::2] == [0] * 3
        assert not any(offset % 64 for offset in offsets)
    else:
        assert offsets == [128] * 6
    spans.sort()
    assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(spans))
    assert sum(spans[-1]) == (form / WEIGHTS).stat().st_size


def test_a_third_model_links_to_both(tmp_path, cache, check) -> None:
    check(layers(tmp_path / "a.onnx", [layer(0), layer(1)]))
    check(layers(tmp_path / "b.onnx", [layer(2), layer(3)]))
    before = stored_bytes(cache)
    check(layers(tmp_path / "c.onnx", [layer(3), layer(0), layer(4)]))
    assert stored_bytes(cache) - before < 3 * layer(4).nbytes
    assert sorted(len(files) for files in forms(cache).values()) == [1, 1, 3]


def test_weights_pruned_while_a_form_looks_for_them_are_stored_again(
    tmp_path, cache, check, monkeypatch, caplog
) -> None:
    check(layers(tmp_path / "a.onnx", [layer(0), layer(1)]))
    [file] = cache.glob("v1/shared/cpu/linked/*.bin")
    link = os.link

    def pruned_first(source: Path, target: Path) -> None:
        file.unlink(missing_ok=True)
        link(source, target)

    monkeypatch.setattr(os, "link", pruned_first)
    check(layers(tmp_path / "b.onnx", [layer(0), layer(1), layer(2)]))
    assert [len(files) for files in forms(cache).values()] == [1, 1]
    assert "compile cache" not in caplog.text


def test_equal_samples_are_no_equal_tensors(tmp_path, cache, check) -> None:
    other = layer(0)
    other[1, 1] += 1  # between two of the samples that are compared first
    check(layers(tmp_path / "a.onnx", [layer(0), layer(1)]))
    check(layers(tmp_path / "b.onnx", [other, layer(2)]))
    assert [len(files) for files in forms(cache).values()] == [1, 1]


def test_models_that_share_nothing_stay_apart(tmp_path, cache, check) -> None:
    check(layers(tmp_path / "a.onnx", [layer(0)]))
    check(layers(tmp_path / "b.onnx", [layer(1)]))
    assert [len(files) for files in forms(cache).values()] == [1, 1]


def test_weights_stay_while_a_form_links_to_them_and_go_after_that(tmp_path, cache, check) -> None:
    check(layers(tmp_path / "a.onnx", [layer(0), layer(1)]))
    check(layers(tmp_path / "b.onnx", [layer(0), layer(2)]))
    store = Store(cache)
    [first] = [entry for entry in store.entries() if entry.title.endswith("a.onnx")]
    store.remove(first.folder.name)
    check(tmp_path / "b.onnx")
    [second] = store.entries()
    store.remove(second.folder.name)
    check(layers(tmp_path / "c.onnx", [layer(5), layer(6)]))
    [third] = forms(cache).values()
    pool = cache / "v1" / "shared" / "cpu"
    assert [path.stat().st_size for path in pool.glob("linked/*.bin")] == [third[WEIGHTS]]
    assert len(list(pool.glob("*.json"))) == 1


def test_pruning_frees_what_was_shared(tmp_path, cache, check) -> None:
    check(layers(tmp_path / "a.onnx", [layer(0), layer(1)]))
    check(layers(tmp_path / "b.onnx", [layer(0), layer(2)]))
    store = Store(cache)
    entries = {Path(entry.title).stem: entry for entry in store.entries()}
    assert store.nbytes >= stored_bytes(cache)
    assert store.nbytes < entries["a"].nbytes + entries["b"].nbytes - layer(0).nbytes
    os.utime(entries["a"].folder / "entry.json", (0, 0))  # used longest ago
    # It goes, but not the weights that b has of it; and then it is all as large as b.
    size = entries["b"].nbytes
    assert [entry.title for entry in store.prune(size)] == [entries["a"].title]
    check(tmp_path / "b.onnx")
    assert len(list((cache / "v1/shared/cpu/linked").iterdir())) == 2
    check(layers(tmp_path / "c.onnx", [layer(3), layer(4)]))
    os.utime(entries["b"].folder / "entry.json", (0, 0))
    [removed] = store.prune(size)
    assert removed.title == entries["b"].title
    [left] = store.entries()
    assert stored_bytes(cache) == sum(file.stat().st_size for file in left.form.glob("*.bin"))


def test_a_prune_leaves_what_is_shared_to_who_writes(tmp_path, cache, check) -> None:
    check(layers(tmp_path / "a.onnx", [layer(0), layer(1)]))
    store = Store(cache)
    with store.sharing():
        store.prune(0)
        assert (cache / "v1/shared/cpu").exists()
    store.prune(0)
    assert not (cache / "v1/shared").exists()
    assert list((cache / "v1/locks").iterdir()) == []
    check(tmp_path / "a.onnx")
    assert len(store.entries()) == 1


def changed_table(table: dict[str, list[list[int]]], how: str) -> object:
    change: Callable[[int, int], list[object]] = {
        "fractions": lambda offset, length: [offset + 0.0, length],
        "from the end": lambda offset, length: [offset - 4 * layer(0).nbytes, length],
        "beyond the end": lambda offset, length: [offset + (1 << 62), length],
        "texts": lambda offset, length: [str(offset), str(length)],
        "nothing": lambda offset, length: [None, length],
    }[how]
    return {key: [change(*span) for span in spans] for key, spans in table.items()}


@pytest.mark.parametrize("how", ["fractions", "from the end", "beyond the end", "texts", "nothing"])
def test_places_that_are_none_share_nothing(tmp_path, cache, check, how) -> None:
    check(layers(tmp_path / "a.onnx", [layer(0), layer(1)]))
    [file] = (cache / "v1/shared/cpu").glob("*.json")
    file.write_text(json.dumps(changed_table(json.loads(file.read_text()), how)))
    check(layers(tmp_path / "b.onnx", [layer(0), layer(2)]))
    assert [len(files) for files in forms(cache).values()] == [1, 1]


MOVED = pytest.mark.skipif(
    version("onnxruntime") >= "1.32", reason="this onnxruntime writes these weights in place"
)


# The last one is what ONNX Runtime writes; the moved weights take a little more.
@pytest.mark.parametrize(
    "limit", [0, 1 << 20, 3 << 20, (4 << 20) - 1, pytest.param(4 << 20, marks=MOVED)]
)
def test_a_file_that_cannot_be_written_whole_is_no_form(
    tmp_path, cache, check, limit, caplog
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    path = layers(tmp_path / "a.onnx", [layer(0), layer(1)])  # 4 MiB, raw and packed
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        check(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert forms(cache) == {}
    warnings = [record.message for record in caplog.records]
    [told] = [text for text in warnings if "compiled form could not be written" in text]
    assert str(path) in told
    assert "at fault" not in told
    assert list((cache / "v1/building").iterdir()) == []
    assert list((cache / "v1/formless").iterdir()) == [], "the next build would write nothing"
    check(path)  # there is room again
    assert len(forms(cache)) == 1


def test_a_model_that_onnxruntime_takes_only_prepared_is_no_fault_of_the_disk(
    tmp_path, cache, caplog
) -> None:
    path = layers(tmp_path / "a.onnx", [layer(0)])
    model = onnx.load(path)
    with engine.load(path, threads=1) as built:
        x = np.ones((1, WIDTH), np.float32)
        [expected] = built(x=x).values()
    model.ir_version = onnx.IR_VERSION + 1  # newer than any onnxruntime reads
    path.write_bytes(model.SerializeToString())
    config = {"common_context": {"model_cache_dir": str(cache)}}
    with engine.load(path, threads=1, config=config) as built:
        [y] = built(x=x).values()
    np.testing.assert_array_equal(y, expected)
    assert "could not be written" not in caplog.text


DEEP = "[" * 100_000


@pytest.mark.parametrize("table", ["", "[]", '{"a": 1}', '{"a": [[0, 99999999999]]}', "\0", DEEP])
def test_a_damaged_table_shares_nothing(tmp_path, cache, check, table) -> None:
    check(layers(tmp_path / "a.onnx", [layer(0), layer(1)]))
    [file] = (cache / "v1/shared/cpu").glob("*.json")
    file.write_text(table)
    check(layers(tmp_path / "b.onnx", [layer(0), layer(2)]))


def test_weights_of_the_pool_that_changed_are_not_taken(tmp_path, cache, check) -> None:
    check(layers(tmp_path / "a.onnx", [layer(0), layer(1)]))
    [file] = (cache / "v1/shared/cpu/linked").glob("*.bin")
    data = bytearray(file.read_bytes())
    data[WIDTH + 5] ^= 1
    file.unlink()
    file.write_bytes(data)
    (cache / "v1/shared/cpu/link").hardlink_to(file)  # as if a form had it
    check(layers(tmp_path / "b.onnx", [layer(0), layer(2)]))


def test_tensors_of_inner_graphs_leave_a_form_as_it_is(tmp_path) -> None:
    """Their places are not rewritten, so the file that they name must stay."""
    weights = tmp_path / WEIGHTS
    weights.write_bytes(bytes(1 << 21))
    location = onnx.StringStringEntryProto(key="location", value=WEIGHTS)
    inner = TensorProto(name="w", data_type=1, dims=[4], external_data=[location])
    body = helper.make_graph([], "body", [], [], [inner])
    node = helper.make_node("If", ["c"], ["y"], then_branch=body)
    model = helper.make_model(helper.make_graph([node], "g", [], []))
    (tmp_path / GRAPH).write_bytes(model.SerializeToString())
    before = (tmp_path / GRAPH).read_bytes()
    share(tmp_path, GRAPH, WEIGHTS, tmp_path / "pool")
    assert (tmp_path / GRAPH).read_bytes() == before
    assert not list((tmp_path / "pool").glob("*")) if (tmp_path / "pool").exists() else True
