"""Folders in Triton's layout; models are loaded, replaced and unloaded while clients ask."""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as rpc
import tritonclient.http as rest
from serve_ways import Served, X, ask, infer, scaled, tensor

from engine.errors import EngineError
from engine_serve.folder import Sources
from engine_serve.loaded import LoadedModel
from engine_serve.polling import Polling
from engine_serve.runners import Running
from engine_testing import models

Serve = Callable[..., Served]


NOT_LOADED = (
    "model '{0}' is not loaded: POST /v2/repository/models/{0}/load (gRPC: RepositoryModelLoad)"
)


def versions(folder: Path, config: str = "", *numbers: int) -> Path:
    """Write model `net`, whose version k gives k * x; return the folder that has it."""
    for number in numbers or (1,):
        scaled(folder / f"net/{number}/model.onnx", number)
    if config:
        (folder / "net/config.pbtxt").write_text(config)
    return folder


def factor(served: Served, path: str = "net") -> object:
    """Return what a version multiplies by; the error where there is none."""
    status, found = ask(served.http, "POST", f"/v2/models/{path}/infer",
                        {"inputs": [tensor(np.ones((1, 3), "f4"))]})  # fmt: skip
    return found["outputs"][0]["data"][0] if status == 200 else (status, found["error"])


@pytest.mark.parametrize(
    ("policy", "loaded"),
    [
        ("", ["3"]),
        ("version_policy { latest { num_versions: 2 } }", ["2", "3"]),
        ("version_policy: { all {} }", ["1", "2", "3"]),
        ("version_policy { specific { versions: [1, 3] } }", ["1", "3"]),
    ],
)
def test_the_policy_chooses_versions_and_the_newest_is_the_default(
    serve: Serve, tmp_path: Path, policy: str, loaded: list[str]
) -> None:
    served = serve(versions(tmp_path, policy, 1, 2, 3))
    assert ask(served.http, "GET", "/v2/models/net")[1]["versions"] == loaded
    assert factor(served) == float(loaded[-1])
    for version in loaded:
        assert factor(served, f"net/versions/{version}") == float(version)
    if "2" not in loaded:
        listed = ", ".join(reversed(loaded))
        text = f"model 'net' has no version '2'; loaded: {listed}"
        assert factor(served, "net/versions/2") == (404, text)


def test_files_are_models_by_their_names_or_given_ones(serve: Serve, tmp_path: Path) -> None:
    served = serve(scaled(tmp_path / "a.onnx", 5), f"b={scaled(tmp_path / 'other.onnx', 6)}")
    assert (factor(served, "a"), factor(served, "b")) == (5, 6)


def test_unknown_fields_of_a_configuration_are_named_in_a_warning(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = """
    max_batch_size: 8  # a comment with words: here
    input [ { name: "x" data_type: TYPE_FP32 dims: [ 3 ] allow_ragged_batch: false } ]
    optimization { graph { level: 1 } }
    parameters: { key: "a: b {" value: { string_value: "c" } }
    max_bach_size: 3
    """
    caplog.set_level(logging.WARNING, "engine_serve")
    served = serve(versions(tmp_path, config))
    assert factor(served) == 1
    [text] = [record.getMessage() for record in caplog.records if "ignored" in record.getMessage()]
    assert text.endswith(
        "without meaning here, and ignored: input.allow_ragged_batch, max_bach_size (did you mean "
        "max_batch_size?), optimization, parameters 'a: b {'"
    )


def test_a_folder_that_looks_like_a_model_without_a_version_is_a_warning(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "engine_serve")
    (tmp_path / "set").mkdir()
    (tmp_path / "set/config.pbtxt").touch()
    scaled(tmp_path / "flat/model.onnx", 3)
    scaled(tmp_path / "named/v1/model.onnx", 3)
    (tmp_path / "notes").mkdir()
    served = serve(versions(tmp_path))
    assert factor(served) == 1
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / name} is not served: it has no version, as {tmp_path / name}/1/model.onnx"
        for name in ("flat", "set")
    ]


def test_a_configuration_beside_files_is_a_warning(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "engine_serve")
    (tmp_path / "config.pbtxt").touch()
    served = serve(scaled(tmp_path / "net.onnx", 3).parent)
    assert factor(served) == 3
    text = (
        f"{tmp_path}/config.pbtxt is not read: the folder has no version, as "
        f"{tmp_path}/1/model.onnx"
    )
    assert [record.getMessage() for record in caplog.records] == [text]


def test_a_configuration_names_the_backend_that_runs_the_model(
    serve: Serve, tmp_path: Path
) -> None:
    running = Running(target=["reference"])
    for number, (more, backend) in enumerate([({}, "cpu"), ({"running": running}, "reference")]):
        served = serve(versions(tmp_path / str(number), 'backend: "tensorrt"'), **more)
        found = ask(served.http, "GET", "/v2/models/net/config")[1]
        assert (found["backend"], found["platform"]) == (backend, "onnx_onnxv1")


def test_lists_in_a_configuration_are_read_with_and_without_a_colon(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = """
    input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 3 ] } ]  # a comment [ with a list
    output: [ { name: "y" data_type: TYPE_FP32 dims: [ -1 , 3 ] label_filename: "" 'n' } ]
    dynamic_batching { preferred_batch_size: [ 4, 8 ] }
    model_warmup [ { name: "w [ {" inputs [ { key: 'x [' } ] }, { batch_size: 1 } ]
    model_repository_agents { agents
      [ { name: "checksum" parameters [ { key: "a" value: [ 0, 1 ] } ] } ]
    }
    """
    (tmp_path / "net").mkdir()
    (tmp_path / "net/n").write_text("a\nb\nc\n")
    caplog.set_level(logging.WARNING, "engine_serve")
    served = serve(versions(tmp_path, config))
    assert factor(served) == 1
    [text] = [record.getMessage() for record in caplog.records if "ignored" in record.getMessage()]
    assert text.endswith("without meaning here, and ignored: model_repository_agents, model_warmup")


def test_a_configuration_for_gpus_is_a_warning_on_the_cpu(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "engine_serve")
    serve(versions(tmp_path, "instance_group [ { kind: KIND_GPU } ]"))
    assert "config.pbtxt asks for KIND_GPU, but the model runs on cpu" in caplog.text


def test_another_runtime_in_a_configuration_is_a_warning(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "engine_serve")
    serve(versions(tmp_path / "a", 'backend: "onnxruntime"'))
    assert "is not used" not in caplog.text
    assert factor(serve(versions(tmp_path / "b", 'backend: "pytorch"'))) == 1
    assert "config.pbtxt: backend 'pytorch' is not used" in caplog.text


def test_a_batch_above_the_configurations_is_refused(serve: Serve, tmp_path: Path) -> None:
    served = serve(versions(tmp_path, "max_batch_size: 2"))
    assert infer(served.http, "net", tensor(np.ones((2, 3), "f4")))[0] == 200
    status, found = infer(served.http, "net", tensor(np.ones((3, 3), "f4")))
    assert status == 400
    assert found["error"] == "model 'net': expected a batch of 2 samples at most, got 3"
    config = ask(served.http, "GET", "/v2/models/net/config")[1]
    assert (config["max_batch_size"], config["input"][0]["dims"]) == (2, [3])


def test_labels_stand_behind_classes(serve: Serve, tmp_path: Path) -> None:
    config = 'output { name: "y" data_type: TYPE_FP32 dims: [-1, 3] label_filename: "names.txt" }'
    (tmp_path / "net").mkdir()
    (tmp_path / "net/names.txt").write_text("cat\ndog\nemu\n")
    served = serve(versions(tmp_path, config))
    wanted = [{"name": "y", "parameters": {"classification": 1}}]
    found = infer(served.http, "net", tensor(X), outputs=wanted)[1]
    assert found["outputs"][0]["data"] == ["2.000000:2:emu", "5.000000:2:emu"]


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ("max_batch_size: many", "not a configuration in protobuf's text format"),
        ('name: "other"', "config.pbtxt is of model 'other', but the folder is 'net'"),
        ('input { name: "z" }', "the model has no input 'z'; it has x"),
        ("max_batch_size: -4", "max_batch_size must be a whole number from 0, got -4"),
        ("sequence_batching { }", "config.pbtxt: sequence_batching: this server keeps no state"),
        (
            'ensemble_scheduling { step [ { model_name: "a" model_version: -1 } ] }',
            "config.pbtxt: ensemble_scheduling: this server runs no ensembles; merge the models",
        ),
        ("instance_group { count: 65 }", "a model can have up to 64 workers, got 65"),
        ("instance_group { count: -1 }", "count must be a whole number from 0, got -1"),
        ('input { name: "x" dims: [4] }', "input 'x' does not fit the model's"),
        (
            'output { name: "y" data_type: TYPE_INT8 dims: [-1, 3] }',
            "output 'y' does not fit the model's FP32[-1, 3]: dims [-1, 3], data_type TYPE_INT8",
        ),
        (
            "version_policy { specific { versions: [9] } }",
            "names version 9; versions in the folder: 1",
        ),
        ('default_model_filename: "../x"', "default_model_filename must be a file's name"),
        ('default_model_filename: "x.onnx"', "x.onnx"),
    ],
)
def test_a_configuration_that_does_not_fit_is_an_error(
    serve: Serve, tmp_path: Path, config: str, text: str
) -> None:
    with pytest.raises(EngineError) as raised:
        serve(versions(tmp_path, config))
    assert text in str(raised.value)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["nowhere.onnx"], "nowhere.onnx: no such model or folder"),
        (["."], "has no models; expected files as net.onnx"),
        (["a=x.onnx", "a=y.onnx"], "two models are named 'a'"),
        (["a=x.onnx", "a=x.onnx"], "a=x.onnx is given twice; leave one out"),
        (["a=x.onnx", "a=./x.onnx"], "model 'a' is given twice, by a=x.onnx and by a=./x.onnx"),
    ],
)
def test_what_is_no_model_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for word in words:
        if "=" in word:
            scaled(tmp_path / word.partition("=")[2], 1)
    with pytest.raises(EngineError) as raised:
        Sources(words)
    assert text in str(raised.value)


@pytest.mark.parametrize("client", [rest, rpc], ids=["http", "grpc"])
def test_clients_load_and_unload_models(serve: Serve, tmp_path: Path, client: object) -> None:
    served = serve(versions(tmp_path), scaled(tmp_path / "more/b.onnx", 4))
    connection = client.InferenceServerClient(served.http if client is rest else served.grpc)
    try:
        connection.unload_model("net")
        assert not connection.is_model_ready("net")
        assert factor(served) == (503, NOT_LOADED.format("net"))
        assert factor(served, "b") == 4
        text = str(connection.get_model_repository_index())
        assert "UNAVAILABLE" in text
        assert "unloaded" in text
        scaled(tmp_path / "net/2/model.onnx", 2)
        connection.load_model("net")
        assert factor(served) == 2
        connection.load_model("net", config='{"versionPolicy": {"all": {}}}')
        assert factor(served, "net/versions/1") == 1
        with pytest.raises(Exception, match="there is no model 'nobody'"):
            connection.load_model("nobody")
        with pytest.raises(Exception, match="models come from the server's folder"):
            connection.load_model("net", config="{}", files={"file:1/model.onnx": b"x"})
    finally:
        connection.close()


def states(served: Served) -> dict[str, tuple[str, str]]:
    """Return the state and the reason of each model in the index."""
    lines = ask(served.http, "POST", "/v2/repository/index")[1]
    return {line["name"]: (line["state"], line.get("reason", "")) for line in lines}


@pytest.mark.parametrize("client", [rest, rpc], ids=["http", "grpc"])
def test_a_model_that_comes_later_is_in_the_index_and_can_be_loaded(
    serve: Serve, tmp_path: Path, client: object
) -> None:
    served = serve(versions(tmp_path))
    scaled(tmp_path / "later/1/model.onnx", 7)
    scaled(tmp_path / "single.onnx", 8)
    connection = client.InferenceServerClient(served.http if client is rest else served.grpc)
    try:
        assert "later" in str(connection.get_model_repository_index())
        assert states(served)["later"] == ("UNAVAILABLE", "not loaded")
        assert factor(served, "later") == (503, NOT_LOADED.format("later"))
        assert connection.is_server_ready()  # nobody has asked for them
        connection.load_model("later")
        connection.load_model("single")
    finally:
        connection.close()
    assert (factor(served, "later"), factor(served, "single")) == (7, 8)
    assert {*states(served).values()} == {("READY", "")}


def test_a_model_can_be_loaded_without_a_look_at_the_index(serve: Serve, tmp_path: Path) -> None:
    served = serve(versions(tmp_path))
    scaled(tmp_path / "later.onnx", 7)
    assert ask(served.http, "POST", "/v2/repository/models/later/load")[0] == 200
    assert factor(served, "later") == 7


def test_a_model_whose_files_have_gone_serves_until_it_is_unloaded(
    serve: Serve, tmp_path: Path
) -> None:
    served = serve(versions(tmp_path), tmp_path / "net" / "1" / "model.onnx")
    shutil.rmtree(tmp_path / "net")
    gone = "its files have gone, and it serves until it is unloaded"
    assert states(served) == {"net": ("READY", gone), "model": ("READY", gone)}
    assert ask(served.http, "GET", "/v2/health/ready")[0] == 200
    found = ask(served.http, "POST", "/v2/repository/models/net/load")
    assert found == (404, {"error": f"model 'net': {gone}"})
    assert (factor(served), factor(served, "model")) == (1, 1)
    for name in ("net", "model"):
        assert ask(served.http, "POST", f"/v2/repository/models/{name}/unload")[0] == 200
    assert states(served) == {}
    assert factor(served) == (404, "there is no model 'net'; models: none")
    assert ask(served.http, "GET", "/v2/health/ready")[0] == 200


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
    path = "/v2/repository/models/net/load"
    count = min(32, (os.cpu_count() or 1) + 4) + 1  # asyncio's own threads, and one more
    with ThreadPoolExecutor(count) as threads:
        loads = [threads.submit(ask, served.http, "POST", path) for _ in range(count)]
        try:
            while served.repository.index()[-1].state != "LOADING":
                time.sleep(0.01)
            time.sleep(0.2)  # for the others to come; it holds without, too
            rows = np.ones((20_000, 3), "f4")  # so large that another thread reads it
            assert infer(served.http, "net", tensor(rows))[0] == 200
            assert states(served)["net"][0] == "LOADING"
        finally:
            may_go.set()
        assert {load.result()[0] for load in loads} == {200}


def test_of_two_models_of_one_name_the_one_counts_that_was_there_first(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve(scaled(tmp_path / "net.onnx", 2).parent)
    scaled(tmp_path / "net/1/model.onnx", 3)
    for _ in range(2):
        assert ask(served.http, "POST", "/v2/repository/models/net/load")[0] == 200
        assert factor(served) == 2
    warning = f"{tmp_path}/net is not served: model 'net' is {tmp_path}/net.onnx"
    assert [record.getMessage() for record in caplog.records].count(warning) == 1
    (tmp_path / "net.onnx").unlink()
    assert ask(served.http, "POST", "/v2/repository/models/net/load")[0] == 200
    assert factor(served) == 3


def test_a_name_of_the_command_line_stays_its_files(serve: Serve, tmp_path: Path) -> None:
    own = scaled(tmp_path / "own.onnx", 2)
    served = serve(f"x={own}", scaled(tmp_path / "models/net.onnx", 1).parent)
    scaled(tmp_path / "models/x.onnx", 7)
    content = own.read_bytes()
    own.unlink()
    polling = Polling(served.repository)
    for _ in range(3):
        polling.look()
    assert ask(served.http, "POST", "/v2/repository/models/x/load")[0] == 404
    assert factor(served, "x") == 2
    own.write_bytes(content)
    assert ask(served.http, "POST", "/v2/repository/models/x/load")[0] == 200
    assert factor(served, "x") == 2


def test_polling_leaves_unloaded_what_a_client_has_unloaded(serve: Serve, tmp_path: Path) -> None:
    net = scaled(tmp_path / "net.onnx", 2)
    served = serve(tmp_path)
    polling, content = Polling(served.repository), net.read_bytes()
    assert ask(served.http, "POST", "/v2/repository/models/net/unload")[0] == 200
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


def test_too_many_loads_are_refused_while_they_wait(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(versions(tmp_path))
    may_go = held(monkeypatch)
    monkeypatch.setattr("engine_serve.service._MOST_CHANGES", 2)
    path = "/v2/repository/models/net/load"
    with ThreadPoolExecutor(3) as threads:
        loads = [threads.submit(ask, served.http, "POST", path) for _ in range(3)]
        try:
            assert next(as_completed(loads)).result()[0] == 503
        finally:
            may_go.set()
        assert sorted(load.result()[0] for load in loads) == [200, 200, 503]
    assert ask(served.http, "POST", path)[0] == 200


def test_a_word_of_the_command_line_never_means_another_file(serve: Serve, tmp_path: Path) -> None:
    plain, other = scaled(tmp_path / "a=b.onnx", 2), scaled(tmp_path / "b.onnx", 3)
    served = serve(plain)
    plain.rename(tmp_path / "elsewhere")
    assert other.exists()
    assert ask(served.http, "POST", "/v2/repository/models/a=b/load")[0] == 404
    assert factor(served, "a=b") == 2


def test_polling_loads_what_is_new_and_what_has_changed_once_it_is_settled(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scaled(tmp_path / "off.onnx", 4)
    served = serve(versions(tmp_path))
    polling = Polling(served.repository)
    polling.look()
    assert ask(served.http, "POST", "/v2/repository/models/off/unload")[0] == 200
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


def test_a_version_that_cannot_be_built_leaves_the_old_one(serve: Serve, tmp_path: Path) -> None:
    served = serve(versions(tmp_path))
    (tmp_path / "net/2").mkdir()
    (tmp_path / "net/2/model.onnx").write_bytes(b"no model")
    status, _ = ask(served.http, "POST", "/v2/repository/models/net/load")
    assert status == 500
    assert factor(served) == 1
    assert ask(served.http, "GET", "/v2/health/ready")[0] == 200


@pytest.mark.parametrize("config", [b"max_batch_size: many", b'name: "other"', b'name: "\xff"'])
def test_a_faulty_configuration_in_the_folder_is_an_error_of_400(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture, config: bytes
) -> None:
    served = serve(versions(tmp_path))
    (tmp_path / "net/config.pbtxt").write_bytes(config)
    status, found = ask(served.http, "POST", "/v2/repository/models/net/load")
    assert (status, "config.pbtxt" in found["error"]) == (400, True), found
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1
    assert factor(served) == 1


def load(served: Served, config: str) -> tuple[int, dict[str, str]]:
    """Load "net" with a configuration from a client."""
    body = json.dumps({"parameters": {"config": config}}).encode()
    return ask(served.http, "POST", "/v2/repository/models/net/load", body)


def test_a_configuration_from_a_client_reads_no_files(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("a\nb\nc\n")
    served = serve(scaled(tmp_path / "models/net.onnx", 2))
    output = {"name": "y", "dataType": "TYPE_FP32", "dims": [-1, 3], "labelFilename": "secret.txt"}
    status, found = load(served, json.dumps({"output": [output]}))
    assert (status, "only a folder's own config.pbtxt names files" in found["error"]) == (400, True)
    wanted = [{"name": "y", "parameters": {"classification": 1}}]
    found = infer(served.http, "net", tensor(X), outputs=wanted)[1]
    assert found["outputs"][0]["data"] == ["4.000000:2", "10.000000:2"]


@pytest.mark.parametrize(
    "config",
    [
        '{"name": "other"}',
        "no JSON",
        '{"input": [{"name": "z"}]}',
        '{"sequenceBatching": {"direct": {}}}',
        '{"sequence_batching": {}}',
        '{"ensembleScheduling": {"step": []}}',
        '{"ensemble_scheduling": {}}',
    ],
)
def test_a_mistake_of_a_client_is_no_fault_of_the_server(
    serve: Serve, tmp_path: Path, config: str
) -> None:
    served = serve(versions(tmp_path), scaled(tmp_path / "more/b.onnx", 4))
    assert ask(served.http, "POST", "/v2/repository/models/net/unload")[0] == 200
    assert load(served, config)[0] == 400
    assert ask(served.http, "GET", "/v2/health/ready")[0] == 200


def test_without_model_control_nothing_is_loaded_or_unloaded(serve: Serve, tmp_path: Path) -> None:
    served = serve(versions(tmp_path), may_change=False)
    scaled(tmp_path / "later.onnx", 7)
    served.repository.refresh()
    assert factor(served, "later") == (503, "model 'later' is not loaded")
    for change in ("load", "unload"):
        assert ask(served.http, "POST", f"/v2/repository/models/net/{change}")[0] == 501
    assert factor(served) == 1


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
    for version in range(2, 2 + reloads):
        scaled(tmp_path / f"net/{version}/model.onnx", version)
        assert ask(served.http, "POST", "/v2/repository/models/net/load")[0] == 200
        before = [*counts]
        until = time.monotonic() + 30
        while any(now < old + 2 for now, old in zip(counts, before)) and time.monotonic() < until:
            time.sleep(0.01)
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
    until = time.monotonic() + 30
    while "closed" not in repr(old.runner) and time.monotonic() < until:
        time.sleep(0.01)
    assert "closed" in repr(old.runner)


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
    status, found = ask(served.http, "POST", "/v2/repository/models/net/load")
    assert (status, "is a text file" in found["error"]) == (500, True)
    assert "model 'net' could not be closed: RuntimeError: a runtime's mistake" in caplog.text
    assert ["closed" in repr(runner) for runner in runners] == [False, True]
    runners[0].close()


def test_a_file_that_has_no_tensors_alone_is_refused(serve: Serve, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="sequence"):
        serve(models.sequences(tmp_path))
