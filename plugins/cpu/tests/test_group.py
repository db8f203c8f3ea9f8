"""Models of a group share weights by content, and workspace: on cpu, where both are real."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import engine
from engine import Context, Model, ModelGroup, ModelGroupFlag, ModelType
from engine.model import recipe
from engine_testing.heavy_models import LAYER_WIDTH as WIDTH
from engine_testing.heavy_models import layer, layers
from engine_testing.heavy_models import wide as wide_model
from engine_testing.making import graph

LAYER = 4 * WIDTH * WIDTH  # bytes
X = np.random.default_rng(7).standard_normal((3, WIDTH)).astype(np.float32)

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="no /proc/self/maps")


@pytest.fixture
def prefill(tmp_path: Path) -> str:
    return str(layers(tmp_path / "prefill.onnx", [*map(layer, (0, 1, 2, 10))]))


@pytest.fixture
def decode(tmp_path: Path) -> str:
    return str(layers(tmp_path / "decode.onnx", [*map(layer, (0, 1, 2, 11, 12))]))


COMMON, PREFILL, DECODE = 3 * LAYER, 4 * LAYER, 5 * LAYER


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of this test, in which nothing may be left private at its end."""
    folder = tmp_path / "cache" / "v1"
    monkeypatch.setenv("ENGINE_CACHE_DIR", str(folder.parent))
    monkeypatch.delenv("ENGINE_CACHE", raising=False)
    monkeypatch.setattr("engine.backends.doors._warned", set())
    monkeypatch.setattr(recipe, "groups", {})
    monkeypatch.setattr("engine.model.build.groups", recipe.groups)
    yield folder
    gc.collect()
    assert list(folder.glob("private/*")) == []


def build(path: str, model: Model | None = None, **config: dict[str, str]) -> Model:
    model = model or Model()
    context = Context()
    context.cpu.thread_num = 1
    model.build_from_file(path, ModelType.MINDIR, context, "", config)
    return model


def check(path: str, model: Model) -> None:
    """Hold a model's result against a plain session's, bit by bit."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    [expected] = ort.InferenceSession(path, options).run(None, {"x": X})
    [y] = model.predict([X])
    assert y.get_data_to_numpy().tobytes() == expected.tobytes()


@pytest.mark.parametrize("mode", ["on", "off", "read"])
@pytest.mark.parametrize("are_objects", [True, False])
def test_two_graphs_with_the_same_tensors_have_them_once(
    mode: str, are_objects: bool, prefill: str, decode: str, cache: Path
) -> None:
    """They are far below the cache's least size; and it may be off."""
    off = {"common_context": {"compile_cache": mode}}
    group = ModelGroup(ModelGroupFlag.SHARE_WEIGHT)
    first, second = Model(), Model()
    group.add_model([first, second] if are_objects else [prefill, decode])
    with build(prefill, first, **off):
        alone = first.memory()
        assert (alone.shared_bytes, alone.mapped_bytes, alone.private_bytes) == (0, PREFILL, 0)
        with build(decode, second, **off):
            for model, size in ((first, PREFILL), (second, DECODE)):
                memory = model.memory()
                assert memory.why_unshared == ""
                assert memory.shared_bytes == COMMON
                assert memory.mapped_bytes == size - COMMON
            check(prefill, first)
            check(decode, second)
        assert first.memory() == alone
        assert bool(list(cache.glob("private/*"))) == (mode != "on")
        assert bool(list(cache.glob("entries/*"))) == (mode == "on")
    assert list(cache.glob("private/*")) == [], "it ends with the last model"


def test_the_weights_are_in_memory_once(prefill: str, decode: str, cache: Path) -> None:
    """As the system counts: the pages of all files of the cache, each once."""
    group = ModelGroup(ModelGroupFlag.SHARE_WEIGHT_WORKSPACE)
    group.add_model([prefill, decode])
    off = {"common_context": {"compile_cache": "off"}}
    with build(prefill, **off) as first, build(decode, **off) as second:
        check(prefill, first)
        check(decode, second)
        with open("/proc/self/smaps", encoding="ascii") as file:
            lines = file.read().splitlines()
        total, is_ours = 0, False
        for line in lines:
            if "-" in line.split()[0] and not line.split()[0].endswith(":"):
                is_ours = str(cache) in line
            elif is_ours and line.startswith("Pss:"):
                total += int(line.split()[1]) << 10
        assert total == pytest.approx(PREFILL + DECODE - COMMON, rel=0.02)


def test_models_that_are_built_at_once_share_too(prefill: str, decode: str) -> None:
    group = ModelGroup(ModelGroupFlag.SHARE_WEIGHT)
    group.add_model([prefill, decode])
    off = {"common_context": {"compile_cache": "off"}}
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda path: build(path, **off), [prefill, decode])
    with first, second:
        assert first.memory().shared_bytes == second.memory().shared_bytes == COMMON


def test_a_forked_child_may_build_while_the_parent_does(prefill: str, decode: str) -> None:
    """The child has one thread: a lock that another held in the parent is nobody's there."""
    from engine.model import group_forms as sharing

    sharing._turn.acquire()
    child = os.fork()
    if not child:
        ended = threading.Thread(target=lambda: sharing._turn.acquire(timeout=100))
        ended.start()
        ended.join(60)
        os._exit(ended.is_alive())
    sharing._turn.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_group_without_weights_keeps_them_apart(prefill: str, decode: str) -> None:
    group = ModelGroup()
    group.add_model([prefill, decode])
    with build(prefill) as first, build(decode) as second:
        for model, size in ((first, PREFILL), (second, DECODE)):
            memory = model.memory()
            assert (memory.private_bytes, memory.shared_bytes) == (size, 0)
            assert memory.why_unshared == "", "nobody asked for it"


def test_a_model_that_comes_when_the_others_are_gone_starts_anew(
    prefill: str, decode: str, cache: Path
) -> None:
    group = ModelGroup(ModelGroupFlag.SHARE_WEIGHT)
    group.add_model([prefill, decode])
    off = {"common_context": {"compile_cache": "off"}}
    build(prefill, **off).close()
    assert list(cache.glob("private/*")) == []
    with build(decode, **off) as model:
        assert model.memory().mapped_bytes == DECODE
        check(decode, model)


def test_a_resized_model_stays_in_its_group(prefill: str, tmp_path: Path) -> None:
    fixed = onnx.load(prefill)
    fixed.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 3
    path = str(tmp_path / "fixed.onnx")
    onnx.save(fixed, path)
    group = ModelGroup(ModelGroupFlag.SHARE_WEIGHT)
    group.add_model([prefill, path])
    off = {"common_context": {"compile_cache": "off"}}
    with build(prefill, **off), build(path, **off) as model:
        assert model.memory().shared_bytes == PREFILL
        model.resize(model.get_inputs(), [[5, WIDTH]])
        assert model.memory().shared_bytes == PREFILL
        x = np.concatenate([X, X])[:5]
        [y] = model.predict([x])
        assert y.shape == [5, WIDTH]


@pytest.mark.skipif(find_spec("cryptography") is None, reason="cryptography is not installed")
def test_an_encrypted_model_leaves_nothing_and_says_so(
    prefill: str, tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from engine.formats.encryption import encrypt

    key = bytes(range(16))
    path = tmp_path / "secret.onnx"
    path.write_bytes(encrypt(Path(prefill).read_bytes(), key))
    group = ModelGroup(ModelGroupFlag.SHARE_WEIGHT)
    models = [Model(), Model()]
    group.add_model(models)
    with caplog.at_level(logging.WARNING, "engine"):
        for model in models:
            model.build_from_file(str(path), ModelType.MINDIR, dec_key=key)
    for model in models:
        memory = model.memory()
        assert memory.why_unshared == "it is encrypted, and nothing of such a model is kept"
        assert (memory.private_bytes, memory.shared_bytes, memory.mapped_bytes) == (PREFILL, 0, 0)
        check(prefill, model)
        model.close()
    [record] = [r for r in caplog.records if "shared" in r.message]
    assert "secret.onnx: its weights are not shared with its group: it is enc" in record.message
    assert list(cache.glob("entries/*")) == []


def test_where_there_is_no_place_the_models_have_copies(
    prefill: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("ENGINE_CACHE_DIR", str(tmp_path / "file"))
    group = ModelGroup(ModelGroupFlag.SHARE_WEIGHT)
    group.add_model([prefill])
    off = {"common_context": {"compile_cache": "off"}}
    with caplog.at_level(logging.WARNING, "engine"), build(prefill, **off) as model:
        assert "there is no place for them" in model.memory().why_unshared
        check(prefill, model)
    assert "set ENGINE_CACHE_DIR" in caplog.text or "cannot be made" in caplog.text


@pytest.mark.parametrize(
    ("width", "reason"),
    [(200, "no other open model has them, or enough"), (20, "they are 1,600 bytes, too few")],
)
def test_twins_that_have_too_little_in_common_say_so(
    tmp_path: Path, cache: Path, width: int, reason: str
) -> None:
    """A model and the same with a fixed batch are different models, and 160,000 bytes are few."""
    weight = {"w": layer(0)[:width, :width]}
    group = ModelGroup(ModelGroupFlag.SHARE_WEIGHT)
    twins = [Model(), Model()]
    group.add_model(twins)
    paths = []
    for batch, twin in zip(("b", 4), twins, strict=True):
        kind = f"float[{batch}, {width}]"
        text = f"({kind} x) => ({kind} y) {{ y = MatMul (x, w) }}"
        paths.append(str(graph(tmp_path, f"batch_{batch}", text, weight)))
        build(paths[-1], twin)
    for twin in twins:
        memory = twin.memory()
        assert memory.shared_bytes == 0
        assert memory.why_unshared.startswith(reason)
    again = Model()
    group.add_model([again])
    with build(paths[0], again):  # the same model: that is shared, however small
        assert (again.memory().why_unshared == "") is (width == 200)
    for twin in twins:
        twin.close()


def test_a_process_that_is_killed_leaves_what_the_next_one_removes(
    prefill: str, cache: Path
) -> None:
    code = (
        "import os, signal, sys, engine\n"
        "group = engine.ModelGroup(engine.ModelGroupFlag.SHARE_WEIGHT)\n"
        "group.add_model([sys.argv[1]])\n"
        "model = engine.load(sys.argv[1], config={'common_context': {'compile_cache': 'off'}})\n"
        "assert model.memory().mapped_bytes\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, prefill], check=False, timeout=60)
    assert len(list(cache.glob("private/*"))) == 1
    group = ModelGroup(ModelGroupFlag.SHARE_WEIGHT)
    group.add_model([prefill])
    with build(prefill, common_context={"compile_cache": "off"}) as model:
        assert len(list(cache.glob("private/*"))) == 1
        check(prefill, model)


def test_the_option_of_the_backend_is_the_users_first(
    prefill: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine_cpu import workspace

    taken: list[object] = []
    use = workspace.use

    def count(settings: ort.SessionOptions) -> None:
        taken.append(settings)
        use(settings)

    monkeypatch.setattr(workspace, "use", count)
    group = ModelGroup(ModelGroupFlag.SHARE_WORKSPACE)
    group.add_model([prefill])
    with build(prefill, cpu_context={"workspace": "own"}) as model:
        assert not taken
        check(prefill, model)
    with build(prefill) as model:
        assert taken
        check(prefill, model)


@pytest.fixture
def wide(tmp_path: Path) -> Callable[[int], str]:
    """A model whose activations take 4 MiB for each of its terms, from the first to the last."""
    return lambda terms: str(wide_model(tmp_path / f"wide{terms}.onnx", terms))


def test_the_dry_run_measures_activations(wide: Callable[[int], str]) -> None:
    context = Context()
    context.cpu.thread_num = 1
    group = ModelGroup()
    group.add_model([wide(12)])
    group.cal_max_size_of_workspace(ModelType.MINDIR, context)
    with build(wide(12)) as model:
        measured = model.memory().group_workspace_bytes
        # The first run allocates piece by piece, later ones by plan: at most that twice.
        assert 12 * (4 << 20) <= measured <= 2.5 * 12 * (4 << 20)


def test_models_that_run_at_once_are_right_on_shared_workspace(wide: Callable[[int], str]) -> None:
    paths = [wide(6), wide(9), wide(12)]
    group = ModelGroup()
    group.add_model(paths)
    x = np.linspace(0, 3, 1 << 20, dtype=np.float32)
    built = [build(path) for path in paths]
    expected = [model.predict([x])[0].get_data_to_numpy().copy() for model in built]
    wrong = []

    def run(number: int) -> None:
        for _ in range(6):
            [y] = built[number].predict([x])
            if y.get_data_to_numpy() != expected[number]:
                wrong.append(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for model in built:
        model.close()
    assert not wrong
    plain = [engine.load(path, threads=1) for path in paths]
    for model, value in zip(plain, expected, strict=True):
        assert model.predict([x])[0].get_data_to_numpy() == value
        model.close()
