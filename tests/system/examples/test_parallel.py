"""The tutorial of concurrent inference runs as it is, and so does what serves a model."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from graphs import written
from own_python import python

import engine
from engine import ModelParallelRunner

FOLDER = Path(__file__).parents[3] / "examples"
MODEL = FOLDER / "digits" / "digits.onnx"


def test_the_tutorial_serves_five_clients_of_two_tasks():
    script = FOLDER / "parallel" / "parallel.py"
    done = python(script)
    assert (done.returncode, done.stderr) == (0, "")
    *tasks, total = done.stdout.splitlines()
    found = sorted(re.findall(r"^client (\d) \| task (\d) \|", "\n".join(tasks), re.M))
    assert found == [(str(client), str(task)) for client in range(5) for task in (1, 2)]
    assert total.startswith("total: ")
    whole = r"client \d \| task \d \| [\d.]+ ms \| probabilities: 10 elements, label: 1 elements"
    assert [line for line in tasks if not re.fullmatch(whole, line)] == []


def test_it_gives_onnxruntimes_answers_to_threads_and_futures():
    images = np.load(FOLDER / "digits" / "test_images.npz")["image"]
    session = ort.InferenceSession(MODEL)
    wrong: list[Any] = []
    with ModelParallelRunner() as runner:
        runner.build_from_file(str(MODEL))

        def client(number: int) -> None:
            for turn in range(20):
                batch = images[number : number + 1 + turn % 4]
                expected = session.run(None, {"image": batch})
                outputs = (
                    runner.submit({"image": batch}).result()
                    if turn % 2
                    else runner.predict([batch])
                )
                for output, wanted in zip(outputs, expected, strict=True):
                    if not np.allclose(output.get_data_to_numpy(), wanted, atol=1e-6):
                        wrong.append((number, turn))

        threads = [threading.Thread(target=client, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert wrong == []
        assert runner.statistics().completed == 120


@pytest.mark.parametrize("timeout_s", [None, 30])
def test_what_shares_a_run_has_the_bits_of_a_run_alone(tmp_path, timeout_s):
    weight = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32)
    text = "net (float[b, 512] x) => (float[b, 512] y) { y = MatMul(x, w) }"
    path = written(tmp_path / "net.onnx", text, w=weight)
    xs = np.random.default_rng(1).standard_normal((64, 1, 512)).astype(np.float32)
    with engine.load(path, threads=1) as model:
        expected = [model(x=x)["y"].tobytes() for x in xs]
    with ModelParallelRunner() as runner:
        runner.build_from_file(str(path), max_batch_size=8, max_delay_us=2000)
        futures = [runner.submit([x], timeout_s=timeout_s) for x in xs]
        found = [future.result(30)[0].get_data_to_numpy().tobytes() for future in futures]
        assert max(runner.statistics().batch_sizes) > 1
    assert found == expected
