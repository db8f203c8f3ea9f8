"""Folders in Triton's layout; models are loaded, replaced and unloaded while clients ask."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as rpc
import tritonclient.http as rest
from serve_ways import Served, X, ask, infer, scaled, tensor

from engine.errors import EngineError
from engine_serve.folder import sources
from engine_testing import models

Serve = Callable[..., Served]


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
        "without meaning here, and ignored: input.allow_ragged_batch, max_bach_size, optimization, "
        "parameters"
    )


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
        ('input { name: "x" dims: [4] }', "input 'x' does not fit the model's"),
        ('output { name: "y" data_type: TYPE_INT8 dims: [-1, 3] }', "output 'y' does not fit"),
        ("version_policy { specific { versions: [9] } }", "names version 9, but there are 1"),
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
        sources(words)
    assert text in str(raised.value)


@pytest.mark.parametrize("client", [rest, rpc], ids=["http", "grpc"])
def test_clients_load_and_unload_models(serve: Serve, tmp_path: Path, client: object) -> None:
    served = serve(versions(tmp_path), scaled(tmp_path / "more/b.onnx", 4))
    connection = client.InferenceServerClient(served.http if client is rest else served.grpc)
    try:
        connection.unload_model("net")
        assert not connection.is_model_ready("net")
        assert factor(served) == (503, "model 'net' is not loaded")
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


def test_a_version_that_cannot_be_built_leaves_the_old_one(serve: Serve, tmp_path: Path) -> None:
    served = serve(versions(tmp_path))
    (tmp_path / "net/2").mkdir()
    (tmp_path / "net/2/model.onnx").write_bytes(b"no model")
    status, _ = ask(served.http, "POST", "/v2/repository/models/net/load")
    assert status == 500
    assert factor(served) == 1
    assert ask(served.http, "GET", "/v2/health/ready")[0] == 200


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


@pytest.mark.parametrize("config", ['{"name": "other"}', "no JSON", '{"input": [{"name": "z"}]}'])
def test_a_mistake_of_a_client_is_no_fault_of_the_server(
    serve: Serve, tmp_path: Path, config: str
) -> None:
    served = serve(versions(tmp_path), scaled(tmp_path / "more/b.onnx", 4))
    assert ask(served.http, "POST", "/v2/repository/models/net/unload")[0] == 200
    assert load(served, config)[0] == 400
    assert ask(served.http, "GET", "/v2/health/ready")[0] == 200


def test_without_model_control_nothing_is_loaded_or_unloaded(serve: Serve, tmp_path: Path) -> None:
    served = serve(versions(tmp_path), may_change=False)
    for change in ("load", "unload"):
        assert ask(served.http, "POST", f"/v2/repository/models/net/{change}")[0] == 501
    assert factor(served) == 1


@pytest.mark.parametrize(
    ("clients", "reloads"), [(8, 3), pytest.param(64, 20, marks=pytest.mark.slow)]
)
def test_no_request_fails_while_versions_change_and_each_answer_is_of_one(
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

    threads = [threading.Thread(target=ask_on, args=(number,)) for number in range(clients)]
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


def test_a_file_that_has_no_tensors_alone_is_refused(serve: Serve, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="sequence"):
        serve(models.sequences(tmp_path))
