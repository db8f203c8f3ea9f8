"""curl, with the requests of the Open Inference Protocol's text and of its extensions."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serve_ways import Served, X, binary

pytestmark = pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")


def curl(served: Served, path: str, *words: str) -> tuple[int, bytes]:
    """Return the status and the body of an answer."""
    command = ["curl", "-sS", "-w", "\n%{http_code}", *words, f"http://{served.http}{path}"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    body, _, status = done.stdout.rpartition(b"\n")
    return int(status), body


def in_json(served: Served, path: str, *words: str) -> tuple[int, Any]:
    status, body = curl(served, path, *words)
    return status, json.loads(body)


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready", "/v2/models/affine/ready",
                                  "/v2/models/affine/versions/1/ready"])  # fmt: skip
def test_health_is_told_by_the_status(affine: Served, path: str) -> None:
    assert curl(affine, path)[0] == 200
    assert curl(affine, path, "--head")[0] == 200


def test_a_model_that_is_not_there_is_not_ready(affine: Served) -> None:
    assert curl(affine, "/v2/models/nobody/ready")[0] == 503


def test_metadata_are_told(affine: Served) -> None:
    status, server = in_json(affine, "/v2")
    assert (status, server["name"]) == (200, "inference-engine")
    assert "binary_tensor_data" in server["extensions"]
    status, model = in_json(affine, "/v2/models/affine")
    assert (status, model["versions"]) == (200, ["1"])
    assert model["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
    assert curl(affine, "/v2/models/nobody")[0] == 404


@pytest.mark.parametrize("data", [X.ravel().tolist(), X.tolist()], ids=["flat", "nested"])
def test_an_inference_in_json(affine: Served, data: list[Any]) -> None:
    tensor = {"name": "x", "shape": [2, 3], "datatype": "FP32", "data": data}
    body = {"id": "42", "inputs": [tensor], "outputs": [{"name": "y"}]}
    status, found = in_json(affine, "/v2/models/affine/infer", "-d", json.dumps(body))
    assert (status, found["id"], found["model_name"]) == (200, "42", "affine")
    [output] = found["outputs"]
    assert output["shape"] == [2, 3]
    assert output["data"] == (2 * X + 1).ravel().tolist()


def test_a_large_binary_inference_from_a_file(affine: Served, tmp_path: Path) -> None:
    x = np.arange(3 << 18, dtype=np.float32).reshape(-1, 3)  # so large that curl asks: 100-continue
    body, headers = binary(x, binary_data_output=True)
    (tmp_path / "body").write_bytes(body)
    words = [word for key, value in headers.items() for word in ("-H", f"{key}: {value}")]
    words += ["-H", "Content-Type: application/octet-stream", "-D", str(tmp_path / "headers")]
    words += ["--data-binary", f"@{tmp_path / 'body'}"]
    status, found = curl(affine, "/v2/models/affine/versions/1/infer", *words)
    assert status == 200
    told = dict(line.split(": ", 1) for line in (tmp_path / "headers").read_text().splitlines()
                if ": " in line)  # fmt: skip
    length = int(told["inference-header-content-length"])
    [output] = json.loads(found[:length])["outputs"]
    assert output["parameters"] == {"binary_data_size": x.nbytes}
    y = np.frombuffer(found[length:], np.float32).reshape(output["shape"])
    np.testing.assert_array_equal(y, 2 * x + 1)


def test_raw_bytes_without_json(affine: Served, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(X[:1].tobytes())
    words = ("-H", "Inference-Header-Content-Length: 0", "--data-binary", f"@{tmp_path / 'body'}")
    status, found = curl(affine, "/v2/models/affine/infer", *words)
    assert status == 200
    assert found.endswith((2 * X[:1] + 1).tobytes())


def test_a_wrong_request_is_told_its_fault(affine: Served) -> None:
    status, found = in_json(affine, "/v2/models/affine/infer", "-d", '{"inputs": []}')
    assert status == 400
    assert found["error"] == "input 'x': expected FP32[-1, 3], got none"
