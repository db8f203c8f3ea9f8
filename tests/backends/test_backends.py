"""The resolver: six states, one record, and no backend that touches another."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import engine
from engine import backends
from engine.backends import BackendState, advice, doors, names
from engine.backends.install import pip_install
from engine.backends.isolation.probe import probe, probe_all
from engine_testing import models
from engine_testing.plugins import install

HOOKS = """
from engine.hookspecs import hookimpl
from engine.types import BackendInfo, Device, DeviceInfo, Devices

@hookimpl
def engine_backend():
    return BackendInfo(
        name={name!r}, version="1", device_types=({kind!r},), providers={providers!r}
    )

@hookimpl
def engine_devices():
    {devices}

@hookimpl
def engine_load(source): ...

@hookimpl
def engine_compile(loaded): ...

@hookimpl
def engine_predict(context, inputs): ...

"""
ONE = "return Devices((DeviceInfo(Device({kind!r}, 0), 'a device'),))"


def plugin(
    folder: Path,
    name: str,
    *,
    kind: str = "abacus",
    devices: str = ONE,
    providers: tuple[str, ...] = (),
    before: str = "",
    after: str = "",
) -> None:
    source = HOOKS.format(
        name=name, kind=kind, providers=providers, devices=devices.format(kind=kind)
    )
    install(folder, name, f"plugin_{name}", source=before + source + after)


def test_a_backend_that_finds_a_device_is_ready(plugin_folder: Path) -> None:
    plugin(plugin_folder, "well")
    found = backends.record("well")
    assert found.state is BackendState.READY
    assert found.info is not None
    assert found.info.device_types == ("abacus",)
    assert backends.open_backend("well").name == "well"


def test_a_name_that_nothing_offers_is_not_installed_and_says_what_is(null_backend: str) -> None:
    with pytest.raises(engine.BackendNotInstalled, match=r"'nowhere' is not installed.*null") as e:
        backends.open_backend("nowhere")
    assert e.value.name == "nowhere"
    assert null_backend in e.value.installed


def test_a_missing_official_backend_names_the_command_that_installs_it(monkeypatch) -> None:
    monkeypatch.setattr(doors, "entry_points", lambda prefix, warn: iter(()))
    with pytest.raises(engine.BackendNotInstalled, match=re.escape(pip_install("gpu-trt"))):
        backends.find_target("gpu")


def test_a_disabled_backend_is_refused_with_the_variable_that_disables_it(
    plugin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin(plugin_folder, "well")
    monkeypatch.setenv("ENGINE_DISABLED_BACKENDS", "other, well")
    assert backends.record("well").state is BackendState.DISABLED
    with pytest.raises(engine.BackendUnavailable, match="ENGINE_DISABLED_BACKENDS"):
        backends.open_backend("well")


def test_a_plugin_of_another_contract_is_incompatible_and_is_not_imported(plugin_folder) -> None:
    source, group = "raise SystemExit('imported')", "engine.backends.v2"
    install(plugin_folder, "later", "plugin_later", group=group, source=source)
    assert backends.record("later").state is BackendState.INCOMPATIBLE
    says = r"engine\.backends\.v2.*made for this core"
    with pytest.raises(engine.BackendIncompatible, match=says):
        backends.open_backend("later")
    assert "plugin_later" not in sys.modules


MANIFEST = """
@hookimpl
def engine_backend():
    return BackendInfo(**{{"name": "bad", "version": "1", "device_types": ("a",), **dict({})}})
"""
BROKEN = {
    "import no_such_vendor_library\n": "no_such_vendor_library",
    "raise OSError('libvendor.so.3: cannot open shared object file')\n": "libvendor",
    "raise SystemExit(3)\n": "SystemExit: 3",
    "1 / 0\n": "ZeroDivisionError",
    "@hookimpl\ndef engine_diagnose(nonsense): return ()\n": "nonsense",
    "del engine_compile\n": "engine_compile",
    MANIFEST.format("device_types=()"): "device_types is empty",
    MANIFEST.format("device_types=None"): "device_types is None",
    MANIFEST.format("providers=None"): "providers is None",
    MANIFEST.format("capabilities=None"): "capabilities is None",
    MANIFEST.format("completed_by=['cpu']"): "completed_by is ['cpu'], expected a tuple",
    MANIFEST.format("suffixes=None"): "suffixes is None",
    MANIFEST.format("suffixes={'.x': None}"): "expected a dict of str to str",
    MANIFEST.format("options=('a',)"): "options is ('a',), expected a dict of str",
    MANIFEST.format("options={'a': 1}"): "options is {'a': 1}, expected a dict of str",
    MANIFEST.format("name=None"): "name is None, expected a str",
    MANIFEST.format("version=1"): "version is 1, expected a str",
}


@pytest.mark.parametrize(("code", "said"), BROKEN.items(), ids=BROKEN.values())
def test_a_plugin_that_cannot_be_used_is_broken_and_says_why(plugin_folder, code, said) -> None:
    plugin(plugin_folder, "bad", after=code)
    found = backends.record("bad")
    assert found.state is BackendState.BROKEN
    assert said in found.reason
    with pytest.raises(engine.BackendUnavailable, match=r"'bad' is broken.*engine doctor bad"):
        backends.open_backend("bad")


def test_unknown_hooks_are_a_warning_and_part_of_the_record(plugin_folder: Path) -> None:
    plugin(plugin_folder, "newer", after="@hookimpl\ndef engine_predikt(context): return 1\n")
    found = backends.record("newer")
    assert found.state is BackendState.READY
    said = "unknown hook 'engine_predikt' is ignored; did you mean engine_predict?"
    assert found.warnings == (said,)


def test_a_backend_without_a_device_says_why_and_what_to_do(plugin_folder: Path) -> None:
    none = "return Devices(reason='no abacus is plugged in', fix='plug one in')"
    plugin(plugin_folder, "dry", devices=none)
    assert backends.record("dry").state is BackendState.NO_DEVICE
    with pytest.raises(engine.BackendUnavailable, match="no abacus is plugged in; plug one in"):
        backends.open_backend("dry")


@pytest.mark.parametrize(
    "place",
    [{"devices": "raise RuntimeError('driver says no')"}, {"devices": "import sys; sys.exit(1)"},
     {"before": "class Panic(BaseException): pass\nraise Panic('at the disco')\n"}],
)  # fmt: skip
def test_what_a_plugin_raises_breaks_it_alone(plugin_folder: Path, place: dict[str, str]) -> None:
    plugin(plugin_folder, "bad", **place)
    plugin(plugin_folder, "well")
    states = {name: backends.record(name).state for name in backends.known()}
    assert states["bad"] is BackendState.BROKEN
    assert states["well"] is BackendState.READY


def test_two_distributions_of_one_backend_name_are_refused(plugin_folder: Path) -> None:
    plugin(plugin_folder, "twin")
    install(plugin_folder, "twin", "plugin_twin", distribution="another-twin")
    assert "another-twin, engine-plugin-twin" in backends.record("twin").reason


def test_a_probe_that_crashes_takes_nothing_with_it(plugin_folder: Path) -> None:
    crashes = {
        "crashing": ("import os; os.kill(os.getpid(), 11)", "crashed with SIGSEGV"),
        "ending": ("import os; os._exit(7)", "ended with status 7"),
        "silent": ("import os; os._exit(0)", "ended without an answer"),
        "loud": ("print('x' * 100000); raise ValueError('loud')", "ValueError: loud"),
    }
    for name, (code, _) in crashes.items():
        plugin(plugin_folder, name, devices=code)
    plugin(plugin_folder, "well")
    found = {record.name: record for record in probe_all([*crashes, "well"])}
    for name, (_, said) in crashes.items():
        assert found[name].state is BackendState.BROKEN
        assert said in found[name].reason
        assert found[name].distribution == f"engine-plugin-{name}"
    assert found["well"] == backends.record("well")


def test_a_probe_that_hangs_is_ended_at_its_time_limit(plugin_folder: Path) -> None:
    plugin(plugin_folder, "hanging", devices="import time; time.sleep(600)")
    found = probe("hanging", time_limit_s=1.0)
    assert found.state is BackendState.BROKEN
    assert "did not answer within 1 s" in found.reason


@pytest.mark.parametrize("hook", ["load", "compile", "placement"])
def test_an_exception_that_no_hook_may_raise_is_the_backends_fault_in_one_line(
    null_backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    def fail(*arguments: object) -> None:
        raise KeyError("two\nlines")

    path = models.affine(tmp_path)
    backend = backends.open_backend(null_backend)
    if hook == "placement":
        monkeypatch.setattr("engine.reference.evaluator.EvaluatorExecutable.placement", fail)
    else:
        monkeypatch.setattr(backend, hook, fail)
    with pytest.raises(engine.BackendUnavailable, match=r"'null' is at fault.*KeyError") as caught:
        _ = engine.load(path, target=null_backend).placement
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_backend_disabled_after_it_was_opened_is_refused(null_backend, monkeypatch) -> None:
    backends.open_backend(null_backend)
    monkeypatch.setenv("ENGINE_DISABLED_BACKENDS", "null")
    with pytest.raises(engine.BackendUnavailable, match="disabled"):
        backends.open_backend(null_backend)


def test_a_device_that_is_not_there_is_refused_for_any_target(null_backend, tmp_path) -> None:
    with pytest.raises(engine.BackendUnavailable, match="null:7"):
        engine.load(models.affine(tmp_path), target=null_backend, device_id=7)


@pytest.mark.parametrize("content", [b"[a]\nno equals sign\n", b"\xff\xfe[a]\n"])
def test_damaged_metadata_of_some_package_hides_no_backend(
    plugin_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    plugin(plugin_folder, "well")
    monkeypatch.syspath_prepend(tmp_path / "damaged")
    broken = tmp_path / "damaged/somebody_else-1.0.dist-info"
    broken.mkdir(parents=True)
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: somebody-else\nVersion: 1.0\n")
    (broken / "entry_points.txt").write_bytes(content)
    bare = tmp_path / "damaged/bare-1.0.dist-info"  # a backend whose METADATA is missing
    bare.mkdir()
    (bare / "entry_points.txt").write_text("[engine.backends.v1]\nbare = plugin_well\n")
    assert {"well", "bare"} <= set(backends.known())
    assert backends.find_target("well").backend == "well"


def test_a_probe_that_leaves_a_process_behind_still_answers(plugin_folder: Path) -> None:
    leaving = "import subprocess; subprocess.Popen(['sleep', '40'], start_new_session=True)\n"
    plugin(plugin_folder, "leaving", before=leaving)
    begin = time.monotonic()
    assert probe("leaving").state is BackendState.READY
    assert time.monotonic() - begin < 35


def test_a_device_type_leads_to_the_one_backend_that_serves_it(plugin_folder: Path) -> None:
    plugin(plugin_folder, "beads", kind="abacus")
    target = backends.find_target("Abacus")
    assert (target.backend, target.device_type) == ("beads", "abacus")


def test_a_type_that_two_backends_serve_needs_a_provider(plugin_folder: Path) -> None:
    plugin(plugin_folder, "beads", providers=("wood",))
    plugin(plugin_folder, "stones", providers=("clay", "sand"))
    with pytest.raises(engine.BackendUnavailable, match="abacus:wood, abacus:clay, abacus:sand"):
        backends.find_target("abacus")
    assert backends.find_target("abacus:sand") == backends.Target("stones", "abacus", "sand")
    assert backends.find_target("abacus:beads").backend == "beads"


def test_a_provider_that_is_not_there_is_an_error_that_lists_those_that_are(plugin_folder) -> None:
    plugin(plugin_folder, "beads", providers=("wood", "glass"))
    for text in ("abacus:1", "beads:1"):
        with pytest.raises(engine.BackendUnavailable, match=r"provider '1'.*:wood, .*:glass"):
            backends.find_target(text)
    assert backends.find_target("beads:glass") == backends.Target("beads", "abacus", "glass")


def test_a_device_type_of_somebody_elses_backend_is_a_target(plugin_folder: Path) -> None:
    context = engine.Context()
    with pytest.raises(ValueError, match=r"but got npu.*; did you mean 'ascend'\?$"):
        context.target = ["npu"]
    plugin(plugin_folder, "chips", kind="npu")
    context.target = ["NPU"]
    assert backends.find_target("npu") == backends.Target("chips", "npu")
    with pytest.raises(ValueError, match="but got npu:ge"):
        context.target = ["npu:ge"]


CRASH = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)\n"
A_LIST = "write several targets as a list, ['gpu', 'cpu'], on a command line"


@pytest.mark.parametrize(
    ("text", "hint"),
    [("cpuu", "did you mean 'cpu'?"), ("CUDA:0", "did you mean 'gpu'?"),
     ("tensorrt", "did you mean 'gpu'?"), ("npu", "did you mean 'ascend'?"),
     ("nul", "did you mean 'null'?"), ("onnxruntime", "did you mean 'cpu'?"),
     ("gpu;cpu", A_LIST), ("gpu, cpu", A_LIST)],
)  # fmt: skip
def test_a_target_that_is_none_gets_a_hint(null_backend: str, text: str, hint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(hint)):
        engine.Context().target = [text]


def test_a_target_that_is_none_gets_a_hint_where_it_is_looked_for(null_backend: str) -> None:
    with pytest.raises(engine.BackendNotInstalled, match=r"did you mean 'gpu'\?"):
        backends.find_target("cuda")


def test_a_type_that_a_backend_announces_and_does_not_have_keeps_the_fix_for_it(
    plugin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(names.OFFICIAL, "tpu", "tpu_own")
    monkeypatch.setitem(names.EXTRAS, "tpu", "tpu")
    only = "return Devices((DeviceInfo(Device('cpu', 0), 'the host'),))"
    plugin(plugin_folder, "both", devices=only)
    source = (plugin_folder / "plugin_both.py").read_text()
    (plugin_folder / "plugin_both.py").write_text(source.replace("('abacus',)", "('cpu', 'tpu')"))
    with pytest.raises(engine.BackendNotInstalled) as caught:
        backends.find_target("tpu")
    assert str(caught.value) == (
        "backend 'tpu_own' is not installed: target 'tpu': no installed distribution offers it "
        f"(installed: {', '.join(backends.installed())}); backend 'both' announces 'tpu' and has "
        'no such device (it has: cpu:0); run: pip install "inference-engine[tpu]"'
    )
    plugin(plugin_folder, "second", kind="tpu")
    assert backends.find_target("tpu").backend == "second"
    assert backends.find_target("both") == backends.Target("both", "cpu")


def test_a_name_in_the_variable_that_is_no_backend_is_said_once(
    plugin_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plugin(plugin_folder, "well")
    monkeypatch.setattr(doors, "_warned", set())
    advice.disabled.cache_clear()
    monkeypatch.setenv("ENGINE_DISABLED_BACKENDS", "wel;other well")
    for _ in range(3):
        assert backends.record("well").state is BackendState.DISABLED
    said = [record.message for record in caplog.records]
    assert len(said) == 2
    assert said[0].startswith("ENGINE_DISABLED_BACKENDS names 'wel', and no backend of that name")
    assert said[0].endswith("; did you mean 'well'?")


def test_in_a_checkout_the_fix_is_a_command_that_works_there(tmp_path: Path) -> None:
    assert pip_install("gpu-trt", tmp_path) == 'pip install "inference-engine[gpu-trt]"'
    (tmp_path / "plugins" / "gpu_trt").mkdir(parents=True)
    (tmp_path / "plugins" / "gpu_trt" / "pyproject.toml").touch()
    command = shlex.split(pip_install("gpu-trt", tmp_path))
    assert command[:3] == ["pip", "install", "-e"]
    assert os.path.samefile(command[3].removesuffix("[runtime]"), tmp_path / "plugins" / "gpu_trt")
    assert pip_install("quantize", tmp_path) == 'pip install "inference-engine[quantize]"'


@pytest.mark.parametrize("before", ["1 / 0\n", CRASH], ids=["it raises", "it crashes"])
def test_a_broken_backend_does_not_hide_another_of_the_same_type(plugin_folder, before) -> None:
    plugin(plugin_folder, "bad", before=before)
    plugin(plugin_folder, "beads")
    assert backends.find_target("abacus") == backends.Target("beads", "abacus")


def test_a_backends_own_name_imports_no_other(plugin_folder: Path) -> None:
    plugin(plugin_folder, "beads", providers=("glass",))
    plugin(plugin_folder, "crashing", before=CRASH)
    for target in ("beads", "beads:glass", "abacus:beads"):
        assert backends.find_target(target).backend == "beads"


def test_this_projects_own_backend_of_a_type_goes_first_and_imports_no_other(
    plugin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(backends.OFFICIAL, "abacus", "beads")
    plugin(plugin_folder, "beads", providers=("wood", "glass"))
    plugin(plugin_folder, "crashing", before=CRASH)
    plugin(plugin_folder, "stones", providers=("clay",))
    assert backends.find_target("abacus") == backends.Target("beads", "abacus")
    assert backends.find_target("abacus:glass") == backends.Target("beads", "abacus", "glass")
    assert backends.find_target("abacus:stones") == backends.Target("stones", "abacus")
    assert backends.find_target("abacus:clay") == backends.Target("stones", "abacus", "clay")


def test_another_backend_serves_a_type_whose_own_is_broken_or_disabled(
    plugin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(backends.OFFICIAL, "abacus", "beads")
    plugin(plugin_folder, "beads", before="1 / 0\n")
    with pytest.raises(engine.BackendUnavailable, match=r"'beads' is broken.*ZeroDivisionError"):
        backends.find_target("abacus")
    plugin(plugin_folder, "stones")
    assert backends.find_target("abacus").backend == "stones"
    monkeypatch.setenv("ENGINE_DISABLED_BACKENDS", "stones")
    with pytest.raises(engine.BackendUnavailable, match=r"'beads' is broken"):
        backends.find_target("abacus")


def test_a_type_that_nobody_serves_is_told_with_who_could_not_be_asked(plugin_folder) -> None:
    plugin(plugin_folder, "crashing", before=CRASH)
    text = r"not installed.* not known of 'crashing' its probe crashed with SIGSEGV"
    with pytest.raises(engine.BackendNotInstalled, match=text):
        backends.find_target("abacus")


def test_a_target_that_cannot_be_had_is_never_replaced_silently(
    null_backend: str, plugin_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plugin(plugin_folder, "dry", devices="return Devices(reason='no abacus', fix='buy one')")
    path = models.affine(tmp_path)
    with pytest.raises(engine.BackendUnavailable, match="no abacus; buy one"):
        engine.load(path, target="dry")
    with engine.load(path, target=["dry", null_backend]) as model:
        assert {place.backend for place in model.placement} == {"null"}
        assert all("no abacus; buy one" in place.reason for place in model.placement)
    assert "'dry' passed over" in caplog.text


def test_an_error_of_load_still_knows_what_is_installed(null_backend: str, tmp_path: Path) -> None:
    path = models.affine(tmp_path)
    for target in ("nowhere_else", ["nowhere_else", "nor_there"]):
        context = engine.Context()
        vars(context)["target"] = [target] if isinstance(target, str) else target
        with pytest.raises(engine.BackendNotInstalled) as caught:
            engine.Model().build_from_file(str(path), engine.ModelType.MINDIR, context)
        assert null_backend in caught.value.installed


def test_all_targets_failing_names_the_reason_of_each(plugin_folder: Path, tmp_path: Path) -> None:
    plugin(plugin_folder, "dry", devices="return Devices(reason='no abacus')")
    plugin(plugin_folder, "bad", before="1 / 0\n")
    with pytest.raises(engine.BackendUnavailable, match=r"no abacus.*ZeroDivisionError"):
        engine.load(models.affine(tmp_path), target=["dry", "bad"])


def test_engine_target_overrides_the_script_and_says_so(
    null_backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr("engine.backends.doors._warned", set())
    monkeypatch.setenv("ENGINE_TARGET", "null")
    path = models.affine(tmp_path)
    for _ in range(2):
        with engine.load(path, target="gpu") as model:
            assert all("ENGINE_TARGET=null" in place.reason for place in model.placement)
    said = "ENGINE_TARGET=null overrides the target ['gpu']"
    assert [record.message for record in caplog.records].count(said) == 1


def test_a_wrong_engine_target_is_named_as_the_cause(null_backend, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ENGINE_TARGET", "tpu")
    with pytest.raises(engine.BackendNotInstalled, match=r"ENGINE_TARGET=tpu instead.*'null'"):
        engine.load(models.affine(tmp_path), target=null_backend)


def test_importing_the_package_loads_no_backend_and_no_runtime() -> None:
    code = (
        "import sys, engine\n"
        "heavy = {'onnxruntime', 'onnx', 'torch', 'engine_cpu'}\n"
        # not heavy, but a tenth of numpy's own import; they come with the first model
        "heavy |= {'dataclasses', 'engine.types', 'pluggy', 'importlib.metadata'}\n"
        "heavy |= {'concurrent.futures'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
