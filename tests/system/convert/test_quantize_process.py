"""Quantization: progress, cancelling, and what it leaves in the process and on the disk."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from quantize_models import DYNAMIC, WEIGHT, job

import engine
from engine.converter import scratch
from engine.converter.quantize import quantize
from engine.errors import Cancelled


def test_calibration_says_how_far_it_is(digits, full):
    seen: list[tuple[str, int, int | None]] = []
    quantize(digits, job(full, progress=lambda *step: seen.append(step)))
    assert [step for step in seen if step[0] == "calibrating"] == [
        ("calibrating", done, 80) for done in range(81)
    ]
    assert [step for step in seen if step[0] == "comparing"] == [
        ("comparing", done, 20) for done in range(21)
    ]


@pytest.mark.parametrize(
    "phase", ["calibrating", "calibrating (histograms)", "finding thresholds", "comparing"]
)
def test_a_cancel_stops_it_and_leaves_nothing_behind(digits, full, tmp_path, monkeypatch, phase):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    full["full_quant_param"] = {"activation_quant_method": "KL"}
    cancel = engine.CancelToken()
    seen: list[str] = []

    def show(name: str, done: int, total: int | None) -> None:
        seen.append(name)
        if name == phase and done == 1:
            cancel.cancel()

    with pytest.raises(Cancelled):
        quantize(digits, job(full, progress=show, cancel=cancel))
    assert seen[-1] == phase
    assert seen.count(phase) == 2
    assert not any(tmp_path.iterdir())
    assert tempfile.tempdir == str(tmp_path)


@pytest.mark.parametrize("make", [lambda full: full, lambda full: DYNAMIC, lambda full: WEIGHT])
def test_the_original_stays_as_it_is_and_nothing_is_printed_or_logged(digits, full, capfd, make):
    before = digits.SerializeToString(deterministic=True)
    handlers, filters = (list(each) for each in (logging.root.handlers, logging.root.filters))
    result, _, _ = quantize(digits, job(make(full)))
    assert digits.SerializeToString(deterministic=True) == before
    assert capfd.readouterr() == ("", "")
    assert (logging.root.handlers, logging.root.filters) == (handlers, filters)
    assert [(each.name) for each in result.graph.input] == ["image"]
    assert [(each.name) for each in result.graph.output] == ["probabilities", "label"]
    assert list(result.metadata_props) == list(digits.metadata_props)


def test_nothing_is_written_to_any_folder(digits, full, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    monkeypatch.setattr(scratch, "MEMORY", Path("/nowhere"))
    for config in (full, DYNAMIC):
        quantize(digits, job(config))
        quantize(digits, job(config, encrypt_key=bytes(16)))


def test_what_other_threads_write_to_the_temporary_folder_stays_there(
    digits, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made: list[str] = []
    has_ended = threading.Event()

    def write() -> None:
        while not has_ended.is_set():
            descriptor, name = tempfile.mkstemp()
            os.close(descriptor)
            made.append(name)
            time.sleep(0.001)

    other = threading.Thread(target=write)
    other.start()
    try:
        while len(made) < 20:
            quantize(digits, job(DYNAMIC, encrypt_key=bytes(16)))
    finally:
        has_ended.set()
        other.join()
    assert {str(path) for path in tmp_path.iterdir()} == set(made)


@pytest.mark.slow
def test_several_are_quantized_at_once_and_leave_the_process_as_it_was(digits, full, capfd):
    def state() -> tuple[object, ...]:
        root = logging.root
        return sys.stdout, tempfile.tempdir, [*root.handlers], [*root.filters]

    before = state()
    full["full_quant_param"] = {"activation_quant_method": "KL"}
    asked = [job(config, encrypt_key=bytes(16)) for config in (full, DYNAMIC) * 3]
    with ThreadPoolExecutor(len(asked)) as pool:
        results = [found for found, _, _ in pool.map(lambda each: quantize(digits, each), asked)]
    assert state() == before
    assert capfd.readouterr() == ("", "")
    assert results[0] == results[2] == results[4] == quantize(digits, asked[0])[0]
    assert results[1] == results[3] == results[5] == quantize(digits, asked[1])[0]
