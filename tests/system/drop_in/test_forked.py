"""A session in a forked child: its parent's model, or an error, but never another model."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from graphs import parsed

import engine.onnxruntime as ort

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def written(folder: Path, factor: float, *, apart: bool = False) -> Path:
    """Write y = factor * x in place of what is there, and return the model's path."""
    text = "g (float[n, 3] x) => (float[n, 3] y) { y = Mul (x, w) }"
    model = parsed(text, w=np.full(3, factor, "f4"))
    aside = folder / "aside"
    aside.mkdir()
    onnx.save(
        model, aside / "m.onnx", save_as_external_data=apart, size_threshold=0, location="w.bin"
    )
    for file in aside.iterdir():
        file.replace(folder / file.name)
    aside.rmdir()
    return folder / "m.onnx"


def in_child(ask: Callable[[], Any]) -> Any:
    """Return what a forked child gets, or the exception's class and text."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def child() -> None:
        try:
            sender.send(ask())
        except Exception as error:
            sender.send((type(error).__name__, str(error)))

    process = context.Process(target=child)
    process.start()
    assert receiver.poll(60)
    found = receiver.recv()
    process.join()
    return found


def answers(session: Any, times: int = 2) -> list[Any]:
    return [session.run(None, {"x": X + i})[0].tolist() for i in range(times)]


def options(module: Any) -> Any:
    """Return options without threads, which a child of onnxruntime's does not have."""
    made = module.SessionOptions()
    made.intra_op_num_threads = 1
    return made


@pytest.mark.parametrize("apart", [False, True], ids=["one file", "external data"])
def test_a_forked_child_runs_its_parents_session(apart: bool, tmp_path: Path) -> None:
    path = written(tmp_path, 2, apart=apart)
    session, theirs = (
        module.InferenceSession(path, options(module)) for module in (ort, onnxruntime)
    )
    expected = [(2 * (X + i)).tolist() for i in range(2)]
    assert answers(session) == answers(theirs) == expected
    assert in_child(lambda: answers(theirs)) == expected
    assert in_child(lambda: answers(session)) == expected


@pytest.mark.parametrize("apart", [False, True], ids=["one file", "external data"])
def test_a_forked_child_refuses_a_file_that_has_changed_since(apart: bool, tmp_path: Path) -> None:
    path = written(tmp_path, 2, apart=apart)
    session, theirs = (
        module.InferenceSession(path, options(module)) for module in (ort, onnxruntime)
    )
    before = answers(theirs)
    model = path.read_bytes()
    written(tmp_path, 3, apart=apart)
    if apart:  # only the weights have changed
        assert path.read_bytes() == model
    # onnxruntime keeps its weights in memory, so that its child goes on with them.
    assert in_child(lambda: answers(theirs)) == before == answers(session)

    def twice() -> list[Any]:
        found = []
        for _ in range(2):
            with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException) as was:
                session.run(None, {"x": X})
            found.append(str(was.value))
        return [*found, answers(ort.InferenceSession(path), 1)]

    first, second, new = in_child(twice)
    assert first == second
    assert str(tmp_path) in first
    assert "has changed since the session was made" in first
    assert "make a new InferenceSession" in first
    assert new == [(3 * X).tolist()]
    assert answers(session) == before


def test_a_file_that_is_written_to_in_place_is_refused_too(tmp_path: Path) -> None:
    path = written(tmp_path, 2)
    session = ort.InferenceSession(path)
    status = path.stat()
    other = tmp_path / "other"
    other.mkdir()
    content = written(other, 3).read_bytes()
    assert len(content) == status.st_size
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    name, text = in_child(lambda: answers(session))
    assert name == "RuntimeException"
    assert f"{path}: has changed" in text


def test_a_file_that_was_damaged_since_has_changed(tmp_path: Path) -> None:
    path = written(tmp_path, 2)
    session = ort.InferenceSession(path)
    path.write_bytes(path.read_bytes()[:20])
    name, text = in_child(lambda: answers(session))
    assert name == "RuntimeException"
    assert f"{path}: has changed" in text


def test_a_child_in_another_folder_reads_its_parents_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, 2)
    other = tmp_path / "other"
    other.mkdir()
    written(other, 3)
    monkeypatch.chdir(tmp_path)
    session, theirs = (
        module.InferenceSession("m.onnx", options(module)) for module in (ort, onnxruntime)
    )

    def ask(session: Any) -> Any:
        os.chdir(other)
        return answers(session)

    assert in_child(lambda: ask(session)) == in_child(lambda: ask(theirs)) == answers(session)


def test_a_model_with_initializers_of_the_options_is_watched_too(tmp_path: Path) -> None:
    path = written(tmp_path, 2)
    value = onnxruntime.OrtValue.ortvalue_from_numpy(np.full(3, 5, np.float32))
    made = options(ort)
    made.add_initializer("w", value)
    session = ort.InferenceSession(path, made)
    assert in_child(lambda: answers(session)) == [(5 * (X + i)).tolist() for i in range(2)]
    written(tmp_path, 3)
    name, text = in_child(lambda: answers(session))
    assert (name, f"{path}: has changed" in text) == ("RuntimeException", True)


def test_a_childs_first_question_may_be_the_models_header(tmp_path: Path) -> None:
    path = written(tmp_path, 2)
    model = onnx.load(path)
    model.producer_name = "a shop"
    onnx.helper.set_model_props(model, {"labels": "a,b"})
    onnx.save(model, path)
    session, theirs = (module.InferenceSession(path) for module in (ort, onnxruntime))

    def ask(session: Any) -> Any:
        header = session.get_modelmeta()
        return header.producer_name, header.custom_metadata_map

    assert in_child(lambda: ask(session)) == ask(theirs) == ("a shop", {"labels": "a,b"})


def test_bytes_and_a_missing_file_are_told_apart(tmp_path: Path) -> None:
    path = written(tmp_path, 2)
    session, of_bytes = ort.InferenceSession(path), ort.InferenceSession(path.read_bytes())
    path.unlink()
    assert in_child(lambda: answers(of_bytes)) == answers(session)
    assert in_child(lambda: answers(session))[0] == "NoSuchFile"
