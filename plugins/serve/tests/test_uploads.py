"""Models that clients send with a load: what is taken, what is refused, and what is left."""

from __future__ import annotations

import base64
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as rpc
import tritonclient.http as rest
from repository_ways import factor, load, unload
from serve_process import process
from serve_ways import Serve, Served, X, ask, infer, scaled, slow, tensor, until
from tritonclient.utils import InferenceServerException

from engine_serve.polling import Polling

CLIENTS = pytest.mark.parametrize("kind", [rest, rpc], ids=["http", "grpc"])


@pytest.fixture
def here(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    """A server of model `net`, which gives x, that takes 100,000 bytes of models."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return serve(scaled(tmp_path / "models/net.onnx", 1), uploads=100_000)


def left(tmp_path: Path) -> list[str]:
    """Return the files that clients have sent and that are still there."""
    found = (tmp_path / "temporary").rglob("*")
    return sorted(f"{path.parent.name}/{path.name}" for path in found if path.is_file())


def content(tmp_path: Path, factor: float) -> bytes:
    return scaled(tmp_path / "elsewhere/model.onnx", factor).read_bytes()


def index(served: Served) -> list[tuple[str, str, str]]:
    lines = ask(served.http, "POST", "/v2/repository/index")[1]
    return [(line["name"], line["state"], line.get("reason", "")) for line in lines]


@CLIENTS
def test_a_model_that_is_sent_runs_and_its_files_go_when_it_is_unloaded(
    here: Served, tmp_path: Path, kind: Any
) -> None:
    client = kind.InferenceServerClient(here.http if kind is rest else here.grpc)
    try:
        files = {f"file:{n}/model.onnx": content(tmp_path, n) for n in (2, 3)}
        config = '{"versionPolicy": {"all": {}}, "maxBatchSize": 2}'
        client.load_model("sent", config=config, files=files)
        assert (factor(here, "sent"), factor(here, "sent/versions/2")) == (3, 2)
        assert infer(here.http, "sent", tensor(np.ones((3, 3), "f4")))[0] == 400
        assert left(tmp_path) == ["2/model.onnx", "3/model.onnx"]
        [folder] = (tmp_path / "temporary").iterdir()
        assert folder.stat().st_mode & 0o777 == 0o700
        reason = "a client has sent its files, and it serves until it is unloaded"
        assert index(here) == [("net", "READY", ""), *[("sent", "READY", reason)] * 2]
        with pytest.raises(InferenceServerException, match="a client has sent its files"):
            client.load_model("sent")
        client.unload_model("sent")
    finally:
        client.close()
    assert left(tmp_path) == []
    assert index(here) == [("net", "READY", "")]
    assert ask(here.http, "GET", "/v2/health/ready")[0] == 200


def test_files_that_are_sent_take_the_place_of_the_folders_until_the_next_load(
    here: Served, tmp_path: Path
) -> None:
    sent = {"file:7/model.onnx": base64.b64encode(content(tmp_path, 5)).decode()}
    assert load(here, "net", **sent)[0] == 200
    assert (factor(here, "net"), factor(here, "net/versions/7")) == (5, 5)
    assert load(here, "net")[0] == 200
    assert factor(here, "net") == 1
    assert left(tmp_path) == []


def test_polling_leaves_a_model_that_a_client_has_sent(here: Served, tmp_path: Path) -> None:
    polling = Polling(here.repository)
    sent = {"file:1/model.onnx": base64.b64encode(content(tmp_path, 5)).decode()}
    for name in ("net", "later"):
        assert load(here, name, **sent)[0] == 200
        scaled(tmp_path / f"models/{name}.onnx", 9)
    for _ in range(2):
        polling.look()
    assert (factor(here, "net"), factor(here, "later")) == (5, 5)


def test_files_stay_until_the_last_request_of_their_model(here: Served, tmp_path: Path) -> None:
    path = slow(tmp_path / "elsewhere/slow.onnx", times=600)
    given = base64.b64encode(path.read_bytes()).decode()
    assert load(here, "sent", **{"file:1/model.onnx": given}) == (200, b"")
    found = []
    x = tensor(np.ones(1 << 18, "f4"))
    asking = threading.Thread(target=lambda: found.append(infer(here.http, "sent", x)[0]))
    asking.start()
    [model] = here.repository.loaded("sent")
    while not model.in_flight and asking.is_alive():
        time.sleep(0.001)
    assert unload(here, "sent")[0] == 200
    assert left(tmp_path) == ["1/model.onnx"]
    asking.join()
    assert found == [200]
    until(lambda: left(tmp_path) == [])


@pytest.mark.parametrize(
    ("name", "files", "status", "text"),
    [
        ("sent", {"model.onnx": b"x"}, 400, "expected 'file:VERSION/FILE', as 'file:1/model.onnx'"),
        ("sent", {"../model.onnx": b"x"}, 400, "expected 'file:VERSION/FILE'"),
        ("sent", {"01/model.onnx": b"x"}, 400, "expected 'file:VERSION/FILE'"),
        ("sent", {"²/model.onnx": b"x"}, 400, "expected 'file:VERSION/FILE'"),
        ("sent", {f"{'9' * 5000}/model.onnx": b"x"}, 400, "expected 'file:VERSION/FILE'"),
        ("sent", {"1/../../x.onnx": b"x"}, 400, "a file that is sent needs a plain name"),
        ("sent", {"1//etc/x.onnx": b"x"}, 400, "a file that is sent needs a plain name"),
        ("sent", {"1/.hidden": b"x"}, 400, "not beginning with '.', got '.hidden'"),
        ("sent", {"1/a\0b.onnx": b"x"}, 400, "a file that is sent needs a plain name"),
        ("sent", {f"1/{'é' * 101}": b"x"}, 400, "a plain name of up to 200 bytes"),
        (".sent", {"1/model.onnx": b"x"}, 400, "a model that is sent needs a plain name"),
        ("sent", {f"{n}/model.onnx": b"x" for n in range(1, 102)}, 400, "expected 100 files at mo"),
        ("sent", {"1/model.onnx": bytes(100_001)}, 413, "together they may have 100000, but 1000"),
        ("sent", {"1/model.onnx": b"no model"}, 400, "1/model.onnx: is a text file"),
        ("sent", {"1/readme.txt": b"x"}, 400, "1: expected one model, as model.onnx, got none"),
    ],
)
def test_what_may_not_be_sent_is_refused_and_leaves_nothing(
    here: Served, tmp_path: Path, name: str, files: dict[str, bytes], status: int, text: str
) -> None:
    given = {f"file:{path}": base64.b64encode(value).decode() for path, value in files.items()}
    got, found = load(here, name, **given)
    assert (got, text in found["error"]) == (status, True), found
    assert left(tmp_path) == []
    assert index(here) == [("net", "READY", "")]
    assert ask(here.http, "GET", "/v2/health/ready")[0] == 200
    assert factor(here, "net") == 1


@pytest.mark.parametrize("value", ["no base64!", 1, None, ["eA=="]])
def test_a_file_is_text_in_base64_over_rest(here: Served, value: object) -> None:
    status, found = load(here, "sent", **{"file:1/model.onnx": value})
    assert (status, "as text in base64 over REST" in found["error"]) == (400, True), found


def test_room_is_given_back(here: Served, tmp_path: Path) -> None:
    model = content(tmp_path, 2)
    files = {"1/model.onnx": model, "1/labels.txt": bytes(60_000)}
    given = {f"file:{path}": base64.b64encode(value).decode() for path, value in files.items()}
    for _ in range(3):
        assert load(here, "a", **given)[0] == 200
        assert load(here, "b", **given)[0] == 413
        bad = {"file:1/model.onnx": base64.b64encode(b"no model" + bytes(30_000)).decode()}
        assert load(here, "b", **bad)[0] == 400
        assert unload(here, "a")[0] == 200


def test_external_data_of_a_model_that_is_sent_stays_in_its_folder(
    here: Served, tmp_path: Path
) -> None:
    import onnx
    from onnx import helper

    (tmp_path / "secret.bin").write_bytes(bytes(12))
    for location in ("../../../../secret.bin", str(tmp_path / "secret.bin")):
        weight = onnx.TensorProto(name="w", data_type=1, dims=[3], data_location=1)
        weight.external_data.add(key="location", value=location)
        x, y = (helper.make_tensor_value_info(name, 1, [3]) for name in "xy")
        graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y])
        graph.initializer.append(weight)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        sent = base64.b64encode(model.SerializeToString()).decode()
        status, found = load(here, "sent", **{"file:1/model.onnx": sent})
        assert (status, "1/model.onnx: " in found["error"]) == (400, True), found
        assert "model's folder" in found["error"]
        assert index(here) == [("net", "READY", "")]


def test_a_configuration_with_sent_files_says_not_where_a_model_runs(
    here: Served, tmp_path: Path
) -> None:
    sent = {"file:1/model.onnx": base64.b64encode(content(tmp_path, 5)).decode()}
    config = '{"parameters": {"workers": {"stringValue": "process"}}}'
    status, found = load(here, "sent", config=config, **sent)
    assert (status, "only config.pbtxt says them" in found["error"]) == (400, True)
    assert left(tmp_path) == []


def test_nothing_is_left_of_files_that_were_sent_when_the_server_is_killed(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    path = scaled(tmp_path / "net.onnx", 1)
    with process(path, "--allow-uploads", "1", environment=environment) as found:
        sent = base64.b64encode(content(tmp_path, 5)).decode()
        body = json.dumps({"parameters": {"file:1/model.onnx": sent}})
        assert ask(found.http, "POST", "/v2/repository/models/sent/load", body)[0] == 200
        assert infer(found.http, "sent", tensor(X))[0] == 200
        assert left(tmp_path) == ["1/model.onnx"]
        found.process.kill()
        found.process.wait()
        until(lambda: [*(tmp_path / "temporary").iterdir()] == [])
