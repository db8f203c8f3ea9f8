"""`--poll`: what is new and what has changed is loaded, without a request."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from repository_ways import NOT_LOADED, factor, load, states, unload, versions
from serve_ways import Serve, ask, scaled

from engine_serve.polling import Polling


def test_polling_loads_what_is_new_and_what_has_changed_once_it_is_settled(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scaled(tmp_path / "off.onnx", 4)
    served = serve(versions(tmp_path))
    polling = Polling(served.repository)
    polling.look()
    assert unload(served, "off")[0] == 200
    scaled(tmp_path / "net/2/model.onnx", 2)
    scaled(tmp_path / "later/1/model.onnx", 3)
    scaled(tmp_path / "off.onnx", 5)
    polling.look()
    assert (factor(served), factor(served, "later")[0]) == (1, 503)  # somebody may still write
    polling.look()
    assert (factor(served), factor(served, "later")) == (2, 3)
    assert factor(served, "off") == (503, NOT_LOADED.format("off"))  # a request said so
    old = served.repository.loaded()
    polling.look()
    assert served.repository.loaded() == old  # nothing has changed
    (tmp_path / "bad.onnx").write_text("no model")
    for _ in range(3):
        polling.look()
    failures = [record for record in caplog.records if "'bad' could not be" in record.getMessage()]
    assert len(failures) == 1
    assert states(served)["bad"][0] == "UNAVAILABLE"
    assert ask(served.http, "GET", "/v2/health/ready")[0] == 200  # the others serve
    scaled(tmp_path / "bad.onnx", 6)
    for _ in range(2):
        polling.look()
    assert factor(served, "bad") == 6


def test_polling_leaves_unloaded_what_a_client_has_unloaded(serve: Serve, tmp_path: Path) -> None:
    net = scaled(tmp_path / "net.onnx", 2)
    served = serve(tmp_path)
    polling, content = Polling(served.repository), net.read_bytes()
    assert unload(served)[0] == 200
    net.unlink()
    polling.look()
    net.write_bytes(content)
    for _ in range(2):
        polling.look()
    assert factor(served) == (503, NOT_LOADED.format("net"))


def test_polling_sees_a_file_of_the_same_size_and_time(serve: Serve, tmp_path: Path) -> None:
    net = scaled(tmp_path / "net.onnx", 2)
    served, status = serve(tmp_path), net.stat()
    polling = Polling(served.repository)
    net.write_bytes(scaled(tmp_path / "elsewhere/net.onnx", 4).read_bytes())
    os.utime(net, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert net.stat().st_size == status.st_size
    for _ in range(2):
        polling.look()
    assert factor(served) == 4


def test_a_name_of_the_command_line_stays_its_files(serve: Serve, tmp_path: Path) -> None:
    own = scaled(tmp_path / "own.onnx", 2)
    served = serve(f"x={own}", scaled(tmp_path / "models/net.onnx", 1).parent)
    scaled(tmp_path / "models/x.onnx", 7)
    content = own.read_bytes()
    own.unlink()
    polling = Polling(served.repository)
    for _ in range(3):
        polling.look()
    assert load(served, "x")[0] == 404
    assert factor(served, "x") == 2
    own.write_bytes(content)
    assert load(served, "x")[0] == 200
    assert factor(served, "x") == 2
