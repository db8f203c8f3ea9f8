"""`engine replay`: recorded requests against models that are the same, near or others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import engine
from engine_telemetry.replay import replay
from engine_testing import models
from engine_testing.making import floats, graph, longs

Record = Callable[..., None]


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    return tmp_path / "requests"


@pytest.fixture
def record(requests: Path, null_backend: str) -> Record:
    """Run inputs on a model, on the null backend, with a recorder on."""

    def run(path: Path, *inputs: list[Any]) -> None:
        sections = {
            "common_context": {"extensions": "recorder"},
            "recorder_extension": {"path": str(requests)},
        }
        with engine.load(path, target=null_backend, config=sections) as model:
            for values in inputs:
                model.predict(values)

    return run


def affine(folder: Path, factor: float = 2, name: str = "affine", output: str = "y") -> Path:
    """y = factor * x + 1, x float32[batch, 3]."""
    folder.mkdir(exist_ok=True)
    text = f"""(float[batch, 3] x) => (float[batch, 3] {output}) {{
        scaled = Mul (x, factor)
        {output} = Add (scaled, one)
    }}"""
    return graph(folder, name, text, {"factor": floats([factor]), "one": floats([1])})


def replayed(*words: object) -> Result:
    return CliRunner().invoke(replay, [*map(str, words)])


X = [np.full((1, 3), number, np.float32) for number in range(4)]


def test_the_same_model_is_equal(record: Record, requests: Path, tmp_path: Path) -> None:
    path = affine(tmp_path)
    record(path, *([x] for x in X))
    done = replayed(requests, path, "--target", "null")
    assert (done.exit_code, done.output) == (0, "equal: 4 requests\n")


def test_another_target_is_compared_too(record: Record, requests: Path, tmp_path: Path) -> None:
    path = affine(tmp_path)
    record(path, [X[1]])
    done = replayed(requests, path)  # on the cpu
    assert (done.exit_code, done.output) == (0, "equal: 1 request\n")


def test_a_model_that_is_near_is_within_the_tolerances(
    record: Record, requests: Path, tmp_path: Path
) -> None:
    record(affine(tmp_path), *([x] for x in X))
    near = affine(tmp_path / "near", 2.001)  # 3 of 7 is 3e-3 / 7 more: below 1e-3
    done = replayed(requests, near, "--target", "null")
    # The first request is of zeros, for which the factor does not matter.
    assert done.output == "within tolerance: 4 requests, of which 1 equal\n"
    assert done.exit_code == 0


def test_the_first_request_that_differs_is_named_with_output_place_and_error(
    record: Record, requests: Path, tmp_path: Path
) -> None:
    record(affine(tmp_path), *([x] for x in X))
    done = replayed(requests, affine(tmp_path / "far", 2.5), "--target", "null")
    first, counts = done.output.splitlines()
    assert first == (
        "differs at request 2: output 'y': 3 of 3 values differ beyond rtol 0.001, atol 1e-05; "
        "largest absolute error 0.5 at [0, 0] (recorded 3.0, now 3.5)"
    )
    assert counts == "3 of 4 requests differ; within tolerance: 0, equal: 1"
    assert done.exit_code == 1


def test_tolerances_are_the_callers(record: Record, requests: Path, tmp_path: Path) -> None:
    record(affine(tmp_path), *([x] for x in X))
    far = affine(tmp_path / "far", 2.5)
    words = (requests, far, "--target", "null")
    assert replayed(*words, "--atol", 1.5).exit_code == 0
    assert replayed(*words, "--rtol", 0.22, "--atol", 0).exit_code == 0  # 1.5 of 7 is 0.214
    near = replayed(requests, affine(tmp_path / "near", 2.001), "--target", "null", "--rtol", 0,
                    "--atol", 0)  # fmt: skip
    assert "differs at request 2" in near.output


def test_json_says_the_same(record: Record, requests: Path, tmp_path: Path) -> None:
    record(affine(tmp_path), *([x] for x in X))
    done = replayed(requests, affine(tmp_path / "far", 2.5), "--target", "null", "--json")
    found = json.loads(done.output)
    first = found.pop("differing")[0]
    assert found == {
        "verdict": "differs",
        "requests": 4,
        "equal": 1,
        "within": 0,
        "differ": 3,
        "skipped": {},
        "first": 2,
    }
    assert (first["request"], first["file"]) == (2, "000002.npz")
    [difference] = first["differences"]
    assert (difference["output"], difference["error"], difference["at"]) == ("y", 0.5, [0, 0])
    assert (difference["recorded"], difference["now"]) == (3.0, 3.5)
    done = replayed(requests, affine(tmp_path), "--target", "null", "--json")
    assert json.loads(done.output)["verdict"] == "equal"


def test_a_nan_that_was_none_differs_at_its_place(
    record: Record, requests: Path, tmp_path: Path
) -> None:
    text = "(float[3] x) => (float[3] y) { y = %s (x) }"
    record(graph(tmp_path, "abs", text % "Abs"), [np.array([4, -4, 9], np.float32)])
    other = graph(tmp_path, "sqrt", text % "Sqrt")
    done = replayed(requests, other, "--target", "null", "--atol", 6)
    assert "output 'y': 1 of 3 values differ" in done.output
    same = replayed(requests, tmp_path / "abs.onnx", "--target", "null")
    assert same.output == "equal: 1 request\n"


def test_text_differs_at_its_place(requests: Path, record: Record, tmp_path: Path) -> None:
    text = "(string[2] x) => (string[2] y) { y = %s (x) }"
    upper = 'StringNormalizer <case_change_action = "UPPER">'
    record(graph(tmp_path, "same", text % "Identity"), [np.array(["A", "b"], object)])
    done = replayed(requests, graph(tmp_path, "upper", text % upper), "--target", "null")
    assert done.output.splitlines()[0] == (
        "differs at request 1: output 'y': 1 of 2 values differ; at [1] (recorded b, now B)"
    )


def test_sequences_of_other_lengths_differ(record: Record, requests: Path, tmp_path: Path) -> None:
    text = "(float[4] x) => (seq(float[]) y) { y = SplitToSequence (x, size) }"
    by_two = graph(tmp_path, "by_two", text, {"size": longs(2)})
    record(by_two, [np.arange(4, dtype=np.float32)])
    assert replayed(requests, by_two, "--target", "null").output == "equal: 1 request\n"
    done = replayed(
        requests, graph(tmp_path, "by_one", text, {"size": longs(1)}), "--target", "null"
    )
    assert "output 'y': 2 arrays were recorded, now there are 4" in done.output
    three = "(float[4] x) => (seq(float[]) y) { y = SplitToSequence (x, sizes) }"
    uneven = graph(tmp_path, "uneven", three, {"sizes": longs([1, 3])})
    done = replayed(requests, uneven, "--target", "null")
    assert "output 'y[0]': shape [2] was recorded, now [1]" in done.output


def test_a_type_that_changes_differs(record: Record, requests: Path, tmp_path: Path) -> None:
    text = "(float[3] x) => (%s[3] y) { y = %s (x) }"
    record(graph(tmp_path, "same", text % ("float", "Identity")), [np.ones(3, np.float32)])
    double = graph(tmp_path, "double", text % ("double", "Cast <to = 11>"))
    done = replayed(requests, double, "--target", "null")
    assert "output 'y': float32 was recorded, now float64" in done.output
    assert done.exit_code == 1


def test_requests_without_results_are_skipped_and_counted(
    record: Record, requests: Path, tmp_path: Path
) -> None:
    path = affine(tmp_path)
    with pytest.raises(engine.InputError):
        record(path, [X[1]], [X[1], X[1]])
    done = replayed(requests, path, "--target", "null")
    assert done.output.splitlines() == ["equal: 1 request", "skipped: 1 failed"]


def test_a_folder_with_failed_requests_alone_is_an_error(
    record: Record, requests: Path, tmp_path: Path
) -> None:
    path = affine(tmp_path)
    with pytest.raises(engine.InputError):
        record(path, [X[1], X[1]])
    assert error_of(requests, path) == f"{requests}: none of 1 request has results to compare with"


def error_of(*words: object) -> str:
    done = replayed(*words, "--target", "null")
    assert done.exit_code == 1
    return str(done.exception)


def test_a_model_with_other_inputs_is_an_error(
    record: Record, requests: Path, tmp_path: Path
) -> None:
    record(affine(tmp_path), [X[1]])
    other = models.several(tmp_path)
    assert error_of(requests, other) == (
        f"{requests / '000001.npz'}: recorded of model 'affine' with inputs x, but this model has "
        "z, a, m"
    )
    renamed = affine(tmp_path / "renamed", output="z")
    assert "with outputs y, but this model has z" in error_of(requests, renamed)


def test_a_model_with_inputs_of_another_shape_is_an_error(
    record: Record, requests: Path, tmp_path: Path
) -> None:
    record(affine(tmp_path), [X[1]])
    text = "(float[5] x) => (float[5] y) { y = Abs (x) }"
    other = graph(tmp_path, "other", text)
    assert "000001.npz: does not fit this model: " in error_of(requests, other)


def test_a_folder_that_is_none_and_one_without_requests_are_errors(tmp_path: Path) -> None:
    path = affine(tmp_path)
    assert "nowhere: expected a folder of recorded requests: No such" in error_of(
        tmp_path / "nowhere", path
    )
    assert "affine.onnx: expected a folder of recorded requests: Not a" in error_of(path, path)
    assert "has no recorded requests, which are files as 000001.npz" in error_of(tmp_path, path)


def test_a_damaged_record_is_an_error_that_names_its_file(
    record: Record, requests: Path, tmp_path: Path
) -> None:
    path = affine(tmp_path)
    record(path, *([x] for x in X))
    file = requests / "000003.npz"
    file.write_bytes(file.read_bytes()[:-40])
    assert "000003.npz: not a recorded request, or a damaged one" in error_of(requests, path)
    file.unlink()
    done = replayed(requests, path, "--target", "null")
    assert done.output == "equal: 3 requests\n"


def test_of_several_models_one_is_to_be_chosen(
    record: Record, requests: Path, tmp_path: Path
) -> None:
    one, two = affine(tmp_path), affine(tmp_path, 3, name="triple")
    record(one, [X[1]])
    record(two, [X[2]], [X[3]])
    assert "several models: affine (1), triple (2); choose one: --recorded NAME" in error_of(
        requests, one
    )
    done = replayed(requests, two, "--target", "null", "--recorded", "triple")
    assert done.output == "equal: 2 requests\n"
    assert "no requests of 'tripel', but of affine (1)" in error_of(
        requests, two, "--recorded", "tripel"
    )


def test_an_update_of_weights_is_noted(requests: Path, tmp_path: Path, null_backend: str) -> None:
    path = affine(tmp_path)
    sections = {
        "common_context": {"extensions": "recorder"},
        "recorder_extension": {"path": str(requests)},
    }
    with engine.load(
        path, target=null_backend, config=sections, variable_weights=["factor"]
    ) as model:
        model.predict([X[1]])
        model.update_weights({"factor": np.array([5], np.float32)})
        model.predict([X[1]])
    done = replayed(requests, path, "--target", "null")
    assert "differs at request 2" in done.output
    assert "note: request 2 and later ones ran after an update of weights" in done.output


def test_the_command_is_one_of_engines_and_records_nothing_of_its_own(
    requests: Path, tmp_path: Path
) -> None:
    path = affine(tmp_path)
    program = (
        "import engine, numpy, sys\n"
        "engine.load(sys.argv[1]).predict([numpy.ones((1, 3), numpy.float32)])"
    )
    environment = {**os.environ, "ENGINE_EXTENSIONS": f"recorder;path={requests}"}
    for words in (["-c", program, path], ["-m", "engine.cli", "replay", requests, path]):
        done = subprocess.run(
            [sys.executable, *map(str, words)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout == "equal: 1 request\n"
    assert len([*requests.glob("*.npz")]) == 1
