"""Configuration: what is read of files and dicts, and what is said of what nobody reads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import engine
from engine import Context, Model, ModelType
from engine.config.reader import configuration, read_config
from engine.config.schema import KNOWN, unused_settings
from engine.options import is_declared
from engine_testing import models
from engine_testing.plugins import install

Config = dict[str, dict[str, str]]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the messages logged since the last look, as of a process that has said nothing yet."""
    monkeypatch.setattr("engine.backends.doors._warned", set())

    class Said(list[str]):
        def __iter__(self) -> Any:
            texts = [record.getMessage() for record in caplog.records]
            caplog.clear()
            return iter(texts)

    return Said()


# ------------------------------------------------------------------------------------- the file


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("[a]\nkey=value\n", {"a": {"key": "value"}}),
        ("  [ a ]  \n\tkey =  value  \n", {"a": {"key": "value"}}),
        ("[a]\nkey = 'va lue'\nother=\"x\"\n", {"a": {"key": "va lue", "other": "x"}}),
        ("['a']\n'key' = value\n", {"a": {"key": "value"}}),
        ("[a]\nkey='it's'\nother='x\" \n", {"a": {"key": "it's", "other": "'x\""}}),
        ("[a]\nkey=b=c==\n", {"a": {"key": "b=c=="}}),
        ("[a]\nshape = x:[1,3,-1];y:[2]\n", {"a": {"shape": "x:[1,3,-1];y:[2]"}}),
        ("[a]\nkey=\n", {"a": {"key": ""}}),
        ("# x\n[a]\n#key=1\n; key = 2\nkey=#3\n", {"a": {"key": "#3"}}),
        ("[a] # why\nkey=value\n[b];\nk=v\n", {"a": {"key": "value"}, "b": {"k": "v"}}),
        ("[a]\n}\n==\nk\nkey=value\n", {"a": {"key": "value"}}),
        ("[a]\r\nkey=value\r\n[b]\rk=v\r", {"a": {"key": "value"}, "b": {"k": "v"}}),
        ("\ufeff[a]\nkey=value", {"a": {"key": "value"}}),
        ("[a]\nk=v\n[b]\nk=v\n[a]\nl=w\n", {"a": {"k": "v", "l": "w"}, "b": {"k": "v"}}),
        ("[a]\nkey=a\u2028b\x0bc\n", {"a": {"key": "a\u2028b\x0bc"}}),
        ("[empty]\n", {"empty": {}}),
    ],
)
def test_a_file_is_read_leniently(tmp_path: Path, text: str, expected: Config) -> None:
    file = tmp_path / "config.ini"
    file.write_bytes(text.encode())
    assert read_config(str(file)) == expected


def test_of_what_comes_twice_the_first_is_used_and_that_is_said(
    tmp_path: Path, said: list[str]
) -> None:
    file = tmp_path / "config.ini"
    file.write_text("[a]\nk=1\nsame=x\n[b]\nk=3\n[a]\nk=2\nsame='x'\n")
    assert read_config(str(file)) == {"a": {"k": "1", "same": "x"}, "b": {"k": "3"}}
    [text] = said
    assert (
        text == f"{file}, line 7: [a] k comes a second time; its first value '1' is used, not '2'"
    )


def test_comments_and_paths_in_other_encodings_do_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "config.ini"
    folder = os.fsencode(tmp_path) + b"/\xff"
    file.write_bytes("# 配置\n[a]\n".encode("gb18030") + b"path = " + folder + b"\n")
    os.mkdir(folder)
    path = read_config(str(file))["a"]["path"]
    assert os.path.isdir(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"key=value\n", r"line 1: expected '\[section\]' or 'key=value' below one, got 'key=v"),
        (b"[a]\n\nno equals sign\n", "line 3: .* got 'no equals sign'"),
        (b"[a]\n=value\n", "line 2: .* got '=value'"),
        (b"[abc\nkey=value\n", "line 1: .* got '\\[abc'"),
        (b"[ ]\nkey=value\n", "line 1: "),
        ("[a]\nkey=value\n".encode("utf-16"), "it is not text in UTF-8; save it as that"),
        (b"\x7fELF\0\0\0", "it is not text in UTF-8"),
        (b"#" * (16 * 2**20 + 1), "it is longer than 16777216 bytes"),
    ],
)
def test_a_broken_file_is_refused_by_line(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "config.ini"
    file.write_bytes(content)
    with pytest.raises(
        RuntimeError, match=rf"^load configuration failed! Error is .*{reason}"
    ) as e:
        read_config(str(file))
    assert isinstance(e.value, engine.ModelError)
    assert e.value.path == str(file)
    assert "\n" not in str(e.value)


def test_a_folder_or_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(RuntimeError, match="it is not a regular file"):
            read_config(str(path))


# ------------------------------------------------------------------------------------- the dict


def test_the_dict_wins_over_the_file_key_by_key_and_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "config.ini"
    file.write_text("[a]\nk=file\nl=file\n[b]\nk=file\n")
    over = {"a": {"k": "dict"}, "c": {"k": " 'as it is' "}}
    found = configuration(str(file), over, "build_from_file")
    assert found == {
        "a": {"k": "dict", "l": "file"},
        "b": {"k": "file"},
        "c": {"k": " 'as it is' "},
    }
    found["a"]["k"] = "changed"
    assert over == {"a": {"k": "dict"}, "c": {"k": " 'as it is' "}}


@pytest.mark.parametrize("over", [{"": {"k": "v"}}, {"a": {" ": "v"}}])
def test_a_name_must_not_be_empty(over: Config) -> None:
    with pytest.raises(RuntimeError, match=r"^update configuration failed!.* need a name"):
        configuration("", over, "build_from_file")


@pytest.mark.parametrize("value", [1, 1.5, True, None, b"1", ["1"]])
def test_a_value_that_is_no_text_is_a_type_error(value: object) -> None:
    with pytest.raises(TypeError, match=r"^config_dict_value_value must be str, but got <class"):
        configuration("", {"a": {"k": value}}, "build_from_file")


def test_file_and_dict_reach_the_backend(tmp_path: Path, null_context: Context) -> None:
    file = tmp_path / "config.ini"
    file.write_text("# a comment\n[null_context]\nunsupported_ops = 'Add'\n")
    path = str(models.affine(tmp_path))
    with pytest.raises(engine.ModelError, match="cannot run Add 'shift'"):
        Model().build_from_file(path, ModelType.MINDIR, null_context, str(file))
    over = {"null_context": {"unsupported_ops": ""}}
    Model().build_from_file(path, ModelType.MINDIR, null_context, str(file), over)


# --------------------------------------------------------------------------- what nobody reads


def test_an_unknown_key_is_said_once_with_the_nearest_and_the_model_is_built(
    tmp_path: Path, null_backend: str, said: list[str]
) -> None:
    path = models.affine(tmp_path)
    config = {"null_context": {"delay": "5", "device_id": "0", "provider": "reference"}}
    for _ in range(2):
        assert engine.load(path, target=null_backend, config=config)
    assert list(said) == [
        "configuration key [null_context] delay is unknown and not read; did you mean 'delay_s'?"
    ]


def test_a_backend_that_declares_no_options_gets_all_of_its_section(
    tmp_path: Path, plugin_folder: Path, said: list[str]
) -> None:
    source = """
from dataclasses import replace
from engine.hookspecs import hookimpl
from engine_testing import null_device as null
from engine_testing.null_device import engine_compile, engine_devices, engine_load, engine_predict

@hookimpl
def engine_backend():
    return replace(null.engine_backend(), name="quiet", options={})
"""
    install(plugin_folder, "quiet", "quiet_plugin", source=source)
    with pytest.raises(ValueError, match="unknown option 'delay'; did you mean 'delay_s'"):
        engine.load(
            models.affine(tmp_path), target="quiet", config={"quiet_context": {"delay": "5"}}
        )
    assert list(said) == []


def told(
    config: Mapping[str, Mapping[str, str]],
    options: tuple[str, ...] = ("tf32", "raw.*", "input_shape"),
    backend: str = "gpu_trt",
    read: tuple[str, ...] = ("gpu_context", "gpu_trt_context"),
) -> list[str]:
    declared = dict.fromkeys(options, "meaning")
    found = unused_settings(config, backend, read, declared, lambda: ("cpu", "ascend", "mine"))
    return [unused.text for unused in found]


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"gpu_context": {"TF_32": "1"}}, "key [gpu_context] TF_32 .*; did you mean 'tf32'?"),
        ({"gpu_trt_context": {"zzzzz": ""}}, "zzzzz .*; known: tf32, raw.*, input_shape"),
        ({"gpu_context": {"devise_id": "1"}}, "; did you mean 'device_id'?"),
        (
            {"gpu_context": {"serialize_path": "/x"}},
            "key [gpu_context] serialize_path has no effect with backend 'gpu_trt'",
        ),
        ({"gpu_context": {"serialise_path": ""}}, "; did you mean 'serialize_path'?"),
        ({"gpu_contxt": {"tf32": "1"}}, "section [gpu_contxt] .*; did you mean [gpu_context]?"),
        ({"Ascend_Context": {}}, "; did you mean [ascend_context]?"),
        ({"min_context": {}}, "; did you mean [mine_context]?"),
        ({"42": {}}, "not read; 'gpu_trt' reads [gpu_context], [gpu_trt_context]"),
        (
            {"ascend_context": {"rank_tabel_file": ""}},
            "key [ascend_context] rank_tabel_file .*; did you mean 'rank_table_file'?",
        ),
        (
            {"model_file": {"path": ""}},
            "key [model_file] path is unknown and not read; known: mindir_path",
        ),
    ],
)
def test_what_is_unknown_is_told_with_what_was_meant(config: Config, text: str) -> None:
    [line] = told(config)
    assert line.startswith("configuration ")
    for part in text.split(".*"):
        assert part in line


@pytest.mark.parametrize(
    "config",
    [
        {"gpu_context": {"tf32": "1", "provider": "x", "device_id": "1", "raw.anything": "1"}},
        {"cpu_context": {"spin_us": "1", "whatever": "1"}, "mine_context": {"own": "1"}},
        {"ascend_context": {"soc_version": "Ascend310", "provider": "ge", "device_id": "1"}},
        {"execution_plan": {"Conv_1": "data_type:float16"}, "ge_global_options": {"ge.x": "1"}},
        {"shared_thread_pool": {"enable_shared_thread_pool": "true"}},
    ],
)
def test_what_is_known_or_may_be_another_backends_own_is_not_told(config: Config) -> None:
    assert told(config) == []


@pytest.mark.parametrize("section", ["ascend_context", "ascend_ge_context"])
@pytest.mark.parametrize("options", [("soc_version",), ()])
def test_a_key_that_nothing_serves_yet_is_told_once(section: str, options: tuple[str, ...]) -> None:
    read = ("ascend_context", "ascend_ge_context")
    lines = told({section: {"model_cache_mode": "1"}}, options, "ascend_ge", read)
    assert lines == [f"configuration key [{section}] model_cache_mode has no effect yet"]


@pytest.mark.parametrize("section", KNOWN)
def test_mindspore_lites_own_keys_are_silent_for_other_targets(section: str) -> None:
    keys = {key.replace("*", "anything"): "1" for key in KNOWN[section]}
    assert keys
    assert told({section: keys}, backend="cpu", read=("cpu_context",)) == []


def test_the_table_has_the_sections_that_mindspore_lite_reads() -> None:
    assert {"provider", "rank_table_file", "variable_weights_file"} <= set(KNOWN["ascend_context"])
    assert {"opt_dims", "dump_dir"} <= set(KNOWN["gpu_context"])
    for section in ("acl_init_options", "ge_session_options", "execution_plan", "common_context",
                    "ms_cache", "transformer_context", "model_file", "weight",
                    "aoe_tuning_options", "inner_common"):  # fmt: skip
        assert section in KNOWN


def test_a_star_stands_for_all_that_begin_so() -> None:
    keys = ("session.x", "session.", "session", "a", "A")
    declared = [key for key in keys if is_declared(key, ("a", "session.*"))]
    assert declared == ["session.x", "session.", "a"]


def test_two_tunings_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "a.ini"
    path.write_text("[tuned]\nmodel=1\n[cpu_context]\narithmetic=bfloat16\n")
    both = {"tuned": {"model": "1"}}
    assert configuration(str(path), both, "load")["tuned"]["model"] == "1"
    with pytest.raises(
        engine.ModelError, match=r"a.ini and the dict each have a section \[tuned\]"
    ):
        configuration(str(path), {"tuned": {"model": "2"}}, "load")
