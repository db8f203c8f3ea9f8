"""The server of docs/serving.md answers, refuses what does not fit, and ends."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[3]


def test_the_server_of_the_documentation(monkeypatch):
    pytest.importorskip("fastapi", reason="fastapi is not installed")
    client = pytest.importorskip("fastapi.testclient", reason="httpx is not installed")
    monkeypatch.chdir(ROOT)
    text = (ROOT / "docs/serving.md").read_text()
    [code] = re.findall(r"```python\n(# fastapi:.*?)```", text, re.S)
    names: dict[str, Any] = {"__name__": "serve"}
    exec(compile(code, "serve.py", "exec"), names)
    data = np.load("examples/digits/test_images.npz")
    images = data["image"][:5, 0].tolist()
    with client.TestClient(names["app"]) as web:
        assert web.post("/digits", json=images).json() == [7, 6, 3, 7, 7]
        wrong = web.post("/digits", json=[[[1.0, 2.0]]])
        assert wrong.status_code == 422
        assert "'image'" in wrong.json()["detail"]
        assert web.post("/digits", json=[[[1.0, 2.0], [3.0]]]).status_code == 422
    assert names["runner"].statistics().completed == 1
