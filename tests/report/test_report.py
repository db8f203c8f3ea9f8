"""Looking at models and machines: summaries as text and HTML, typed results of the functions."""

from __future__ import annotations

import pydoc
import subprocess
import sys
from collections import Counter
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest

import engine
from engine import Model
from engine.converter.job import Report
from engine.report.diagnosis import Finding, Status
from engine.report.profiling import Kernel, Profile
from engine.report.summary import ModelSummary
from engine.types import DType, NodeState, Placement, TensorSpec
from engine_testing import models

pytestmark = pytest.mark.usefixtures("null_backend")


def tree(html: str) -> ElementTree.Element:
    """The HTML, which is XML too: raises for a tag that is not closed or text not escaped."""
    return ElementTree.fromstring(html)


def placement(count: int, fallbacks: set[int]) -> tuple[Placement, ...]:
    """Nodes on a GPU, those in `fallbacks` on the CPU."""
    first, second = ("gpu_trt", "gpu:0"), ("cpu", "cpu:0")
    places = [second if index in fallbacks else first for index in range(count)]
    return tuple(
        Placement(index, f"n{index}", "Op", backend, device, "p", "why")
        for index, (backend, device) in enumerate(places)
    )


def test_a_summary_says_what_the_file_holds_and_where_it_runs(affine: Model) -> None:
    found = affine.summary()
    assert [(op.name, op.count) for op in found.operators] == [("Add", 1), ("Mul", 1)]
    assert (found.node_count, found.parameter_count, found.parameter_bytes) == (2, 2, 8)
    assert repr(affine.inputs) == "(x: float32[batch, 3])"
    assert (found.inputs, found.outputs) == (affine.inputs, affine.outputs)
    [group] = found.placed
    assert (group.device, group.backend, group.count) == ("null:0", "null", 2)
    assert not group.is_fallback
    assert found.size_bytes == Path(affine.model_path_).stat().st_size
    text = str(found)
    assert "graph       affine, 2 nodes" in text
    for part in ("input   x  float32[batch, 3]", "null:0  null", "1  Mul"):
        assert part in text, text
    with pytest.raises(FrozenInstanceError):
        found.name = "x"  # type: ignore[misc]


def test_inspect_gives_the_same_of_the_file_alone(affine: Model) -> None:
    found, built = engine.inspect(affine.model_path_), affine.summary()
    assert found == replace(built, backend="", placement=None, memory=None)
    assert engine.inspect(affine.model_path_, "null") == built
    with pytest.raises(engine.ModelError, match=r"engine\.inspect failed, there is no file"):
        engine.inspect("absent.onnx")


def test_inspect_takes_a_model_as_load_does(tmp_path: Path) -> None:
    path = models.affine(tmp_path)
    wanted = engine.inspect(path)
    assert engine.inspect(tmp_path) == wanted  # the folder of the one model
    in_memory = replace(wanted, model="", size_bytes=None)
    with path.open("rb") as file:
        for model in (path.read_bytes(), file, onnx.load(path)):
            assert engine.inspect(model) == in_memory
    assert engine.inspect(path.read_bytes(), "null").backend == "null"
    with pytest.raises(TypeError, match="model must be a path, bytes, an open binary file or"):
        engine.inspect(5)  # type: ignore[arg-type]


def test_encrypted_bytes_show_what_their_file_shows(tmp_path: Path) -> None:
    from engine.formats.encryption import encrypt

    key = b"0123456789abcdef"
    sealed = encrypt(models.affine(tmp_path).read_bytes(), key)
    assert engine.inspect(sealed).encryption == "AES-GCM"
    assert engine.inspect(sealed, dec_key=key).node_count == 2


def test_a_prompt_shows_results_as_text(affine: Model, tmp_path: Path) -> None:
    path = models.affine(tmp_path)
    results = (
        affine.summary(),
        engine.inspect(path),
        engine.compare(path, targets=("null", "null")),
        engine.bench(affine, duration_s=0.01, warmup_s=0),
        engine.doctor("null"),
    )
    for result in results:
        assert repr(result) == str(result)


def test_names_from_a_model_do_not_drive_the_terminal(tmp_path: Path) -> None:
    proto = onnx.load(models.affine(tmp_path))
    proto.graph.input[0].name = proto.graph.node[0].input[0] = "x\x1b[31m"
    with engine.load(proto, "null") as model:
        assert repr(model.inputs) == "(x\\x1b[31m: float32[batch, 3])"


def test_help_shows_the_function_and_its_use() -> None:
    text = pydoc.plain(pydoc.render_doc(engine.backends))
    assert "engine.backends() returns the record of each backend" in text.replace("`", "")
    assert "backends(time_limit_s: 'float | None' = None)" in text


def test_a_model_from_memory_has_a_summary(tmp_path: Path) -> None:
    with engine.load(models.affine(tmp_path).read_bytes(), target="null") as model:
        assert (model.summary().model, model.summary().size_bytes) == ("", None)
        assert "model from memory" in model._repr_html_()


def test_html_shows_names_as_text_and_runs_nothing(tmp_path: Path) -> None:
    proto = onnx.load(models.affine(tmp_path))
    evil = "<script>alert('x')</script>\x1b[31m&"
    proto.graph.name = proto.producer_name = proto.graph.node[0].name = evil
    onnx.helper.set_model_props(proto, {evil: evil})
    with engine.load(proto, target="null") as model:
        html = model._repr_html_()
    tree(html)
    assert "<script" not in html
    assert "\x1b" not in html
    assert "&lt;script&gt;" in html


def test_a_notebook_shows_what_runs_where_and_why() -> None:
    found = ModelSummary("m.onnx", "onnx", backend="gpu_trt", placement=placement(7, {2, 5}))
    rows = [[cell.text for cell in row] for row in tree(found._repr_html_()).iter("tr")]
    assert ["gpu:0", "gpu_trt", "p", "5", "why"] in rows
    assert ["cpu:0", "cpu", "p", "2", "fallback: why"] in rows


def test_fused_and_folded_nodes_are_a_line_each_not_one_a_node() -> None:
    fused = tuple(
        replace(node, reason=f"fused into {node.index}", state=NodeState.FUSED)
        for node in placement(20, set())
    )
    [group] = ModelSummary("m", "onnx", backend="gpu_trt", placement=fused).placed
    assert (group.count, group.reason) == (20, "computed by the kernel of another node")


def test_a_model_that_is_not_there_shows_why_in_a_notebook(affine: Model) -> None:
    assert "not built" in Model()._repr_html_()
    affine.close()
    assert tree(affine._repr_html_()).text == repr(affine)


def test_bench_measures_a_model_and_a_file(affine: Model) -> None:
    result = engine.bench(affine, [np.ones((2, 3), np.float32)], runs=20, warmup_s=0, clients=2)
    assert (result.runs, result.clients, result.build_s, result.backend) == (20, 2, None, "null")
    assert result.throughput_per_s == pytest.approx(20 / result.seconds)
    latency = result.latency_s
    assert latency["min"] <= latency["p50"] <= latency["p99"] <= latency["max"]
    assert latency["mean"] == pytest.approx(result.latencies_s.mean())
    assert "latency p50" in str(result)
    assert affine(x=[[1, 2, 3]])["y"].tolist() == [[3, 5, 7]]  # still open
    words = " ".join(tree(result._repr_html_()).itertext())
    for text in (Path(affine.model_path_).name, "20 runs", "p99.9"):
        assert text in words
    built = engine.bench(affine.model_path_, target="null", runs=2, warmup_s=0)
    assert built.build_s is not None
    assert built.runs == 2
    assert built.build_s > 0


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"runs": 1, "duration_s": 1}, "one of duration_s and runs"),
        ({"runs": 0}, "runs must be 1 or more"),
        ({"duration_s": 0}, "duration_s must be above 0"),
        ({"warmup_s": -1}, "warmup_s must be 0 or more"),
        ({"clients": 0}, "clients must be 1 or more"),
    ],
)
def test_a_measurement_that_cannot_be_is_refused(
    affine: Model, wrong: dict[str, int], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        engine.bench(affine, **wrong)  # type: ignore[arg-type]


def test_what_fails_in_a_measurement_is_raised(affine: Model) -> None:
    with pytest.raises(engine.InputError, match="unknown input 'q'"):
        engine.bench(affine, {"q": 1}, runs=3)


def test_backends_and_devices_are_those_of_this_machine_and_print_as_tables() -> None:
    found, devices = engine.backends(), engine.devices()
    assert Counter(r.state for r in found if r.name == "null") == {"ready": 1}
    assert ("null:0", "null") in [(device.device, device.backend) for device in devices]
    lines = str(found).splitlines()
    assert [line.split()[0] for line in lines] == [record.name for record in found]
    line = next(line for line in lines if line.startswith("null "))
    assert line.split("  ")[-1].strip() == "null:0 (onnx's reference implementation)"
    assert repr(found) == str(found)
    assert repr(found[0]).startswith(f"<BackendRecord {found[0].name!r}: ")
    assert len(repr(devices).splitlines()) == len(devices)
    assert repr(type(devices)()) == "no devices; engine.backends() says why"


def test_doctor_prints_its_findings() -> None:
    found = engine.doctor("null")
    assert found.ailing == []
    assert "null" in [backend.record.name for backend in found.backends]
    lines = str(found).splitlines()
    assert lines[0] == "machine"
    assert lines[-1] == "no problem"


def test_a_notebook_shows_findings_as_a_table() -> None:
    found = engine.doctor("null")
    assert "no problem" in "".join(tree(found._repr_html_()).itertext())
    machine = (
        Finding(Status.OK, "disk", "whole"),
        Finding(Status.NOTE, "<b>fan</b>", "loud"),
        Finding(Status.PROBLEM, "wire", "<script>rusty</script>", "run: oil & wire"),
    )
    html = tree(replace(found, machine=machine, backends=())._repr_html_())
    words = " ".join(html.itertext())
    for text in (
        "problems with: machine", "<b>fan</b>", "<script>rusty</script>", "run: oil & wire"
    ):  # fmt: skip
        assert text in words


def test_a_notebook_shows_the_hottest_kernels_and_the_sum_by_operator() -> None:
    kernels = [
        Kernel(f"k{n}", "Gemm", (n,), "null", "null:0", 1.0, n / 10, n / 240) for n in range(1, 15)
    ]
    kernels.append(Kernel("<b>", "Add", (), "null", "null:0", 2.0, 1.5, 0.0625))
    ordered = sorted(kernels * 2, key=lambda kernel: -kernel.time_s)
    found = Profile(1.0, 2.0, tuple(ordered), (), 3, ("other",))
    gemm, add = found.by_operator
    assert (gemm.op_type, gemm.kernels, gemm.runs) == ("Gemm", 28, 28)
    assert gemm.time_s == pytest.approx(2 * 10.5)  # 0.1 + ... + 1.4
    assert (add.op_type, add.kernels, add.runs, add.time_s) == ("Add", 2, 4, 3.0)
    assert repr(found) == str(found)
    assert "Gemm, 28 kernels" in str(found)
    words = " ".join(tree(found._repr_html_()).itertext())
    for text in ("by operator type", "28 kernels", "<b>", "further kernels", "other cannot"):
        assert text in words
    none = tree(replace(found, kernels=(), unmeasured=())._repr_html_())
    assert [*none.iter("table")] == []


def test_a_conversion_prints_as_text_and_shows_in_a_notebook() -> None:
    spec = TensorSpec("x", DType.FLOAT32, ("batch", 3))
    report = Report(
        files=(Path("net.mindir"),),
        size_before=2000,
        size_after=1500,
        nodes=1,
        inputs=(spec,),
        outputs=(replace(spec, name="<y>"),),
        notes=("a < b",),
        accuracy={"<y>": {"mean_error": 0.25}},
        trial={"<y>": np.zeros((2, 3), np.float32)},
    )
    lines = str(report).splitlines()
    assert repr(report) == str(report)
    assert "net.mindir" in lines[0]
    assert lines[-1] == "note: a < b"
    assert "PosixPath" not in str(report)
    words = " ".join(tree(report._repr_html_()).itertext())
    for text in ("<y>: float32[batch, 3]", "mean error 0.25", "float32[2, 3]", "a < b"):
        assert text in str(report)
        assert text in words


def test_the_functions_stay_functions_whatever_is_imported_and_cost_nothing_before() -> None:
    script = """if True:
        import sys, engine
        late = ("engine.report", "engine.report.diagnosis", "engine.backends")
        assert not [name for name in sys.modules if name.startswith(late)]
        import engine.backends.discovery, engine.report.inspection, engine.cli.inspect
        import engine.cli.bench, engine.cli.doctor
        from engine import backends
        for name in ("backends", "bench", "devices", "doctor", "inspect"):
            assert callable(getattr(engine, name)), name
        assert backends is engine.backends and callable(backends.installed)
    """
    subprocess.run([sys.executable, "-c", script], check=True)
