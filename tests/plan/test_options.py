"""CompileOptions: what is resolved once a plan, what the core keeps to itself, what parts get."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from plan_models import plan_of, predicting, refusing, save

import engine
from engine.backends import OFFICIAL
from engine.errors import BackendUnavailable, ModelError
from engine.formats import open_source
from engine.options import CONSUMED
from engine.plan import BuildOptions, Targets, build_plan
from engine.types import Arithmetic, Device, ShapeRange
from engine_testing import models

Install = Callable[..., ModuleType]

NOTES = """
given = []


@hookimpl
def engine_load(source, options):
    from engine.reference.evaluator import load

    given.append(options)
    own = {k: v for k, v in options.options.items() if k in OPTIONS}
    return load(source, host({name!r}, options.device, own))
"""


@pytest.fixture
def noting(install: Install) -> ModuleType:
    return install("noting", extra=NOTES.replace("{name!r}", "'noting'"), device_types=("gpu",))


def test_the_rank_is_the_jobs_whatever_the_target(
    noting: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models.affine(tmp_path)
    assert plan_of(path, ["noting"]).rank == 0
    for target in ("noting", "ascend"):
        context = engine.Context()
        context.target = [target]
        context.ascend.rank_id = 1
        plan = build_plan(open_source(path), Targets(BuildOptions(context, {})))
        assert (noting.given[-1].rank, plan.rank) == (1, 1)
        assert (noting.given[-1].world_size, plan.world_size) == (1, 1)
        monkeypatch.setenv("ENGINE_TARGET", "noting")


@pytest.mark.parametrize(
    ("mode", "section", "expected"),
    [
        ("", {}, (Arithmetic.EXACT, "enforce_fp32")),
        ("preferred_fp16", {}, (Arithmetic.FLOAT16, "preferred_fp16")),
        ("", {"arithmetic": "float16"}, (Arithmetic.FLOAT16, "preferred_fp16")),
        ("preferred_fp16", {"arithmetic": "exact"}, (Arithmetic.EXACT, "enforce_fp32")),
        ("preferred_fp16", {"arithmetic": "rounded"}, (Arithmetic.ROUNDED, "enforce_fp32")),
        ("", {"arithmetic": "bfloat16"}, (Arithmetic.BFLOAT16, "enforce_fp32")),
    ],
)
def test_how_exactly_to_compute_comes_in_words_of_any_device_and_of_this_one(
    noting: ModuleType,
    tmp_path: Path,
    mode: str,
    section: dict[str, str],
    expected: tuple[Arithmetic, str],
) -> None:
    context = engine.Context()
    context.target = ["noting"]
    if mode:
        context.gpu.precision_mode = mode  # type: ignore[assignment]
    config = {"noting_context": section}
    build_plan(open_source(models.affine(tmp_path)), Targets(BuildOptions(context, config)))
    given = noting.given[-1]
    assert (given.arithmetic, given.precision) == expected
    assert "arithmetic" not in given.options


def test_an_unknown_word_for_how_exactly_to_compute_is_refused(
    noting: ModuleType, tmp_path: Path
) -> None:
    config = {"noting_context": {"arithmetic": "fp16"}}
    with pytest.raises(ValueError, match=r"one of exact, rounded, float16, bfloat16, .*'fp16'"):
        plan_of(models.affine(tmp_path), ["noting"], config=config)


def test_two_words_for_how_exactly_to_compute_are_refused(
    noting: ModuleType, tmp_path: Path
) -> None:
    section = {"arithmetic": "exact", "precision_mode": "preferred_fp16"}
    with pytest.raises(ValueError, match=r"arithmetic and precision_mode .* set one of them"):
        plan_of(models.affine(tmp_path), ["noting"], config={"noting_context": section})


def test_the_device_is_that_of_the_backends_section(noting: ModuleType, tmp_path: Path) -> None:
    config = {"noting_context": {"device_id": "2"}}
    plan = plan_of(models.affine(tmp_path), ["noting"], config)
    assert plan.device == noting.given[-1].device == Device("gpu", 2)


def test_keys_of_the_core_reach_no_backend(noting: ModuleType, tmp_path: Path) -> None:
    values = {
        **dict.fromkeys(CONSUMED, "1"),
        "provider": "reference",
        "arithmetic": "exact",
        "input_shape": "x:[-1,3]",
        "dynamic_dims": "[1~4],[5~8]",
        "opt_dims": "[2],[6]",
        "delay_s": "0",
    }
    plan = plan_of(models.affine(tmp_path), ["noting"], {"noting_context": values})
    [options] = noting.given
    assert dict(options.options) == {"delay_s": "0"}
    assert options.provider == "reference"
    assert plan.device == Device("gpu", 1)
    assert options.shapes == {"x": ShapeRange((1, 3), (2, 3), (8, 3))}
    assert options.profiles == (
        {"x": ShapeRange((1, 3), (2, 3), (4, 3))},
        {"x": ShapeRange((5, 3), (6, 3), (8, 3))},
    )


def test_a_provider_that_a_backend_does_not_have_is_refused(
    noting: ModuleType, tmp_path: Path
) -> None:
    config = {"noting_context": {"provider": "referenc"}}
    with pytest.raises(
        BackendUnavailable,
        match=r"'noting' has no provider 'referenc'; did you mean 'reference'.*one of: reference",
    ):
        plan_of(models.affine(tmp_path), ["noting"], config)
    assert noting.given == []
    plan_of(models.affine(tmp_path), ["noting"], {"noting_context": {"provider": "Reference"}})
    assert noting.given[-1].provider == "reference"


NO_TANH = refusing(noting="Tanh")


@pytest.fixture
def parted(tmp_path: Path) -> Path:
    """y = -(tanh(-x) @ w): what crosses is float32[b, 3], then float32[b, 2]."""
    nodes = "a = Neg(x); t = Tanh(a); m = MatMul(t, w); u = Tanh(m); y = Neg(u)"
    weight = {"w": np.ones((3, 2), np.float32)}
    return save(tmp_path, nodes, "(float[b,3] x) => (float[b,2] y)", weight)


@pytest.mark.parametrize(
    ("targets", "override", "is_read"),
    [
        (["noting"], "", False),
        (["noting", "null"], "", False),
        (["noting", "gpu"], "", True),  # by this project's own backend of it, which comes next
        (["own", "noting"], "", True),
        (["noting", "gpu"], "noting", False),
        (["null"], "noting,GPU", True),
    ],
)
def test_the_section_of_a_device_type_that_no_target_reads_is_said_to_be_unread(
    targets: list[str],
    override: str,
    is_read: bool,
    noting: ModuleType,
    install: Install,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    monkeypatch.setattr("engine.plan.options.warn_once", said.append)
    monkeypatch.setitem(OFFICIAL, "gpu", "own")
    install("own", device_types=("gpu",))
    monkeypatch.setenv("ENGINE_TARGET", override)
    plan_of(models.affine(tmp_path), targets, refusing(gpu="Add"))
    assert said == (
        []
        if is_read
        else [
            "configuration section [gpu_context] is not read: backend 'noting' serves the target "
            "'gpu', and reads [noting_context]"
        ]
    )


def test_parts_get_the_ranges_and_profiles_of_their_own_inputs(
    noting: ModuleType, parted: Path
) -> None:
    ranges = {"input_shape": "x:[-1,3]", "dynamic_dims": "[1~4],[5~8]", "opt_dims": "[2],[6]"}
    config = {"noting_context": {"unsupported_ops": "Tanh", **ranges}}
    plan = plan_of(parted, ["noting", "null"], config)
    whole, *parts = noting.given
    assert [[*options.shapes] for options in parts] == [["x"], ["t"], ["u"]]
    for options, width in zip(parts, (3, 3, 2), strict=True):
        [shapes] = options.shapes.values()
        assert shapes == ShapeRange((1, width), (2, width), (8, width))
        [low], [high] = (list(profile.values()) for profile in options.profiles)
        assert low == ShapeRange((1, width), (2, width), (4, width))
        assert high == ShapeRange((5, width), (6, width), (8, width))
    assert len({options.plan for options in parts}) == 1
    assert (whole.plan, whole.resident) == ("", frozenset())
    x = np.ones((2, 3), np.float32)
    [y] = predicting(plan)(x)
    np.testing.assert_allclose(y, -np.tanh(np.tanh(-x) @ np.ones((3, 2))), rtol=1e-6)


def test_two_plans_have_two_names_and_parts_without_ranges_get_none(
    noting: ModuleType, parted: Path
) -> None:
    for _ in range(2):
        plan_of(parted, ["noting", "null"], NO_TANH)
    assert len({options.plan for options in noting.given} - {""}) == 2
    assert all(options.shapes == {} for options in noting.given)


def test_an_axis_left_open_stays_open_behind_it(noting: ModuleType, tmp_path: Path) -> None:
    values = "(float[b,s] x) => (float[b,s] y)"
    path = save(tmp_path, "a = Neg(x); t = Tanh(a); y = Neg(t)", values)
    settings = {"unsupported_ops": "Tanh", "input_shape": "x:[-1,5]"}
    plan_of(path, ["noting", "null"], {"noting_context": settings})
    for options in noting.given:
        assert [*options.shapes.values()] == [ShapeRange((0, 5), (-1, 5), (-1, 5))]


def test_a_size_that_shrinks_as_the_input_grows_is_in_order(
    noting: ModuleType, tmp_path: Path
) -> None:
    """t is padded to 10 on its axis: Concat with what is left. Here: ConstantOfShape(10 - n)."""
    nodes = (
        "n = Shape(x); rest = Sub(ten, n); zeros = ConstantOfShape(rest); t = Tanh(zeros);"
        "y = Neg(t)"
    )
    path = save(tmp_path, nodes, "(float[n] x) => (float[r] y)", {"ten": [10]})
    settings = {"unsupported_ops": "Tanh", "input_shape": "x:[-1]", "dynamic_dims": "[2~7]"}
    plan_of(path, ["noting", "null"], {"noting_context": settings})
    assert noting.given[-1].shapes == {"t": ShapeRange((3,), (3,), (8,))}


COMPILES = """
from engine.errors import CompiledFormError

tried = []


@hookimpl
def engine_load(source, options):
    from engine.reference.evaluator import Host, load

    tried.append((source.compiled, options.save_to))
    if source.compiled is not None and {at!r} == "load":
        raise CompiledFormError("made for version 1, this is 2")
    return Loaded(load(source, Host("keeper", DEVICE)), source)


class Loaded:
    def __init__(self, inner, source):
        self.inner, self.source = inner, source
        self.inputs, self.outputs, self.unsupported = inner.inputs, inner.outputs, {}
        self.close = inner.close


@hookimpl
def engine_compile(loaded, options):
    if loaded.source.compiled is not None and {at!r} == "compile":
        raise CompiledFormError("made for version 1, this is 2")
    return loaded.inner.compile(options)
"""


@pytest.mark.parametrize("at", ["load", "compile"])
def test_a_compiled_form_of_no_use_is_compiled_anew_and_said(
    install: Install, tmp_path: Path, at: str, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = install("keeper", extra=COMPILES.replace("{at!r}", repr(at)))
    folder = tmp_path / "form"
    path = models.affine(tmp_path)
    context = engine.Context()
    context.target = ["keeper"]
    with caplog.at_level(logging.WARNING, "engine"):
        source = replace(open_source(path), compiled=folder)
        plan = build_plan(source, Targets(BuildOptions(context, {})))
    assert [compiled for compiled, _ in keeper.tried] == [folder, None]
    assert "made for version 1, this is 2" in caplog.text
    assert str(folder) in caplog.text
    [y] = predicting(plan)(np.ones((1, 3), np.float32))
    assert y.tolist() == [[3, 3, 3]]


def test_a_compiled_form_error_without_a_form_is_a_model_error(
    install: Install, tmp_path: Path
) -> None:
    always = COMPILES.replace("if source.compiled is not None and {at!r}", "if {at!r}", 1)
    install("keeper", extra=always.replace("{at!r}", "'load'"))
    with pytest.raises(ModelError, match="made for version 1"):
        plan_of(models.affine(tmp_path), ["keeper"])
