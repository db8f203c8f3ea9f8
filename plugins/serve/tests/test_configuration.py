"""config.pbtxt: what it sets, what has no meaning here, what does not fit the model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from repository_ways import factor, load, unload, versions
from serve_ways import Serve, X, ask, infer, scaled, tensor

from engine.errors import EngineError
from engine_serve.runners import Running


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
    served = serve(versions(tmp_path, config))
    assert factor(served) == 1
    [text] = [record.getMessage() for record in caplog.records if "ignored" in record.getMessage()]
    assert text.endswith(
        "without meaning here, and ignored: input.allow_ragged_batch, max_bach_size (did you mean "
        "max_batch_size?), optimization, parameters 'a: b {'"
    )


def test_a_configuration_beside_files_is_a_warning(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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
    served = serve(versions(tmp_path, config))
    assert factor(served) == 1
    [text] = [record.getMessage() for record in caplog.records if "ignored" in record.getMessage()]
    assert text.endswith("without meaning here, and ignored: model_repository_agents, model_warmup")


def test_a_configuration_for_gpus_is_a_warning_on_the_cpu(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    serve(versions(tmp_path, "instance_group [ { kind: KIND_GPU } ]"))
    assert "config.pbtxt asks for KIND_GPU, but the model runs on cpu" in caplog.text


def test_another_runtime_in_a_configuration_is_a_warning(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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


@pytest.mark.parametrize("config", [b"max_batch_size: many", b'name: "other"', b'name: "\xff"'])
def test_a_faulty_configuration_in_the_folder_is_an_error_of_400(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture, config: bytes
) -> None:
    served = serve(versions(tmp_path))
    (tmp_path / "net/config.pbtxt").write_bytes(config)
    status, found = load(served)
    assert (status, "config.pbtxt" in found["error"]) == (400, True), found
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1
    assert factor(served) == 1


def test_a_configuration_from_a_client_reads_no_files(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("a\nb\nc\n")
    served = serve(scaled(tmp_path / "models/net.onnx", 2))
    output = {"name": "y", "dataType": "TYPE_FP32", "dims": [-1, 3], "labelFilename": "secret.txt"}
    status, found = load(served, config=json.dumps({"output": [output]}))
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
    assert unload(served)[0] == 200
    assert load(served, config=config)[0] == 400
    assert ask(served.http, "GET", "/v2/health/ready")[0] == 200
