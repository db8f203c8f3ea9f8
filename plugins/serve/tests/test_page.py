"""The page's addresses: its files as in the wheel, their headers, and the state it reads."""

from __future__ import annotations

import re
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from click.testing import CliRunner
from serve_ways import Served, X, ask, ask_raw, infer, scaled, tensor

import engine
from engine_serve.command import serve as command
from engine_serve.page import files_of_page
from engine_serve.state import State

FILES = files_of_page()
TEXTS = {name: body.decode() for name, body in FILES.items()}
MARKUP = '<img src=x onerror="alert(1)">'


def address(name: str) -> str:
    return "/" if name == "index.html" else f"/page/{name}"


def test_every_file_is_answered_as_its_kind_with_strict_headers(affine: Served) -> None:
    kinds = {
        "html": "text/html",
        "css": "text/css",
        "js": "text/javascript",
        "svg": "image/svg+xml",
    }
    for name, body in FILES.items():
        status, content, headers = ask_raw(affine.http, "GET", address(name))
        assert (status, content) == (200, body)
        assert headers["content-type"].partition(";")[0] == kinds[name.rpartition(".")[2]]
        assert headers["content-security-policy"].startswith("default-src 'self';")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-cache"


def test_a_file_that_the_browser_has_is_not_sent_again(affine: Served) -> None:
    _, _, headers = ask_raw(affine.http, "GET", "/page/app.js")
    known = {"If-None-Match": headers["etag"]}
    status, content, again = ask_raw(affine.http, "GET", "/page/app.js", None, known)
    assert (status, content, again["etag"]) == (304, b"", headers["etag"])
    assert ask_raw(affine.http, "GET", "/page/style.css", None, known)[0] == 200


def test_the_files_name_each_other_and_nothing_outside() -> None:
    html = TEXTS["index.html"]
    named = set(re.findall(r'(?:src|href)="page/([^"]+)"', html))
    for name, text in TEXTS.items():
        if name.endswith(".js"):
            named.update(re.findall(r'from "\./([^"]+)"', text))
        places = re.findall(r"\w+://[^\s\"')]+", text)
        assert set(places) <= {"http://www.w3.org/2000/svg"}, name  # a name, not a place
        assert "@import" not in text
        assert "url(" not in text
    assert named == FILES.keys() - {"index.html"}


def test_names_can_only_be_written_as_text() -> None:
    for name, text in TEXTS.items():
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text), (
            name
        )
    assert not re.search(r"\bon\w+=|\bstyle=|<script>", TEXTS["index.html"])


def test_the_wheel_holds_every_file_of_the_page(tmp_path: Path) -> None:
    wheel = pytest.importorskip("hatchling.builders.wheel", reason="hatchling is not installed")
    builder = wheel.WheelBuilder(str(Path(__file__).parents[1]))
    [path] = builder.build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(path) as file:
        held = {
            name.rpartition("/")[2]: file.read(name)
            for name in file.namelist()
            if name.startswith("engine_serve/page/")
        }
    assert held == FILES


def test_the_state_names_models_tensors_and_where_nodes_run(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    path = scaled(tmp_path / "net.onnx", 3.0)
    served = serve(f"{MARKUP}={path}", f"b%2F=1={path}")
    _, state = ask(served.http, "GET", "/page/state.json")
    assert state["ready"] is True
    assert [model["name"] for model in state["models"]] == [MARKUP, "b%2F=1"]
    for model in state["models"]:
        x = {"datatype": "FP32", "shape": [-1, 3]}
        assert (model["version"], model["state"]) == ("1", "READY")
        assert model["inputs"] == [{"name": "x", **x}]
        assert model["outputs"] == [{"name": "y", **x}]
        [place] = model["placement"]
        with engine.load(path) as same:
            [node] = same.placement
        assert place == {
            "backend": node.backend, "device": node.device, "provider": node.provider, "nodes": 1,
        }  # fmt: skip
        status, answer = infer(served.http, quote(model["name"], safe=""), tensor(X))
        assert status == 200
        assert answer["outputs"][0]["data"] == (3 * X).ravel().tolist()


def test_the_state_counts_each_request_with_its_latency(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    served = serve(scaled(tmp_path / "net.onnx", 3.0))
    begin_s = time.perf_counter()
    for _ in range(20):
        assert infer(served.http, "net", tensor(X))[0] == 200
    longest_ms = (time.perf_counter() - begin_s) * 1e3
    assert infer(served.http, "net", tensor(X, name="z"))[0] == 400
    [model] = ask(served.http, "GET", "/page/state.json")[1]["models"]
    assert (model["completed"], model["refused"], model["failed"]) == (20, 1, 0)
    assert (model["waiting"], model["running"]) == (0, 0)
    ends, counts = np.array(model["latency_ms"]).T
    assert sum(counts) == 20
    assert sum(ends * counts) < longest_ms * 2 ** (1 / 8)  # each is at most one bucket more
    assert (np.diff(ends) > 0).all()


def test_a_model_that_is_not_loaded_is_shown_with_its_reason(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    served = serve(scaled(tmp_path / "net.onnx", 3.0))
    served.repository.unload("net")
    [model] = ask(served.http, "GET", "/page/state.json")[1]["models"]
    assert model == {"name": "net", "state": "UNAVAILABLE", "reason": "unloaded"}


def test_a_model_that_goes_while_it_is_read_is_shown_without_numbers(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    served = serve(scaled(tmp_path / "net.onnx", 3.0))
    service = served.server.service
    index = service.index()
    service.index = lambda **_: (served.repository.unload("net"), index)[1]  # type: ignore[method-assign]
    assert State(service).read()["models"] == index


def test_only_what_tells_nothing_of_the_models_is_open_without_the_token(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    served = serve(scaled(tmp_path / "net.onnx", 3.0), token="secret")
    for name in FILES:
        assert ask_raw(served.http, "GET", address(name))[0] == 200
    assert ask(served.http, "GET", "/page/about.json")[1]["needs_token"] is True
    assert ask(served.http, "GET", "/page/state.json")[0] == 401
    for path in ("/page/app.js/", "//", "/page/", "/page/../page/state.json"):
        assert ask_raw(served.http, "GET", path)[0] == 401
    known = {"Authorization": "Bearer secret"}
    assert ask(served.http, "GET", "/page/state.json", None, known)[0] == 200


def test_the_page_can_be_left_out(serve: Callable[..., Served], tmp_path: Path) -> None:
    served = serve(scaled(tmp_path / "net.onnx", 3.0), has_page=False)
    for path in ("/", "/page/app.js", "/page/about.json", "/page/state.json"):
        assert ask(served.http, "GET", path)[0] == 404
    assert infer(served.http, "net", tensor(X))[0] == 200


def test_the_command_has_an_option_that_leaves_the_page_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(
        "engine_serve.command.run", lambda _, settings, *more: seen.append(settings)
    )
    monkeypatch.setattr("engine_serve.command.to_stderr", lambda **_: None)
    path = str(scaled(tmp_path / "net.onnx", 3.0))
    for words in ([path], [path, "--no-page"]):
        result = CliRunner().invoke(command, words)
        assert result.exit_code == 0, result.output
    assert [settings.has_page for settings in seen] == [True, False]
