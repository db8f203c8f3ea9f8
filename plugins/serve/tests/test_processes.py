"""Models in processes of their own: readiness tells the truth, and no request is lost."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
import tritonclient.grpc as rpc
from repository_ways import load, unload
from serve_ways import Serve, Served, X, ask, infer, scaled, served, tensor, until

from engine.errors import EngineError, SettingError
from engine_serve import config_file
from engine_serve.runners import Running, devices_of, kind_of, most_shared


def children() -> set[int]:
    """Return this process's children."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):
            found.update(map(int, (task / "children").read_text().split()))
    return found


def claims(served: Served) -> list[bool]:
    """Return what every part of the server says of its readiness, and of its only model's."""
    line = ask(served.http, "POST", "/v2/repository/index")[1][0]
    page = ask(served.http, "GET", "/page/state.json")[1]
    client = rpc.InferenceServerClient(served.grpc)
    name = line["name"]
    found = [
        ask(served.http, "GET", "/v2/health/ready")[0] == 200,
        ask(served.http, "GET", f"/v2/models/{name}/ready")[0] == 200,
        client.is_server_ready(),
        client.is_model_ready(name),
        line["state"] == "READY",
        bool(ask(served.http, "POST", "/v2/repository/index", {"ready": True})[1]),
        page["ready"],
        page["models"][0]["state"] == "READY",
        client.get_model_repository_index().models[0].state == "READY",
    ]
    client.close()
    return found


@pytest.fixture(scope="module", params=["workers", "isolated"])
def apart(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    """A server of y = 2x in a process of its own, and that process's number now."""
    folder = tmp_path_factory.mktemp("apart")
    path, others = scaled(folder / "net.onnx", 2), children()
    running = Running(processes=1)
    if request.param == "isolated":
        (folder / "engine.ini").write_text("[common_context]\nisolate = true\n")
        running = Running(config_path=str(folder / "engine.ini"))

    def process() -> int:
        until(lambda: len(children() - others) == 1)
        [number] = children() - others
        return number

    with served(path, running=running) as found:
        yield found, process


def test_a_model_in_a_process_answers_as_one_in_the_server(apart) -> None:
    found, _ = apart
    status, answer = infer(found.http, "net", tensor(X))
    assert (status, answer["outputs"][0]["data"]) == (200, (2 * X).ravel().tolist())
    metadata = ask(found.http, "GET", "/v2/models/net")[1]
    assert metadata["platform"] == "onnx_onnxv1"
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
    assert metadata["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}]
    [model] = ask(found.http, "GET", "/page/state.json")[1]["models"]
    assert [(placed["device"], placed["nodes"]) for placed in model["placement"]] == [("cpu:0", 1)]
    [counted] = ask(found.http, "GET", "/v2/models/net/stats")[1]["model_stats"]
    assert counted["execution_count"] == counted["inference_stats"]["success"]["count"] >= 1


def test_readiness_tells_of_a_dead_process_and_of_the_next_one(apart) -> None:
    found, process = apart
    until(lambda: all(claims(found)))
    os.kill(process(), signal.SIGKILL)
    until(lambda: not any(claims(found)))
    [line] = ask(found.http, "POST", "/v2/repository/index")[1]
    assert line["state"] == "UNAVAILABLE"
    assert "process has ended" in line["reason"] or "no worker is ready" in line["reason"]
    until(lambda: all(claims(found)))  # nobody asks for an inference
    status, answer = infer(found.http, "net", tensor(X))
    assert (status, answer["outputs"][0]["data"]) == (200, (2 * X).ravel().tolist())


def test_the_server_answers_while_a_model_has_no_process_and_its_request_waits(
    serve: Serve, tmp_path: Path
) -> None:
    others = children()
    path = scaled(tmp_path / "net.onnx", 2)
    found = serve(path, running=Running(processes=1))
    assert infer(found.http, "net", tensor(X))[0] == 200
    [worker] = children() - others
    os.kill(worker, signal.SIGKILL)
    answers: list[tuple[int, object]] = []
    asking = threading.Thread(target=lambda: answers.append(infer(found.http, "net", tensor(X))))
    asking.start()
    assert ask(found.http, "GET", "/v2/health/live")[0] == 200
    status, late = infer(found.http, "net", tensor(X), parameters={"timeout": 1})
    assert (status, "no worker is ready" in late["error"]) in ((504, True), (504, False))
    asking.join()
    [(status, answer)] = answers
    assert (status, answer["outputs"][0]["data"]) == (200, (2 * X).ravel().tolist())


def test_nothing_is_left_of_a_model_that_is_unloaded_or_replaced(
    serve: Serve, tmp_path: Path
) -> None:
    others = children()
    folder = scaled(tmp_path / "net/1/model.onnx", 3).parents[1]
    (folder / "config.pbtxt").write_text(
        'instance_group { count: 2 } parameters { key: "workers" value { string_value: "process" }}'
    )
    found = serve(folder)
    first = children() - others
    assert len(first) == 2
    assert load(found)[0] == 200
    until(lambda: not first & children())
    until(lambda: len(children() - others) == 2)
    status, answer = infer(found.http, "net", tensor(np.ones((8, 3), np.float32)))
    assert (status, answer["outputs"][0]["data"]) == (200, 24 * [3.0])
    assert unload(found)[0] == 200
    until(lambda: children() <= others)


@pytest.mark.parametrize("processes", [0, 1])
def test_a_ranks_part_of_a_sliced_model_is_refused(
    serve: Serve, tmp_path: Path, processes: int
) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
    part (float[n, 3] x) => (float[n, 3] y) { y = com.microsoft.AllReduce (x) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "rank0.onnx")
    with pytest.raises(EngineError, match="waits for the other ranks, and this process was not"):
        serve(tmp_path / "rank0.onnx", running=Running(processes=processes))


@pytest.mark.skipif(find_spec("ray") is not None, reason="ray is installed")
def test_rays_workers_without_ray_are_refused_with_the_command_that_installs_it(
    serve: Serve, tmp_path: Path
) -> None:
    folder = scaled(tmp_path / "net/1/model.onnx", 3).parents[1]
    (folder / "config.pbtxt").write_text(WORKERS % "ray")
    with pytest.raises(EngineError, match=r"pip install .*\[ray\]"):
        serve(folder)


def test_a_clients_configuration_does_not_say_where_a_model_runs(
    serve: Serve, tmp_path: Path
) -> None:
    folder = scaled(tmp_path / "net/1/model.onnx", 3).parents[1]
    (folder / "config.pbtxt").write_text(WORKERS % "process")
    found, others = serve(folder), children()

    def load_as(config: object) -> tuple[int, str]:
        status, said = load(found, config=json.dumps(config))
        return status, said["error"] if said else ""

    assert load_as({"maxBatchSize": 8})[0] == 200
    until(lambda: len(children() - others) == 1)  # another process, and none but that
    told = ask(found.http, "GET", "/v2/models/net/config")[1]
    assert told["parameters"] == {"workers": {"string_value": "process"}}
    assert load_as(told)[0] == 200
    told["parameters"]["workers"]["string_value"] = "none"
    status, error = load_as(told)
    assert status == 400
    assert "expected {'workers': 'process'} or none, got {'workers': 'none'}" in error


def config(text: str):
    return config_file.parse(text, "config.pbtxt")


WORKERS = 'parameters { key: "workers" value { string_value: "%s" } }'


def test_a_configuration_chooses_where_its_model_runs() -> None:
    assert kind_of(config(""), "none") == "none"
    assert kind_of(config(""), "process") == "process"
    assert kind_of(config(WORKERS % "none"), "process") == "none"
    assert kind_of(config(WORKERS % "ray"), "none") == "ray"
    with pytest.raises(SettingError, match="one of none, process, ray, got 'thread'"):
        kind_of(config(WORKERS % "thread"), "none")
    assert most_shared(config(WORKERS % "none")) is None


@pytest.mark.parametrize(
    ("text", "default", "devices"),
    [
        ("", 3, [0, 1, 2]),
        ("instance_group { count: 2 }", 1, [0, 1]),
        ("instance_group { gpus: [1, 4] }", 1, [1, 4]),
        ("instance_group { count: 2 gpus: [1, 4] }", 1, [1, 4, 1, 4]),
        ("instance_group { count: 1 gpus: 5 } instance_group { gpus: 6 }", 1, [5, 6]),
    ],
)
def test_instances_are_worker_processes(text: str, default: int, devices: list[int]) -> None:
    assert devices_of(config(text), default) == devices


def test_more_processes_than_a_model_can_use_are_refused() -> None:
    with pytest.raises(SettingError, match="up to 64 worker processes, got 2000000000"):
        devices_of(config("instance_group { count: 2000000000 }"), 1)


def test_a_server_is_not_ready_before_all_its_models_are_there(tmp_path: Path) -> None:
    from engine_serve.building import builder
    from engine_serve.errors import Unavailable
    from engine_serve.folder import Sources
    from engine_serve.repository import Repository

    words = [str(scaled(tmp_path / f"{name}.onnx", 2)) for name in "ab"]
    repository = Repository(Sources(words), builder(Running()))
    with pytest.raises(Unavailable, match=r"^model 'a' is not loaded$"):  # it will be
        repository.borrow("a", "")
    said = [repository.is_ready]
    for name in repository.names:
        repository.load(name)
        said.append(repository.is_ready)
    repository.unload("a")  # as wanted
    assert [*said, repository.is_ready] == [False, False, True, True]
    repository.close()
