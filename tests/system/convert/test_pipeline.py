"""Conversions from end to end on the cpu backend: what is written runs, or nothing is written."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conversions import converted
from graphs import written
from onnx import TensorProto, helper
from own_python import python
from waiting import wait_until

import engine
from engine import BackendError, Cancelled, CancelToken, Converter, FmkType, Model, ModelError
from engine.converter import scratch, write
from engine_testing import models

MINDIR = Path(__file__).parents[2] / "data" / "mindir"
FILES = json.loads((MINDIR / "manifest.json").read_text())["files"]
KEY = "00112233445566778899aabbccddeeff"
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def outputs(path: Path, *inputs: Any, key: str = "") -> list[np.ndarray[Any, Any]]:
    model = Model()
    model.build_from_file(
        str(path), engine.ModelType.MINDIR, dec_key=bytes.fromhex(key) if key else None
    )
    with model:
        return [each.get_data_to_numpy() for each in model.predict(list(inputs))]


def product(path: Path, size: int = 512) -> np.ndarray[Any, Any]:
    """y = x @ weight, x float32[1, size]; gives the weight, of 4 * size ** 2 bytes."""
    weight = np.random.default_rng(3).normal(size=(size, size)).astype(np.float32)
    text = f"product (float[1, {size}] x) => (float[1, {size}] y) {{ y = MatMul(x, weight) }}"
    written(path, text, weight=weight)
    return weight


# ------------------------------------------------------------------------------------- from MindIR


@pytest.mark.parametrize(
    "entry",
    [  # the same lowering as for a load, which tests/system/mindir looks at file by file
        pytest.param(entry, id=entry["name"], marks=pytest.mark.slow if number % 4 else ())
        for number, entry in enumerate(FILES)
        if entry.get("kind") != "sliced" and not entry["name"].startswith(("state_", "op_"))
    ],
)
def test_a_converted_mindir_gives_mindspores_results(entry, tmp_path):
    path = MINDIR / entry["file"]
    report = converted(
        path,
        tmp_path / "out",
        FmkType.MINDIR,
        decrypt_key=entry.get("dec_key", ""),
        decrypt_mode=entry.get("dec_mode", "AES-GCM"),
    )
    assert report.notes == ()
    onnx.load(tmp_path / "out.mindir")
    with np.load(path.with_suffix(".npz")) as arrays:
        prefix = "" if "out_0" in arrays else "case1_"
        inputs = [arrays[f"{prefix}in_{n}"] for n in range(50) if f"{prefix}in_{n}" in arrays]
        for place, result in enumerate(outputs(tmp_path / "out.mindir", *inputs)):
            np.testing.assert_allclose(result, arrays[f"{prefix}out_{place}"], **entry["tolerance"])


@pytest.mark.parametrize("name", ["state_counter", "state_kv"])
def test_a_mindir_that_keeps_state_is_refused_by_the_parameters_name(name, tmp_path):
    with pytest.raises(ModelError, match=r"assigns to its parameter '.+'.*give the .mindir itself"):
        converted(MINDIR / "nets" / f"{name}.mindir", tmp_path / "out", FmkType.MINDIR)
    assert not list(tmp_path.iterdir())


def test_one_ranks_part_of_a_model_is_noted(tmp_path):
    models.affine(tmp_path)
    model = onnx.load(tmp_path / "affine.onnx")
    model.graph.node.append(
        helper.make_node("AllReduce", ["y"], ["z"], domain="com.microsoft", reduction="sum")
    )
    model.graph.output[0].name = "z"
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, tmp_path / "rank0.mindir")
    report = converted(tmp_path / "rank0.mindir", tmp_path / "out", FmkType.MINDIR)
    [note] = report.notes
    assert note.startswith("the model is one rank's part of a distributed one (AllReduce): ")
    assert "not yet" not in note  # the result runs: tests/distributed/test_ranks.py


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("", "is encrypted; set decrypt_key, and decrypt_mode if it is not AES-GCM"),
        ("ff" * 16, "the key is wrong"),
    ],
)
def test_an_encrypted_mindir_needs_its_key(key, text, tmp_path):
    with pytest.raises(ModelError, match=f"^Converter model failed! error is .*{text}"):
        converted(
            MINDIR / "nets/enc_AES-GCM_16.mindir", tmp_path / "out", FmkType.MINDIR, decrypt_key=key
        )
    assert not list(tmp_path.iterdir())


def test_a_result_can_be_converted_again_as_mindir_and_as_onnx(tmp_path):
    affine = models.affine(tmp_path)
    converted(affine, tmp_path / "first")
    for framework in (FmkType.MINDIR, FmkType.ONNX):
        converted(tmp_path / "first.mindir", tmp_path / "second", framework)
        np.testing.assert_array_equal(outputs(tmp_path / "second.mindir", X)[0], 2 * X + 1)


# -------------------------------------------------------------------------- weights and their files


def test_external_data_is_brought_into_the_one_file(tmp_path):
    weight = product(tmp_path / "whole.onnx")
    folder = tmp_path / "split"
    folder.mkdir()
    onnx.save(
        onnx.load(tmp_path / "whole.onnx"),
        folder / "net.onnx",
        save_as_external_data=True,
        location="net.bin",
    )
    report = converted(folder / "net.onnx", tmp_path / "out")
    (folder / "net.bin").unlink()
    x = np.ones((1, 512), np.float32)
    np.testing.assert_allclose(
        outputs(tmp_path / "out.mindir", x)[0], x @ weight, rtol=1e-4, atol=1e-3
    )
    assert report.size_before >= weight.nbytes
    assert len(report.files) == 1


def test_a_large_result_has_its_weights_in_a_second_file(tmp_path, monkeypatch):
    weight = product(tmp_path / "net.onnx")
    monkeypatch.setattr(write, "INLINE_BYTES", weight.nbytes - 1)
    folder = tmp_path / "results"
    folder.mkdir()
    converter = Converter()
    converter.infer = True
    for _ in range(2):  # the second one replaces the first
        converter.convert(FmkType.ONNX, str(tmp_path / "net.onnx"), str(folder / "out"))
        report = converter.report
        assert report is not None
        assert report.files == (folder / "out.mindir", folder / "out.mindir.data")
        assert set(report.files) == set(folder.iterdir())
        assert report.notes == ("keep the weights, out.mindir.data, beside the model",)
        assert report.size_after == sum(each.stat().st_size for each in report.files)
        assert (folder / "out.mindir").stat().st_size < 2000
        x = np.ones((1, 512), np.float32)
        expected = x @ weight
        np.testing.assert_allclose(report.trial["y"], expected, rtol=1e-4, atol=1e-3)
        [found] = outputs(folder / "out.mindir", x)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


def test_weights_in_fields_of_their_type_go_out_too(tmp_path, monkeypatch):
    weight = product(tmp_path / "net.onnx", 64)
    model = onnx.load(tmp_path / "net.onnx")
    tensor = helper.make_tensor("weight", TensorProto.FLOAT, weight.shape, weight.ravel())
    assert tensor.float_data
    model.graph.initializer[0].CopyFrom(tensor)
    onnx.save(model, tmp_path / "net.onnx")
    monkeypatch.setattr(write, "INLINE_BYTES", 1000)
    converted(tmp_path / "net.onnx", tmp_path / "out")
    assert (tmp_path / "out.mindir.data").read_bytes() == weight.tobytes()
    assert (tmp_path / "out.mindir").stat().st_size < 2000
    x = np.ones((1, 64), np.float32)
    np.testing.assert_allclose(outputs(tmp_path / "out.mindir", x)[0], x @ weight, rtol=1e-4)


@pytest.mark.parametrize("step", [("writing weights", 0), ("trial run", 0), ("trial run", 1)])
def test_a_cancel_in_the_middle_of_writing_leaves_the_earlier_result(step, tmp_path, monkeypatch):
    product(tmp_path / "net.onnx")
    monkeypatch.setattr(write, "INLINE_BYTES", 1000)
    (tmp_path / "out.mindir").write_bytes(b"earlier")
    before = sorted(tmp_path.iterdir())
    token = CancelToken()
    converter = Converter()
    converter.infer = True
    with pytest.raises(Cancelled):
        converter.convert(
            FmkType.ONNX,
            str(tmp_path / "net.onnx"),
            str(tmp_path / "out"),
            progress=lambda phase, done, _: token.cancel() if (phase, done) == step else None,
            cancel=token,
        )
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "out.mindir").read_bytes() == b"earlier"


def test_a_result_never_replaces_the_weights_of_its_source(tmp_path, monkeypatch):
    product(tmp_path / "net.onnx", 64)
    monkeypatch.setattr(write, "INLINE_BYTES", 1000)
    converted(tmp_path / "net.onnx", tmp_path / "out")
    (tmp_path / "out.mindir").rename(tmp_path / "kept.mindir")
    before = (tmp_path / "out.mindir.data").read_bytes()
    with pytest.raises(
        ModelError, match=r"out\.mindir\.data beside it holds weights of model_file"
    ):
        converted(tmp_path / "kept.mindir", tmp_path / "out", FmkType.MINDIR)
    assert (tmp_path / "out.mindir.data").read_bytes() == before
    assert not (tmp_path / "out.mindir").exists()


@pytest.mark.parametrize("name", [b"no\xfftext", b"n" * 240, "\n{%s} ü".encode()])
def test_files_may_be_called_anything(name, tmp_path):
    source = tmp_path / os.fsdecode(name)
    models.affine(tmp_path).rename(source)
    output = tmp_path / os.fsdecode(name + b".o")
    converted(source, output)
    result = output.with_name(f"{output.name}.mindir")
    assert sorted(tmp_path.iterdir()) == sorted([source, result])
    np.testing.assert_array_equal(outputs(result, X)[0], 2 * X + 1)


def test_what_the_system_refuses_is_a_model_error_that_names_the_file(tmp_path):
    product(tmp_path / "net.onnx", 64)
    (tmp_path / "file").touch()
    converter = Converter()
    asked = {"quant_type": "WEIGHT_QUANT", "debug_info_save_path": str(tmp_path / "file" / "in")}
    converter.set_config_info("common_quant_param", asked)
    with pytest.raises(ModelError, match=rf"error is {tmp_path}/file/in: Not a directory$"):
        converter.convert(FmkType.ONNX, str(tmp_path / "net.onnx"), str(tmp_path / "out"))
    with pytest.raises(ModelError, match=r"/nnn[^ ]*: File name too long$"):
        converter.convert(FmkType.ONNX, str(tmp_path / "net.onnx"), str(tmp_path / ("n" * 300)))


@pytest.mark.parametrize("size", [1 << 50, 1 << 58])
@pytest.mark.parametrize("infer", [False, True])
def test_a_shape_beyond_any_memory_is_an_error(size, infer, tmp_path):
    source = tmp_path / "net.onnx"
    if infer:
        models.affine(tmp_path).rename(source)
    else:
        product(source, 3)  # its batch is fixed: to change it both models are run
    with pytest.raises(ModelError, match="needs more memory than there is: MemoryError"):
        converted(source, tmp_path / "out", infer=infer, input_shape={"x": [size, 3]})
    assert list(tmp_path.iterdir()) == [source]


# In a process of its own, because a limit cannot be taken back.
_LIMITED = """
import resource, sys
from engine import Converter, FmkType
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    Converter().convert(FmkType.ONNX, *sys.argv[1:])
except RuntimeError as error:
    print(error)
"""


def test_a_full_disk_is_an_error_that_names_the_file_and_leaves_nothing(tmp_path):
    product(tmp_path / "net.onnx")
    done = python("-c", _LIMITED, tmp_path / "net.onnx", tmp_path / "out", check=True)
    wanted = f"Converter model failed! error is {tmp_path}/out.mindir: cannot be written: File too"
    assert done.stdout.startswith(wanted)
    assert [each.name for each in tmp_path.iterdir()] == ["net.onnx"]


# ------------------------------------------------------------------------------------- encryption


def encrypting(key: str = KEY) -> Converter:
    converter = Converter()
    converter.enable_encryption = True
    converter.encrypt_key = key
    return converter


@pytest.mark.parametrize("key", [KEY, KEY + KEY[:16], KEY * 2, KEY.upper()])
def test_an_encrypted_result_runs_with_its_key_and_with_no_other(key, tmp_path):
    affine = models.affine(tmp_path)
    converter = encrypting(key)
    converter.infer = True
    converter.convert(FmkType.ONNX, str(affine), str(tmp_path / "out"))
    assert converter.report is not None
    np.testing.assert_array_equal(converter.report.trial["y"], [[3, 3, 3]])
    result = tmp_path / "out.mindir"
    np.testing.assert_array_equal(outputs(result, X, key=key)[0], 2 * X + 1)
    with pytest.raises(ModelError, match="key is wrong"):
        outputs(result, X, key="ff" * 16)
    with pytest.raises(ModelError, match="encrypted"):
        outputs(result, X)


# In a process of its own, because an audit hook cannot be taken away.
_WATCHED = """
import sys
from pathlib import Path
from engine import Converter, FmkType
source, folder, key = sys.argv[1:]
def watch(event, arguments):
    if event == "open" and set(str(arguments[1])) & set("wax+"):
        print(arguments[0])
    elif event == "os.mkdir":
        print(arguments[0], "(folder)")
sys.addaudithook(watch)
converter = Converter()
converter.enable_encryption = converter.infer = True
converter.encrypt_key = key
converter.convert(FmkType.ONNX, source, folder + "/out")
"""


def test_nothing_is_written_in_clear_while_it_is_encrypted(tmp_path):
    weight = product(tmp_path / "net.onnx", 64)
    secret = weight.tobytes()[:64]
    env = {"PYTHONDONTWRITEBYTECODE": "1"}
    done = python("-c", _WATCHED, tmp_path / "net.onnx", tmp_path, KEY, check=True, env=env)
    folder, file, said = done.stdout.splitlines()
    assert said == "CONVERT RESULT SUCCESS:0"
    assert folder.endswith(" (folder)")
    assert Path(file) == Path(folder.removesuffix(" (folder)")) / "out.mindir"
    written = (tmp_path / "out.mindir").read_bytes()
    assert secret in (tmp_path / "net.onnx").read_bytes()
    assert secret not in written
    assert b"product" not in written


# Writes of native code are no events: the folders that it might write to are looked at afterwards.
_QUANTIZING = """
import sys
from engine import Converter, FmkType
source, folder, samples, key = sys.argv[1:]
converter = Converter()
converter.enable_encryption = converter.infer = True
converter.encrypt_key = converter.decrypt_key = key
converter.input_shape = {"x": [2, 64]}
converter.set_config_info("common_quant_param", {"quant_type": "FULL_QUANT"})
converter.set_config_info(
    "data_preprocess_param", {"calibrate_path": "x:" + samples, "input_type": "BIN"}
)
converter.convert(FmkType.MINDIR, source, folder + "/out")
"""


@pytest.mark.skipif(not scratch.MEMORY.is_dir(), reason="there are no files in memory here")
def test_a_secret_model_leaves_nothing_behind_when_it_is_quantized(tmp_path, monkeypatch):
    product(tmp_path / "net.onnx", 64)
    encrypting().convert(FmkType.ONNX, str(tmp_path / "net.onnx"), str(tmp_path / "locked"))
    places = {name: tmp_path / name for name in ("TMPDIR", "HOME", "XDG_CACHE_HOME", "samples")}
    places["result"] = tmp_path / "result"
    for place in places.values():
        place.mkdir()
    np.random.default_rng(0).normal(size=(2, 64)).astype(np.float32).tofile(
        places["samples"] / "0.bin"
    )
    shared = set(scratch.MEMORY.iterdir())
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    env = {name: str(place) for name, place in places.items()}
    files = (tmp_path / "locked.mindir", places["result"], places["samples"])
    python("-c", _QUANTIZING, *files, KEY, check=True, env=env, cwd=places["TMPDIR"])
    left = [each.name for place in places.values() for each in place.rglob("*")]
    assert sorted(left) == ["0.bin", "out.mindir"]
    assert b"product" not in (places["result"] / "out.mindir").read_bytes()
    ours = {each for each in set(scratch.MEMORY.iterdir()) - shared if "engine-conv" in each.name}
    assert not ours


def test_an_encrypted_result_is_one_file_and_has_an_end(tmp_path, monkeypatch):
    weight = product(tmp_path / "net.onnx")
    monkeypatch.setattr(write, "INLINE_BYTES", 1000)
    encrypting().convert(FmkType.ONNX, str(tmp_path / "net.onnx"), str(tmp_path / "out"))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["net.onnx", "out.mindir"]
    monkeypatch.setattr(write, "_LIMIT_BYTES", weight.nbytes - 1)
    with pytest.raises(ModelError, match=r"1,048,576 bytes of weights.*less than 1,048,575; store"):
        encrypting().convert(FmkType.ONNX, str(tmp_path / "net.onnx"), str(tmp_path / "other"))


# ----------------------------------------------------------------------------------- the trial run


def test_a_trial_run_takes_ones_and_gives_every_output(tmp_path):
    report = converted(models.several(tmp_path), tmp_path / "out", infer=True)
    trial = report.trial
    assert list(trial) == ["y", "b", "x"]
    np.testing.assert_array_equal(trial["y"], np.zeros((2, 3)))
    np.testing.assert_array_equal(trial["x"], np.full((2, 3), 2))


def failing(path: Path) -> Path:
    """A valid model that asks for row 7 of 3 when its input is 1."""
    nodes = "row = Mul(x, seven)\n y = Gather(table, row)"
    text = f"failing (int64[1] x) => (float[1] y) {{ {nodes} }}"
    return written(path, text, seven=[7], table=np.zeros(3, np.float32))


@pytest.mark.parametrize("inline_bytes", [1 << 30, 0])
def test_a_result_that_does_not_run_is_not_written(inline_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr(write, "INLINE_BYTES", inline_bytes)
    path = failing(tmp_path / "net.onnx")
    (tmp_path / "out.mindir").write_bytes(b"earlier")
    converter = Converter()
    converter.infer = True
    with pytest.raises(ModelError) as caught:
        converter.convert(FmkType.ONNX, str(path), str(tmp_path / "out"))
    said = str(caught.value)
    assert said.startswith("Converter model failed! error is the result does not run: ")
    assert said.endswith(f"; '{tmp_path}/out.mindir' was not written")
    assert "build_from" not in said
    assert (tmp_path / "out.mindir").read_bytes() == b"earlier"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["net.onnx", "out.mindir"]
    converter.infer = False
    converter.convert(FmkType.ONNX, str(path), str(tmp_path / "out"))
    assert onnx.load(tmp_path / "out.mindir", load_external_data=False).graph.name == "failing"


def test_a_trial_run_without_a_backend_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("ENGINE_DISABLED_BACKENDS", "cpu")
    converter = Converter()
    converter.infer = True
    affine = models.affine(tmp_path)
    with pytest.raises(BackendError, match=r"^Converter model failed! error is infer needs a ba"):
        converter.convert(FmkType.ONNX, str(affine), str(tmp_path / "out"))
    assert [each.name for each in tmp_path.iterdir()] == [affine.name]


# -------------------------------------------------------------------------- frameworks and packages


@pytest.mark.parametrize("name", ["net.prototxt", "net.caffemodel"])
def test_caffe_says_what_to_do_instead(name, tmp_path):
    (tmp_path / name).write_text('name: "LeNet"\nlayer { name: "data" }\n')
    with pytest.raises(ModelError, match=r"Caffe models are not read; .*caffe2onnx.*FmkType.ONNX"):
        converted(tmp_path / name, tmp_path / "out", FmkType.CAFFE)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"PK\x03\x04 nothing", "is a zip archive"),
        (b"version https://git-lfs\n", "is a Git LFS pointer, not the file itself; "),
        (b"", "empty file; expected a model"),
        (b"\x20\0\0\0TFL3" + bytes(40), r"holds a TensorFlow Lite model.*pass FmkType\.TFLITE"),
    ],
)
def test_a_file_that_is_no_onnx_says_what_it_is(content, text, tmp_path):
    (tmp_path / "net.onnx").write_bytes(content)
    with pytest.raises(ModelError, match=f"^Converter model failed! error is {tmp_path}.*{text}"):
        converted(tmp_path / "net.onnx", tmp_path / "out")


def test_a_folder_is_a_saved_model_or_nothing(tmp_path):
    with pytest.raises(ModelError, match=r"is a folder without a saved_model\.pb"):
        converted(tmp_path, tmp_path / "out", FmkType.TF)
    (tmp_path / "saved_model.pb").write_bytes(b"\x08\x01")
    with pytest.raises(ModelError, match=r"holds a TensorFlow model, but fmk_type is FmkType.ONN"):
        converted(tmp_path, tmp_path / "out")


_WITHOUT = """
import sys
sys.modules["onnx"] = None
from engine import Converter, FmkType
try:
    Converter().convert(FmkType.ONNX, *sys.argv[1:])
except RuntimeError as error:
    print(error)
"""


def test_without_onnx_the_command_that_helps_is_named(tmp_path):
    affine = models.affine(tmp_path)
    done = python("-c", _WITHOUT, affine, tmp_path / "out", check=True)
    assert done.stdout == (
        "Converter model failed! error is converting models needs onnx; "
        'run: pip install "inference-engine[convert]"\n'
    )


KILLED = """
import os, signal, sys
from pathlib import Path
from engine.converter import {module} as module
{patch}
from engine.converter import Converter
from engine.tensor.enums import FmkType
converter = Converter()
converter.input_shape = {shape!r}
converter.convert(FmkType.ONNX, sys.argv[1], sys.argv[2])
"""
KILL = """
def kill(*arguments):
    assert any(Path(sys.argv[2]).parent.glob(".converting-*"))
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("step", ["write", pytest.param("batch", marks=pytest.mark.slow)])
def test_a_conversion_that_is_killed_leaves_no_folder_beside_its_output(tmp_path, step):
    source, folder = tmp_path / "product.onnx", tmp_path / "out"
    product(source, 8)
    folder.mkdir()
    if step == "write":
        patch = f"{KILL}\nPath.replace = kill"
    else:
        patch = f"{KILL}\nmodule.MAPPED_BYTES = -1\nmodule.write_weights = kill"
    shape = {"x": [2, 8]} if step == "batch" else {}
    script = KILLED.format(module=step, patch=patch, shape=shape)
    done = python("-c", script, source, folder / "net")
    assert done.returncode == -signal.SIGKILL, done.stderr
    wait_until(lambda: not any(folder.iterdir()))
