"""TensorRT's log and errors, made readable."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine_gpu_trt import messages


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (
            "IBuilder::buildSerializedNetwork: Error Code 4: API Usage Error (Dimension mismatch "
            "for tensor x. In validate at /_src/optimizer/api/network.cpp:4054)",
            "TensorRT error 4: API Usage Error (Dimension mismatch for tensor x.)",
        ),
        (
            "[checkMacros.cpp::catchCudaError::250] Error Code 1: Cuda Runtime (out of memory)",
            "TensorRT error 1: Cuda Runtime (out of memory)",
        ),
        ("ModelImporter.cpp:151: ERROR: two\nlines", "ERROR: two lines"),
    ],
)
def test_places_in_tensorrts_source_are_left_out(raw: str, text: str) -> None:
    assert messages.tidy(raw) == text


@pytest.mark.parametrize(
    ("said", "short"),
    [
        ("Error Code 1: Cuda Runtime (out of memory)", True),
        ("Error Code 2: OutOfMemory (Requested size was 5 bytes.)", True),
        ("Error Code 4: API Usage Error", False),
    ],
)
def test_a_shortage_of_memory_is_recognised(said: str, short: bool) -> None:
    assert messages.Heard(said).out_of_memory is short


def _say(text: str, severity: str = "ERROR") -> None:
    import tensorrt as trt

    messages.logger(trt).log(getattr(trt.ILogger, severity), text)


def test_only_errors_after_the_mark_are_heard() -> None:
    _say("before")
    mark = messages.mark()
    assert messages.since(mark) == "TensorRT did not say why"
    _say("first")
    _say("a warning", "WARNING")
    _say("second")
    _say("first")
    assert messages.since(mark) == "first; second"


def test_another_threads_errors_are_its_own() -> None:
    mark = messages.mark()

    def build() -> str:
        own = messages.mark()
        _say("theirs")
        return messages.since(own)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(build).result() == "theirs"
        assert messages.since(mark) == "TensorRT did not say why"


def test_the_errors_of_tensorrts_own_threads_are_everybodys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messages, "_callers", set())  # a thread's number may come again
    mark = messages.mark()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(_say, "from inside").result()
    assert messages.since(mark) == "from inside"


def test_messages_go_to_pythons_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "engine.gpu_trt"):
        _say("careful", "WARNING")
        _say("detail", "INFO")
        _say("noise", "VERBOSE")
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "careful"),
        ("DEBUG", "detail"),
    ]
