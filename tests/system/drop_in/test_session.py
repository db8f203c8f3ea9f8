"""Scripts for onnxruntime on the engine: the same numbers, the same words, the same errors."""

from __future__ import annotations

import gc
import json
import threading
import time
import warnings
import weakref
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from graphs import written
from onnx import TensorProto, helper

import engine.onnxruntime as ort
from engine.onnxruntime.options import _Fields
from engine_testing import models

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(models.affine(tmp_path))


@pytest.fixture
def session(path: str) -> ort.InferenceSession:
    return ort.InferenceSession(path, providers=["CPUExecutionProvider"])


def saved(folder: Path, text: str, name: str = "model") -> str:
    model = onnx.parser.parse_model(text)
    onnx.save(model, folder / f"{name}.onnx")
    return str(folder / f"{name}.onnx")


HEAD = '<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>\n'


# ------------------------------------------------------------------------------------- running


@pytest.mark.parametrize("how", ["path", "Path", "bytes"])
def test_a_model_is_a_path_or_bytes(how: str, path: str) -> None:
    given = {"path": path, "Path": Path(path), "bytes": Path(path).read_bytes()}[how]
    [y] = ort.InferenceSession(given).run(None, {"x": X})
    np.testing.assert_array_equal(y, 2 * X + 1)


def test_other_things_are_no_model() -> None:
    with pytest.raises(TypeError, match="Unable to load from type '<class 'int'>'"):
        ort.InferenceSession(5)  # type: ignore[arg-type]


def test_every_run_gives_new_arrays_that_later_runs_leave_alone(session: Any) -> None:
    found = [session.run(None, {"x": X + i})[0] for i in range(5)]
    for i, y in enumerate(found):
        np.testing.assert_array_equal(y, 2 * (X + i) + 1)


def test_shapes_may_change_from_run_to_run(session: Any) -> None:
    for rows in (1, 4, 1, 2, 2, 2, 7):
        x = np.full((rows, 3), rows, np.float32)
        np.testing.assert_array_equal(session.run(["y"], {"x": x})[0], 2 * x + 1)


def test_outputs_come_in_the_order_of_their_names(tmp_path: Path) -> None:
    session = ort.InferenceSession(models.several(tmp_path))
    z, a, m = X, X + 1, np.array([1, 2, 3], np.float32)
    feed = {"m": m, "a": a, "z": z}
    for _ in range(3):
        x, y = session.run(["x", "y"], feed)
        np.testing.assert_array_equal(x, z + m)
        np.testing.assert_array_equal(y, z - a)
        assert len(session.run([], feed)) == 3


@pytest.mark.parametrize(
    "given",
    [X.tolist(), X[:, ::-1][:, ::-1], np.asfortranarray(X), X.astype(">f4").astype("<f4")],
    ids=["list", "strided", "fortran", "native"],
)
def test_what_numpy_makes_the_array_of_is_taken(given: Any, session: Any) -> None:
    np.testing.assert_array_equal(session.run(None, {"x": given})[0], 2 * X + 1)


FEEDS = {
    "another type": {"x": X.astype(np.float64)},
    "another rank": {"x": X[0]},
    "another size": {"x": X.reshape(3, 2)},
    "no such input": {"x": X, "other": X},
    "nothing": {},
    "a wrong name": {"z": X},
    "none": {"x": None},
    "text": {"x": "abc"},
}


@pytest.mark.parametrize("what", FEEDS)
def test_a_feed_that_does_not_fit_is_refused_as_onnxruntime_does(
    what: str, path: str, session: Any
) -> None:
    theirs = onnxruntime.InferenceSession(path)
    with pytest.raises(Exception) as expected:  # noqa: PT011 - whatever it is
        theirs.run(None, FEEDS[what])
    for _ in range(2):
        with pytest.raises(expected.type) as found:
            session.run(None, FEEDS[what])
        assert str(found.value) == str(expected.value)
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], 2 * X + 1)


def test_an_unknown_output_is_refused_as_onnxruntime_does(session: Any) -> None:
    session.run(None, {"x": X})
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidArgument, match="other"):
        session.run(["other"], {"x": X})


def test_errors_are_caught_by_onnxruntimes_own_classes(path: str, tmp_path: Path) -> None:
    state = onnxruntime.capi.onnxruntime_pybind11_state
    with pytest.raises(state.NoSuchFile, match="NO_SUCHFILE"):
        ort.InferenceSession(str(tmp_path / "none.onnx"))
    with pytest.raises(state.InvalidProtobuf, match="INVALID_PROTOBUF"):
        ort.InferenceSession(b"no model at all")
    with pytest.raises(state.InvalidArgument, match="Unexpected input data type"):
        ort.InferenceSession(path).run(None, {"x": X.astype(np.int8)})
    unknown = saved(tmp_path, HEAD + "g (float[2] x) => (float[2] y) { y = NoSuchOperator (x) }")
    with pytest.raises((state.InvalidGraph, state.Fail), match="NoSuchOperator"):
        ort.InferenceSession(unknown)


def test_run_options_reach_the_run(session: Any) -> None:
    options = ort.RunOptions()
    options.logid = "mine"
    np.testing.assert_array_equal(session.run(None, {"x": X}, options)[0], 2 * X + 1)
    options.terminate = True
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.Fail, match="terminate flag"):
        session.run(None, {"x": X}, options)


def test_a_run_in_another_thread_calls_back(session: Any) -> None:
    done, told = threading.Event(), []

    def callback(results: Any, data: Any, error: str) -> None:
        told.append((results, data, error))
        done.set()

    session.run_async(None, {"x": X}, callback, "mine")
    assert done.wait(30)
    [(results, data, error)] = told
    np.testing.assert_array_equal(results[0], 2 * X + 1)
    assert (data, error) == ("mine", "")


def test_many_threads_run_one_session(session: Any) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        x = np.full((2, 3), number, np.float32)
        wrong.extend(i for i in range(50) if (session.run(None, {"x": x})[0] != 2 * x + 1).any())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_bfloat16_goes_in_and_out(tmp_path: Path) -> None:
    path = saved(tmp_path, HEAD + "g (bfloat16[n] x) => (bfloat16[n] y) { y = Identity (x) }")
    x = np.array([1, 2.5], ml_dtypes.bfloat16)
    session = ort.InferenceSession(path)
    for _ in range(3):
        [y] = session.run(None, {"x": x})
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(y, x)


@pytest.mark.slow
def test_a_session_that_is_opened_anew_from_the_compile_cache_runs_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_CACHE", "on")
    monkeypatch.setenv("ENGINE_CACHE_DIR", str(tmp_path / "cache"))
    text = "g (float[n, 2048] x) => (float[n, m] y) { y = MatMul (x, w) }"
    written(tmp_path / "large.onnx", text, w=np.full((2048, 2048), 0.5, np.float32))
    session = ort.InferenceSession(tmp_path / "large.onnx")
    feed = {"x": np.ones((1, 2048), np.float32)}
    expected = np.full((1, 2048), 1024, np.float32)
    binding = session.io_binding()
    binding.bind_cpu_input("x", feed["x"])
    binding.bind_output("y")
    first = session.runtime
    deadline = time.monotonic() + 60
    while session.runtime is first and time.monotonic() < deadline:
        np.testing.assert_array_equal(session.run(None, feed)[0], expected)
        time.sleep(0.05)
    assert session.runtime is not first
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], expected)
    old = weakref.ref(first)
    del first, binding
    gc.collect()
    assert old() is None, "its weights would be in memory twice"
    np.testing.assert_array_equal(session.run(None, feed)[0], expected)


def test_strings_sequences_and_maps_go_in_and_out(tmp_path: Path) -> None:
    strings = saved(tmp_path, HEAD + "g (string[n] x) => (string[n] y) { y = Identity (x) }", "s")
    words = np.array(["a", "b"], object)
    for given in (words, ["a", "b"], np.array(["a", "b"])):
        assert ort.InferenceSession(strings).run(None, {"x": given})[0].tolist() == ["a", "b"]
    split = "g (float[4] x) => (seq(float[2]) y) { y = SplitToSequence (x, two) }"
    sequence = saved(tmp_path, HEAD + split.replace("{", "<int64 two = {2}> {"), "q")
    [found] = ort.InferenceSession(sequence).run(None, {"x": np.arange(4, dtype=np.float32)})
    assert [part.tolist() for part in found] == [[0, 1], [2, 3]]
    node = helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[7, 9])
    maps = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])
    row = helper.make_map_type_proto(
        TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    )
    out = helper.make_value_info("y", helper.make_sequence_type_proto(row))
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph([node], "g", [maps], [out])
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    [rows] = ort.InferenceSession(model.SerializeToString()).run(
        None, {"x": np.array([[0.25, 0.75]], np.float32)}
    )
    assert rows == [{7: 0.25, 9: 0.75}]


# --------------------------------------------------------------------------------------- facts


def test_a_session_says_of_its_model_what_onnxruntime_says(tmp_path: Path) -> None:
    path = saved(
        tmp_path,
        '<ir_version: 8, opset_import: ["" : 17], producer_name: "us", domain: "d", '
        'model_version: 3, doc_string: "words", metadata_props: ["k": "v"]>\n'
        "named (float[batch, 3] x, int64[?] i) => (float[batch, 3] y, bool[?] b) "
        "{ y = Relu (x)\n b = Cast <to = 9> (i) }",
    )
    own, theirs = ort.InferenceSession(path), onnxruntime.InferenceSession(path)
    for method in ("get_inputs", "get_outputs", "get_overridable_initializers"):
        found, expected = getattr(own, method)(), getattr(theirs, method)()
        assert list(map(str, found)) == list(map(str, expected))
    for field in (
        "producer_name", "graph_name", "domain", "description", "version", "custom_metadata_map"
    ):  # fmt: skip
        assert getattr(own.get_modelmeta(), field) == getattr(theirs.get_modelmeta(), field)
    assert own.get_providers() == ["CPUExecutionProvider"]
    assert own.get_provider_options() == {"CPUExecutionProvider": {}}


def test_a_provider_that_is_not_there_is_a_warning_and_the_next(path: str) -> None:
    wanted = ["DmlExecutionProvider", "CPUExecutionProvider"]
    with pytest.warns(UserWarning, match="'DmlExecutionProvider' is not in available") as warned:
        session = ort.InferenceSession(path, providers=wanted)
    assert [warning.filename for warning in warned] == [__file__]
    with pytest.warns(UserWarning, match="'DmlExecutionProvider' is not in available") as warned:
        session.set_providers(wanted)
    assert [warning.filename for warning in warned] == [__file__]
    assert session.get_providers() == ["CPUExecutionProvider"]
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], 2 * X + 1)


def test_an_unknown_provider_is_an_error_but_a_new_session_falls_back(
    path: str, session: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        pytest.warns(UserWarning, match="NoProvider"),
        pytest.raises(RuntimeError, match="Unknown Provider Type: NoProvider"),
    ):
        session.set_providers(["NoProvider"])
    with pytest.warns(UserWarning, match="NoProvider"):
        fallen = ort.InferenceSession(path, providers=["NoProvider"])
    assert fallen.get_providers() == ["CPUExecutionProvider"]
    assert "EP Error Unknown Provider Type: NoProvider" in capsys.readouterr().out
    with (
        pytest.warns(UserWarning, match="NoProvider"),
        pytest.raises(RuntimeError, match="Unknown Provider"),
    ):
        ort.InferenceSession(path, providers=["NoProvider"], enable_fallback=0)


def test_a_session_is_built_anew_for_other_providers(session: Any) -> None:
    session.set_providers(["CPUExecutionProvider"], [{"rewrites": "off"}])
    assert session.get_provider_options() == {"CPUExecutionProvider": {"rewrites": "off"}}
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], 2 * X + 1)


def test_an_option_of_a_provider_that_means_nothing_is_named(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    ort.InferenceSession(path, providers=[("CPUExecutionProvider", {"arena": 1})])
    assert "CPUExecutionProvider: option arena = '1' has no meaning here" in caplog.text


def test_an_option_that_programs_give_onnxruntime_in_vain_is_no_warning(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    given = [("CPUExecutionProvider", {"arena_extend_strategy": "kSameAsRequested"})]
    for module in (onnxruntime, ort):
        assert module.InferenceSession(path, providers=given).get_providers() == [given[0][0]]
    assert caplog.text == ""


def test_what_else_onnxruntimes_session_has_is_there(session: Any) -> None:
    assert len(session.get_input_memory_infos()) == 1
    assert session.get_tuning_results() == []
    with pytest.raises(AttributeError, match="no_such_method"):
        session.no_such_method  # noqa: B018


def test_a_subclass_of_the_session_works(path: str) -> None:
    class Mine(ort.InferenceSession):
        def __init__(self, model: str) -> None:
            super().__init__(model)
            self.model = model

    np.testing.assert_array_equal(Mine(path).run(None, {"x": X})[0], 2 * X + 1)


# ------------------------------------------------------------------------------------- options


def options(**fields: Any) -> Any:
    made = ort.SessionOptions()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize("made", [ort.SessionOptions(), _Fields()])
def test_a_misspelt_option_is_an_error_as_onnxruntimes(made: Any) -> None:
    with pytest.raises(AttributeError, match="intra_op_threads"):
        made.intra_op_threads = 2


@pytest.mark.parametrize(
    "fields",
    [
        {"intra_op_num_threads": 1},
        {"inter_op_num_threads": 2, "execution_mode": ort.ExecutionMode.ORT_PARALLEL},
        {"execution_mode": ort.ExecutionMode.ORT_PARALLEL},
        {"execution_order": ort.ExecutionOrder.PRIORITY_BASED},
        *({"graph_optimization_level": level} for level in (
            ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
            ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
            ort.GraphOptimizationLevel.ORT_ENABLE_LAYOUT)),
        {"enable_cpu_mem_arena": False},
        {"enable_mem_pattern": False},
        {"enable_mem_reuse": False},
        {"use_deterministic_compute": True},
        {"log_severity_level": 3, "log_verbosity_level": 1, "logid": "mine"},
    ],
    ids=str,
)  # fmt: skip
def test_a_field_is_the_runtimes_session_s_too(fields: dict[str, Any], path: str) -> None:
    session = ort.InferenceSession(path, options(**fields))
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], 2 * X + 1)
    used = session._sess.session_options
    for name, value in fields.items():
        assert getattr(used, name) == value
        assert getattr(session.get_session_options(), name) == value


def test_entries_reach_the_runtimes_session(path: str) -> None:
    made = options()
    made.add_session_config_entry("session.disable_prepacking", "1")
    used = ort.InferenceSession(path, made)._sess.session_options
    assert used.get_session_config_entry("session.disable_prepacking") == "1"
    assert made.get_session_config_entry("session.disable_prepacking") == "1"


def test_an_entry_that_nothing_reads_is_no_error(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = options()
    for key in ("session.no_such_entry", "ep.nowhere.at_all"):
        made.add_session_config_entry(key, "1")
    np.testing.assert_array_equal(
        ort.InferenceSession(path, made).run(None, {"x": X})[0], 2 * X + 1
    )
    for key in ("session.no_such_entry", "ep.nowhere.at_all"):
        assert f"{key} = '1' has no effect" in caplog.text


def test_open_sizes_are_fixed_by_name_and_by_denotation(path: str, tmp_path: Path) -> None:
    made = options()
    made.add_free_dimension_override_by_name("batch", 2)
    assert ort.InferenceSession(path, made).get_inputs()[0].shape == [2, 3]
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    onnx.save(model, tmp_path / "denoted.onnx")
    made = options()
    made.add_free_dimension_override_by_denotation("DATA_BATCH", 5)
    session = ort.InferenceSession(tmp_path / "denoted.onnx", made)
    assert session.get_inputs()[0].shape == [5, 3]


def test_initializers_of_the_options_take_the_place_of_the_files(path: str) -> None:
    made = options()
    made.add_initializer("two", ort.OrtValue.ortvalue_from_numpy(np.array([5], np.float32)))
    np.testing.assert_array_equal(
        ort.InferenceSession(path, made).run(None, {"x": X})[0], 5 * X + 1
    )
    made.add_initializer("three", ort.OrtValue.ortvalue_from_numpy(np.array([5], np.float32)))
    state = ort.capi.onnxruntime_pybind11_state
    with pytest.raises((state.InvalidGraph, state.InvalidArgument), match="three"):
        ort.InferenceSession(path, made)


def test_external_data_comes_from_the_options(path: str, tmp_path: Path) -> None:
    model = onnx.load(path)
    onnx.save(
        model, tmp_path / "apart.onnx", save_as_external_data=True, size_threshold=0,
        location="apart.bin",
    )  # fmt: skip
    (tmp_path / "apart.bin").rename(tmp_path / "elsewhere")
    content = (tmp_path / "elsewhere").read_bytes()
    made = options()
    made.add_external_initializers_from_files_in_memory(["apart.bin"], [content], [len(content)])
    session = ort.InferenceSession(tmp_path / "apart.onnx", made)
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], 2 * X + 1)
    made = options()
    values = [ort.OrtValue.ortvalue_from_numpy(np.array([i], np.float32)) for i in (4, 1)]
    made.add_external_initializers(["two", "one"], values)
    session = ort.InferenceSession(tmp_path / "apart.onnx", made)
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], 4 * X + 1)


def test_the_optimised_model_is_written(path: str, tmp_path: Path) -> None:
    target = tmp_path / "optimised.onnx"
    session = ort.InferenceSession(path, options(optimized_model_filepath=str(target)))
    [again] = onnxruntime.InferenceSession(target).run(None, {"x": X})
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], again)


def test_a_profile_is_onnxruntimes_own_file(path: str, tmp_path: Path) -> None:
    made = options(enable_profiling=True, profile_file_prefix=str(tmp_path / "mine"))
    session = ort.InferenceSession(path, made)
    assert session.get_profiling_start_time_ns() > 0
    for _ in range(4):
        session.run(None, {"x": X})
    written = Path(session.end_profiling())
    assert written.name.startswith("mine")
    events = json.loads(written.read_text())
    assert sum(event["name"] == "model_run" for event in events) == 4


def test_a_build_is_cancelled_by_its_options(path: str) -> None:
    made = options()
    made.set_load_cancellation_flag(True)
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.ModelLoadCanceled):
        ort.InferenceSession(path, made)
    made.set_load_cancellation_flag(False)
    ort.InferenceSession(path, made)


def test_options_may_be_in_the_file(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = onnx.load(path)
    config = {"session_options": {"intra_op_num_threads": 1, "enable_profiling": 0}}
    model.metadata_props.add(key="ort_config", value=json.dumps(config))
    assert ort.InferenceSession(path).get_session_options().intra_op_num_threads == 0
    monkeypatch.setenv("ORT_LOAD_CONFIG_FROM_MODEL", "1")
    session = ort.InferenceSession(model.SerializeToString())
    assert session.get_session_options().intra_op_num_threads == 1
    model.metadata_props[0].value = '{"session_options": {"threads": 1}}'
    with pytest.raises(RuntimeError, match="unknown option 'threads'; known: intra_op_num_thr"):
        ort.InferenceSession(model.SerializeToString(), enable_fallback=0)


def test_a_library_of_operators_that_is_not_there_is_refused(path: str) -> None:
    with pytest.raises(Exception, match=r"no_such_library\.so"):
        options().register_custom_ops_library("no_such_library.so")


def test_no_warning_comes_of_the_defaults(path: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ort.InferenceSession(path)
        ort.InferenceSession(path, ort.SessionOptions(), providers=["CPUExecutionProvider"])
