"""Models are loaded, replaced and closed while clients ask."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as rest
from repository_ways import factor, load, states, versions
from serve_ways import Serve, X, ask, infer, scaled, tensor, until

from engine_serve.loaded import LoadedModel
from engine_serve.runners import Running


def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let builds wait for the event that is returned, 60 s at most."""
    may_go, build = threading.Event(), Running.runner

    def waits(*arguments: Any) -> Any:
        may_go.wait(60)
        return build(*arguments)

    monkeypatch.setattr(Running, "runner", waits)
    return may_go


def test_many_loads_that_wait_keep_nobody_else_waiting(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(versions(tmp_path))
    may_go = held(monkeypatch)
    monkeypatch.setattr("engine_serve.service._MOST_CHANGES", 100)  # whatever CPUs there are
    count = min(32, (os.cpu_count() or 1) + 4) + 1  # asyncio's own threads, and one more
    with ThreadPoolExecutor(count) as threads:
        loads = [threads.submit(load, served) for _ in range(count)]
        try:
            until(lambda: served.repository.index()[-1].state == "LOADING")
            time.sleep(0.2)  # for the others to come; it holds without, too
            rows = np.ones((20_000, 3), "f4")  # so large that another thread reads it
            assert infer(served.http, "net", tensor(rows))[0] == 200
            assert states(served)["net"][0] == "LOADING"
        finally:
            may_go.set()
        assert {load.result()[0] for load in loads} == {200}


def test_too_many_loads_are_refused_while_they_wait(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(versions(tmp_path))
    may_go = held(monkeypatch)
    monkeypatch.setattr("engine_serve.service._MOST_CHANGES", 2)
    with ThreadPoolExecutor(3) as threads:
        loads = [threads.submit(load, served) for _ in range(3)]
        try:
            assert next(as_completed(loads)).result()[0] == 503
        finally:
            may_go.set()
        assert sorted(load.result()[0] for load in loads) == [200, 200, 503]
    assert load(served)[0] == 200


def test_a_version_that_cannot_be_built_leaves_the_old_one(serve: Serve, tmp_path: Path) -> None:
    served = serve(versions(tmp_path))
    (tmp_path / "net/2").mkdir()
    (tmp_path / "net/2/model.onnx").write_bytes(b"no model")
    status, _ = load(served)
    assert status == 500
    assert factor(served) == 1
    assert ask(served.http, "GET", "/v2/health/ready")[0] == 200


@pytest.mark.parametrize(
    ("clients", "reloads"), [(8, 3), pytest.param(64, 20, marks=pytest.mark.slow)]
)
def test_no_request_fails_while_versions_change_each_answer_is_of_one_and_all_is_ready(
    serve: Serve, tmp_path: Path, clients: int, reloads: int
) -> None:
    served = serve(versions(tmp_path))
    over, wrong, counts = threading.Event(), [], [0] * clients

    def ask_on(number: int) -> None:
        client = rest.InferenceServerClient(served.http)
        given = rest.InferInput("x", [40, 3], "FP32")
        given.set_data_from_numpy(np.ones((40, 3), np.float32))
        while not over.is_set():
            try:
                result = client.infer("net", [given])
                version = float(result.get_response()["model_version"])
                if not (result.as_numpy("y") == version).all():
                    wrong.append(result.get_response())
                counts[number] += 1
            except Exception as error:
                wrong.append(error)
        client.close()

    def watch() -> None:
        while not over.is_set():
            index = ask(served.http, "POST", "/v2/repository/index")[1]
            states = {line["state"] for line in index if line["name"] == "net"}
            if ask(served.http, "GET", "/v2/health/ready")[0] != 200 or "UNAVAILABLE" in states:
                wrong.append(index)
            time.sleep(0.01)

    threads = [threading.Thread(target=ask_on, args=(number,)) for number in range(clients)]
    threads.append(threading.Thread(target=watch))
    for thread in threads:
        thread.start()
    try:
        for version in range(2, 2 + reloads):
            scaled(tmp_path / f"net/{version}/model.onnx", version)
            assert load(served)[0] == 200
            before = [*counts]
            until(lambda before=before: all(now >= old + 2 for now, old in zip(counts, before)))
    finally:
        over.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert min(counts) >= 2 * reloads
    assert factor(served) == 1 + reloads


def test_a_replaced_version_is_closed_after_its_last_request(serve: Serve, tmp_path: Path) -> None:
    served = serve(scaled(tmp_path / "net.onnx", 1))
    old = served.repository.borrow("net", "")
    served.repository.load("net")
    assert served.repository.borrow("net", "") is not old
    assert old.runner.predict({"x": X})[0].get_data_to_numpy()[0, 1] == 1
    served.repository.give_back(old)
    until(lambda: "closed" in repr(old.runner))


def test_all_that_was_built_ends_though_one_of_it_does_not(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve(versions(tmp_path, "version_policy: { all {} }", 1))
    for number in (2, 3):
        scaled(tmp_path / f"net/{number}/model.onnx", number)
    (tmp_path / "net/1/model.onnx").write_text("no model")  # the newest is built first
    runners, close = [], LoadedModel.close

    def fails_first(model: LoadedModel) -> None:
        runners.append(model.runner)
        if len(runners) == 1:
            raise RuntimeError("a runtime's mistake")
        close(model)

    monkeypatch.setattr(LoadedModel, "close", fails_first)
    status, found = load(served)
    assert (status, "is a text file" in found["error"]) == (500, True)
    assert "model 'net' could not be closed: RuntimeError: a runtime's mistake" in caplog.text
    assert ["closed" in repr(runner) for runner in runners] == [False, True]
    runners[0].close()
