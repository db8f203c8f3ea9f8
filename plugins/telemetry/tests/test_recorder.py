"""Recorded requests: whole, private, bounded, for any values, threads and processes."""

from __future__ import annotations

import logging
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ways import WAYS, opened, rows

import engine
from engine.errors import Cancelled, InputError, SettingError
from engine.types import (
    CancelToken,
    DType,
    ModelDescription,
    RequestEvent,
    Status,
    TensorSpec,
    UpdateEvent,
    ValueKind,
)
from engine_telemetry.record import RecordError, read
from engine_telemetry.recorder import Recorder

X = TensorSpec("x", DType.FLOAT32, (None,))


def event(
    inputs: Any, outputs: Any, specs: tuple[TensorSpec, ...] = (X,), id: str = "1"
) -> RequestEvent:
    model = ModelDescription(
        name="m", path="/m.onnx", backends=("null",), inputs=specs, outputs=specs, id=id
    )
    return RequestEvent(
        model=model,
        id="7-1",
        status=Status.COMPLETED,
        begin_s=time.monotonic(),
        queue_s=0.0,
        compute_s=0.5,
        inputs=inputs,
        outputs=outputs,
    )


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.npz"))


@pytest.mark.parametrize("way", WAYS)
def test_each_way_is_recorded(way: str, affine: Path, tmp_path: Path) -> None:
    folder = tmp_path / "requests"
    token = CancelToken()
    token.cancel()
    with opened(way, affine, {"recorder": {"path": str(folder)}}) as ask:
        for number in range(3):
            ask([rows(number + 1)])
        with pytest.raises(InputError):
            ask([rows(1), rows(1)])
        with pytest.raises(Cancelled):
            ask({"x": rows(1)}, cancel=token)
    assert [path.name for path in files(folder)] == [f"{number:06}.npz" for number in range(1, 6)]
    records = [read(path, number) for number, path in enumerate(files(folder), 1)]
    assert [record.status for record in records] == ["completed"] * 3 + ["failed", "cancelled"]
    for number, record in enumerate(records[:3]):
        assert record.inputs is not None
        assert record.outputs is not None
        np.testing.assert_array_equal(record.inputs["x"], rows(number + 1))
        np.testing.assert_array_equal(record.outputs["y"], 2 * rows(number + 1) + 1)
    assert (records[3].inputs, records[3].outputs) == (None, None)
    assert records[4].outputs is None
    assert [*tmp_path.glob("requests/.*")] == []


def test_files_and_folder_are_for_their_owner_alone(
    affine: Path, tmp_path: Path, load: Callable[..., engine.Model]
) -> None:
    folder = tmp_path / "private" / "requests"
    before = os.umask(0)
    try:
        with load(affine, "recorder", path=str(folder)) as model:
            model.predict([rows(1)])
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in files(folder)] == [0o600]


def test_numpy_opens_a_record(
    affine: Path, tmp_path: Path, load: Callable[..., engine.Model]
) -> None:
    with load(affine, "recorder", path=str(tmp_path)) as model:
        model.predict([rows(2)])
    with np.load(files(tmp_path)[0]) as arrays:
        np.testing.assert_array_equal(arrays["inputs.x"], rows(2))
        np.testing.assert_array_equal(arrays["outputs.y"], 2 * rows(2) + 1)


VALUES = {
    "bfloat16": (DType.BFLOAT16, np.array([1.5, -2], ml_dtypes.bfloat16)),
    "int4": (DType.INT4, np.array([[7, -8]], ml_dtypes.int4)),
    "float8": (DType.FLOAT8E4M3FN, np.array([0.5, np.nan], ml_dtypes.float8_e4m3fn)),
    "complex": (DType.COMPLEX64, np.array([1 + 2j], np.complex64)),
    "bool": (DType.BOOL, np.array([True, False])),
    "scalar": (DType.FLOAT32, np.array(3.5, np.float32)),
    "empty": (DType.FLOAT32, np.zeros((0, 3), np.float32)),
    "text": (DType.STRING, np.array([["a\0", "ü", ""]], object)),
    "not contiguous": (DType.FLOAT32, rows(4).T),
}


@pytest.mark.parametrize("kind", VALUES)
def test_every_type_comes_back_bit_by_bit(kind: str, tmp_path: Path) -> None:
    dtype, array = VALUES[kind]
    specs = (TensorSpec("../odd name", dtype, None),)
    Recorder({"path": str(tmp_path)}).on_request(event([array], [array], specs))
    record = read(files(tmp_path)[0], 1)
    assert record.inputs is not None
    found = record.inputs["../odd name"]
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    if array.dtype == object:
        assert found.tolist() == array.tolist()
    else:
        assert found.tobytes() == array.tobytes()


def test_sequences_maps_and_absent_values_come_back(tmp_path: Path) -> None:
    specs = (
        TensorSpec("s", DType.FLOAT32, (None,), ValueKind.SEQUENCE),
        TensorSpec("absent", DType.FLOAT32, (None,), ValueKind.OPTIONAL),
        TensorSpec("s[0]", DType.FLOAT32, (None,)),
        TensorSpec("none", DType.FLOAT32, (None,), ValueKind.SEQUENCE),
    )
    values = [[rows(1), rows(2)], None, rows(3), []]
    maps = [{"a": np.float32(0.5)}, {3: 1.0}, rows(1), [{"b": 2.0}]]
    Recorder({"path": str(tmp_path)}).on_request(event(values, maps, specs))
    record = read(files(tmp_path)[0], 1)
    assert record.inputs is not None
    assert record.outputs is not None
    first, second = record.inputs["s"]
    np.testing.assert_array_equal(first, rows(1))
    np.testing.assert_array_equal(second, rows(2))
    assert record.inputs["absent"] is None
    assert record.inputs["none"] == []
    np.testing.assert_array_equal(record.inputs["s[0]"], rows(3))
    assert record.outputs["s"] == {"a": 0.5}
    assert record.outputs["absent"] == {3: 1.0}
    assert record.outputs["none"] == [{"b": 2.0}]


def test_a_folder_takes_as_many_requests_as_its_limit(
    affine: Path,
    tmp_path: Path,
    load: Callable[..., engine.Model],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        caplog.at_level(logging.WARNING, "engine"),
        load(affine, "recorder", path=str(tmp_path / "a"), limit="3") as model,
    ):
        for _ in range(10):
            model.predict([rows(1)])
    assert len(files(tmp_path / "a")) == 3
    assert sum("has 3 requests, its limit" in message for message in caplog.messages) == 1
    with load(affine, "recorder", path=str(tmp_path / "a"), limit="5") as model:
        for _ in range(10):
            model.predict([rows(1)])
    assert len(files(tmp_path / "a")) == 5


def test_a_folder_takes_as_much_as_its_limit_and_smaller_requests_still_go_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder({"path": str(tmp_path), "max_mb": "0.1"})
    large, small = np.zeros(20_000, np.float32), np.zeros(10, np.float32)
    with caplog.at_level(logging.WARNING, "engine"):
        for array in (large, large, large, small):
            recorder.on_request(event([array], None))
    assert len(files(tmp_path)) == 2
    assert sum(path.stat().st_size for path in files(tmp_path)) <= 100_000
    [message] = caplog.messages
    assert "no room for a request of 8" in message
    assert "max_mb=0.1" in message


def test_threads_lose_nothing_and_keep_to_the_limit(tmp_path: Path) -> None:
    recorder = Recorder({"path": str(tmp_path), "limit": "70"})
    gate = threading.Barrier(8)

    def client(number: int) -> None:
        gate.wait(60)
        for index in range(10):
            recorder.on_request(event([np.array([number, index], np.float32)], None))

    threads = [threading.Thread(target=client, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    found = files(tmp_path)
    assert [path.name for path in found] == [f"{number:06}.npz" for number in range(1, 71)]
    records = [read(path, 1).inputs or {} for path in found]
    assert len({tuple(record["x"]) for record in records}) == 70


FORKING = """
import os, sys
import numpy as np
import engine

config = {"common_context": {"extensions": "recorder"}, "recorder_extension": {"path": sys.argv[2]}}
children = []
for child in range(3):
    if not (pid := os.fork()):
        with engine.load(sys.argv[1], config=config) as model:
            for index in range(10):
                model.predict([np.array([[child, index, 0]], np.float32)])
        os._exit(0)
    children.append(pid)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
"""


def python(source: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", source, *map(str, arguments)]


def test_processes_share_a_folder(affine: Path, tmp_path: Path) -> None:
    folder = tmp_path / "requests"
    command = python(FORKING, affine, folder)
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in files(folder)] == [f"{number:06}.npz" for number in range(1, 31)]
    records = [read(path, 1).inputs or {} for path in files(folder)]
    assert {tuple(record["x"][0]) for record in records} == {
        (child, index, 0) for child in range(3) for index in range(10)
    }


ENDLESS = """
import itertools, sys
import numpy as np
import engine

config = {"common_context": {"extensions": "recorder"}, "recorder_extension": {"path": sys.argv[2]}}
with engine.load(sys.argv[1], config=config) as model:
    for number in itertools.count(1):
        model.predict([np.full((20_000, 3), number, np.float32)])
        print(number, flush=True)
"""


def test_a_killed_process_has_recorded_all_that_it_answered_and_nothing_by_half(
    affine: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "requests"
    process = subprocess.Popen(python(ENDLESS, affine, folder), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if int(line) >= 20:
                break
    finally:
        process.send_signal(signal.SIGKILL)
        printed = process.stdout.read().split()
        process.stdout.close()
        process.wait(60)
    answered = max(20, *map(int, printed or ["0"]))
    assert answered <= len(files(folder)) <= answered + 1
    for number, path in enumerate(files(folder), 1):
        assert (read(path, number).inputs or {})["x"][0, 0] == number


def test_what_killed_processes_have_left_is_removed(tmp_path: Path) -> None:
    old, new = tmp_path / ".1-1-1.part", tmp_path / ".2-2-2.part"
    for path in (old, new):
        path.touch()
    os.utime(old, (time.time() - 7200,) * 2)
    Recorder({"path": str(tmp_path)})
    assert [*tmp_path.iterdir()] == [new]


def test_requests_after_an_update_are_marked(tmp_path: Path) -> None:
    recorder = Recorder({"path": str(tmp_path)})
    before = event([rows(1)], [rows(1)])
    recorder.on_request(before)
    recorder.on_update(
        UpdateEvent(model=before.model, status=Status.COMPLETED, begin_s=0.0, duration_s=0.0)
    )
    recorder.on_request(before)
    recorder.on_request(event([rows(1)], [rows(1)], id="2"))  # another model, of the same file
    assert [read(path, 1).updated for path in files(tmp_path)] == [False, True, False]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, "option 'path' is missing"),
        ({"path": "x", "limits": "3"}, "unknown option 'limits'; did you mean 'limit'"),
        ({"path": "x", "limit": "0"}, "'limit': expected int from 1, got '0'"),
        ({"path": "x", "max_mb": "many"}, "'max_mb': expected float from 0, got 'many'"),
    ],
)
def test_a_wrong_option_says_what_was_wanted(options: dict[str, str], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        Recorder(options)


def test_a_path_that_is_no_folder_is_an_error_at_the_build(
    affine: Path, tmp_path: Path, load: Callable[..., engine.Model]
) -> None:
    with pytest.raises(
        SettingError, match=r"recorder.*'path': expected a folder to write files into, got "
    ):
        load(affine, "recorder", path=str(affine))


def damaged(data: bytes, how: str) -> bytes:
    if how == "cut":
        return data[: len(data) // 2]
    if how == "empty":
        return b""
    if how == "json":
        return data.replace(b'"status"', b'"states"')
    middle = data.index(b"\x93NUMPY") + 130
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize("how", ["cut", "empty", "json", "a bit"])
def test_a_damaged_record_is_seen(how: str, tmp_path: Path) -> None:
    Recorder({"path": str(tmp_path)}).on_request(event([rows(1)], [rows(1)]))
    [path] = files(tmp_path)
    path.write_bytes(damaged(path.read_bytes(), how))
    with pytest.raises(RecordError, match=r"000001\.npz: not a recorded request, or a damaged"):
        read(path, 1)
