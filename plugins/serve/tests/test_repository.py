"""Models of files and of folders in Triton's layout; clients load and unload them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tritonclient.grpc as rpc
import tritonclient.http as rest
from repository_ways import NOT_LOADED, factor, load, states, unload, versions
from serve_ways import Serve, ask, scaled

from engine.errors import EngineError
from engine_serve.folder import Sources
from engine_testing import models


def test_files_are_models_by_their_names_or_given_ones(serve: Serve, tmp_path: Path) -> None:
    served = serve(scaled(tmp_path / "a.onnx", 5), f"b={scaled(tmp_path / 'other.onnx', 6)}")
    assert (factor(served, "a"), factor(served, "b")) == (5, 6)


def test_a_folder_that_looks_like_a_model_without_a_version_is_a_warning(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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
    assert load(served, "later")[0] == 200
    assert factor(served, "later") == 7


def test_a_model_whose_files_have_gone_serves_until_it_is_unloaded(
    serve: Serve, tmp_path: Path
) -> None:
    served = serve(versions(tmp_path), tmp_path / "net" / "1" / "model.onnx")
    shutil.rmtree(tmp_path / "net")
    gone = "its files have gone, and it serves until it is unloaded"
    assert states(served) == {"net": ("READY", gone), "model": ("READY", gone)}
    assert ask(served.http, "GET", "/v2/health/ready")[0] == 200
    found = load(served)
    assert found == (404, {"error": f"model 'net': {gone}"})
    assert (factor(served), factor(served, "model")) == (1, 1)
    for name in ("net", "model"):
        assert unload(served, name)[0] == 200
    assert states(served) == {}
    assert factor(served) == (404, "there is no model 'net'; models: none")
    assert ask(served.http, "GET", "/v2/health/ready")[0] == 200


def test_of_two_models_of_one_name_the_one_counts_that_was_there_first(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve(scaled(tmp_path / "net.onnx", 2).parent)
    scaled(tmp_path / "net/1/model.onnx", 3)
    for _ in range(2):
        assert load(served)[0] == 200
        assert factor(served) == 2
    warning = f"{tmp_path}/net is not served: model 'net' is {tmp_path}/net.onnx"
    assert [record.getMessage() for record in caplog.records].count(warning) == 1
    (tmp_path / "net.onnx").unlink()
    assert load(served)[0] == 200
    assert factor(served) == 3


def test_a_word_of_the_command_line_never_means_another_file(serve: Serve, tmp_path: Path) -> None:
    plain, other = scaled(tmp_path / "a=b.onnx", 2), scaled(tmp_path / "b.onnx", 3)
    served = serve(plain)
    plain.rename(tmp_path / "elsewhere")
    assert other.exists()
    assert load(served, "a=b")[0] == 404
    assert factor(served, "a=b") == 2


def test_without_model_control_nothing_is_loaded_or_unloaded(serve: Serve, tmp_path: Path) -> None:
    served = serve(versions(tmp_path), may_change=False)
    scaled(tmp_path / "later.onnx", 7)
    served.repository.refresh()
    assert factor(served, "later") == (503, "model 'later' is not loaded")
    assert (load(served)[0], unload(served)[0]) == (501, 501)
    assert factor(served) == 1


def test_a_file_that_has_no_tensors_alone_is_refused(serve: Serve, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="sequence"):
        serve(models.sequences(tmp_path))
