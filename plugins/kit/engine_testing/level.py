"""The base of all levels of the kit: a backend on trial, and how answers are compared."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

from engine.backends import Backend, BackendState, doors, open_backend, record
from engine.errors import EngineError, ModelError
from engine.formats import open_source
from engine.host.child import command, environment
from engine.plan.mixed.element_types import refused_by_type
from engine.types import (
    Arithmetic,
    Capability,
    CompileOptions,
    Executable,
    ExecutionContext,
    LoadedModel,
    ModelSource,
    ShapeRange,
    Value,
    Values,
)
from engine_testing import models
from engine_testing.duties import NEVER_A_GAP
from engine_testing.gaps import explain, model_gap, operator_of, operators_of, types_of
from engine_testing.gaps import sometimes as sometimes
from engine_testing.making import floats as floats
from engine_testing.making import longs as longs

Array: TypeAlias = npt.NDArray[Any]
Maker: TypeAlias = Callable[[Path], Path]
"""A function of `engine_testing.models`, or one like it."""


def row(start: float, rows: int = 1) -> Array:
    """Return inputs of `models.affine`: float32[rows, 3], counted on from `start`."""
    return np.arange(start, start + 3 * rows, dtype=np.float32).reshape(rows, 3)


def run_child(
    *arguments: str, cwd: Path | None = None, limit_s: float = 120, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own, with these variables, and wait for its end."""
    return subprocess.run(
        command(*arguments),
        env=environment(**variables),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


@dataclass(frozen=True, slots=True)
class Running:
    """An execution context and what it belongs to."""

    backend: Backend
    executable: Executable
    context: ExecutionContext

    def predict(
        self,
        *inputs: Value,
        outputs: Sequence[Value] | None = None,
        deadline_s: float | None = None,
    ) -> Values:
        """Call engine_predict once."""
        return self.backend.predict(self.context, list(inputs), outputs, deadline_s)


class Trial:
    """A backend on trial: opens what a test asks for as the core would, and closes it afterwards.

    backend: its hooks. device: what it runs on, the first that the backend finds unless a level's
    `device_type` says otherwise. folder: where models are written. opened, compiled: operators of
    the models that the test has opened, and of those that compiled; reported: of the nodes that
    `LoadedModel.unsupported` names. opened_types, compiled_types: of these models' inputs and
    outputs. is_building: a model was opened, and has not been compiled.
    """

    def __init__(self, backend: Backend, folder: Path, closing: ExitStack) -> None:
        self.backend = backend
        self.folder = folder
        self.device = backend.devices().found[0].device
        self.opened: set[str] = set()
        self.compiled: set[str] = set()
        self.reported: set[str] = set()
        self.opened_types: set[str] = set()
        self.compiled_types: set[str] = set()
        self.is_building = False
        self._closing = closing

    def choose_device(self, device_type: str) -> None:
        """Run on the first device of a type. Skips the test where there is none."""
        for found in self.backend.devices().found:
            if found.device.type == device_type:
                self.device = found.device
                return
        pytest.skip(f"backend {self.backend.name!r} finds no device of type {device_type!r} here")

    def options(self, **changes: Any) -> CompileOptions:
        """Return the options that a user without a wish gives, with changes."""
        precision = "enforce_fp32" if self.device.type in ("cpu", "gpu") else ""
        options = CompileOptions(
            device=self.device, precision=precision, arithmetic=Arithmetic.EXACT
        )
        return replace(options, **changes)

    def source(self, model: Maker | ModelSource) -> ModelSource:
        """Return a model as the core hands it to a backend."""
        self.is_building = True
        source = model if isinstance(model, ModelSource) else open_source(str(model(self.folder)))
        self.opened |= operators_of(source)
        self.opened_types |= types_of(source)
        return source

    def load(self, model: Maker | ModelSource, **changes: Any) -> LoadedModel:
        """Load a model."""
        loaded = self.backend.load(self.source(model), self.options(**changes))
        self._closing.callback(loaded.close)
        return loaded

    def compile(self, model: Maker | ModelSource, *inputs: Array, **changes: Any) -> Executable:
        """Compile a model; where shapes must be fixed, for those of `inputs`."""
        source = self.source(model)
        options = self.options(**{"shapes": self.shapes(source, inputs), **changes})
        executable = self.build(source, options)
        self._closing.callback(executable.close)
        return executable

    def build(self, source: ModelSource, options: CompileOptions) -> Executable:
        """Load and compile, and let go of the loaded model; the caller closes the executable."""
        self._refuse_other_types(source)
        loaded = self.backend.load(source, options)
        self._report(source, loaded)
        try:
            executable = self.backend.compile(loaded, options)
        finally:
            loaded.close()
        self.compiled |= operators_of(source)
        self.compiled_types |= types_of(source)
        self.is_building = False
        return executable

    def refused(self) -> set[str]:
        """Return the operators of nodes that the backend reports, of all models of this test.

        Those that the test opened through `engine.Model` are loaded once more for that.
        """
        if not self.opened:
            for path in sorted(self.folder.rglob("*.onnx")):
                with suppress(EngineError, ValueError):
                    source = open_source(str(path))
                    loaded = self.backend.load(source, self.options())
                    self._report(source, loaded)
                    loaded.close()
        return self.reported

    def _report(self, source: ModelSource, loaded: LoadedModel) -> None:
        nodes = source.graph.nodes if source.graph is not None else ()
        self.reported |= {operator_of(nodes[index]) for index in loaded.unsupported}

    def _refuse_other_types(self, source: ModelSource) -> None:
        """Raise ModelError for what the core refuses: types that the device does not declare."""
        info = self.backend.present.get(self.device)
        if source.graph is None or info is None or not info.dtypes:
            return
        refused = refused_by_type(self.backend, self.device, source)
        self.reported |= {operator_of(source.graph.nodes[index]) for index in refused}
        for why in refused.values():
            raise ModelError(f"{source.name}: {why}", source.name)

    def open(self, model: Maker | ModelSource, *inputs: Array, **changes: Any) -> Running:
        """Compile a model and open a context."""
        return self.context(self.compile(model, *inputs, **changes))

    def open_or_skip(self, model: Maker | ModelSource, *inputs: Array) -> Running:
        """Open a model that a backend need not take; refused before it runs, it skips the test."""
        try:
            return self.open(model, *inputs)
        except ModelError as error:
            pytest.skip(f"refused: {error}")

    def context(self, executable: Executable, beside: Running | None = None) -> Running:
        """Open one more context of an executable; beside another one, it shares its workspace."""
        opener: Any = executable.open_context
        context = opener() if beside is None else opener(beside=beside.context)
        self._closing.callback(context.close)
        return Running(self.backend, executable, context)

    def run(self, model: Maker | ModelSource, *inputs: Array) -> Values:
        """Return the model's outputs for these inputs."""
        return self.open(model, *inputs).predict(*inputs)

    def close_later(self, *things: Executable | LoadedModel | ExecutionContext) -> None:
        """Close what a test has opened itself, after it, the last first."""
        for thing in things:
            self._closing.callback(thing.close)

    def end_later(self, owner: Any) -> None:
        """Close the owner of what is lent after the test, before the lender."""
        close = getattr(owner, "close", None)
        if close is not None:
            self._closing.callback(close)

    def shapes(self, source: ModelSource, inputs: Sequence[Array]) -> dict[str, ShapeRange]:
        """Return CompileOptions.shapes for a backend that must know shapes beforehand."""
        if self.backend.can(Capability.DYNAMIC_SHAPES) or source.graph is None:
            return {}
        return {
            spec.name: ShapeRange(array.shape, array.shape, array.shape)
            for spec, array in zip(source.graph.inputs, inputs, strict=False)
            if not all(isinstance(dim, int) for dim in spec.shape or (None,))
        }


class Level:
    """The base of every level of the kit; a subclass that names a backend is tested.

    backend: its name, as in its entry point.
    rtol, atol: how far results in floating point may be from the closed form. A backend that
        computes in float16 sets 1e-2 and says why; with 1e-5, TF32 and less are caught.
    vendor_modules: what importing the plugin must not import, beside the usual runtimes.
    option: the name of one option that the backend knows; lets the kit misspell it.
    device_type: the type of the device on trial, by default the first that is found. A backend
        with several types ("cpu", "npu") has a class for each.
    gaps: what the backend is known not to do: a test's name, with or without its parameters
        ("test_x" or "test_x[int8]"), an operator ("op:NonZero"), or an element type of inputs and
        outputs ("dtype:int64") -> why. Such a test must fail, those with the operator or type
        where they are refused: one that passes is an error, so the list cannot outlive the gap.
        `sometimes("why")` is for one that passes by chance, "op:*" for a runtime of few operators
        or types: what `LoadedModel.unsupported` reports is a gap.
    shares_devices: False where two ranks of a group need two devices, as with NCCL.
    trials: what opens models for the tests; a subclass of Trial may give other options or shapes.
    crashes: like `gaps`, for what would end the process or hang: such a test is not run. Take
        its entry out to see whether it is still so.
    """

    backend: ClassVar[str] = ""
    rtol: ClassVar[float] = 1e-5
    atol: ClassVar[float] = 1e-6
    vendor_modules: ClassVar[tuple[str, ...]] = ()
    option: ClassVar[str] = ""
    device_type: ClassVar[str] = ""
    shares_devices: ClassVar[bool] = True
    trials: ClassVar[type[Trial]] = Trial
    gaps: ClassVar[Mapping[str, str]] = {}
    crashes: ClassVar[Mapping[str, str]] = {}
    case: str = ""  # the running test, with its parameter
    needed: str = ""  # the capability that the running test has asked for

    def __init_subclass__(cls) -> None:
        """Let each test say, where it fails, what it stands for and how a gap is declared."""
        super().__init_subclass__()
        for name, test in list(vars(cls).items()):
            if name.startswith("test_") and cls.__module__.startswith("engine_testing."):
                setattr(cls, name, _explaining(test))

    @pytest.fixture(autouse=True)
    def _expect_gap(self, request: pytest.FixtureRequest) -> None:
        case = request.node.name
        test = case.partition("[")[0]
        self.case = case
        if reason := self.crashes.get(case) or self.crashes.get(test):
            pytest.xfail(f"not run: {reason}")
        if reason := self.gaps.get(case) or self.gaps.get(test):
            is_strict = not isinstance(reason, sometimes)
            request.applymarker(pytest.mark.xfail(reason=str(reason), strict=is_strict))

    @pytest.fixture
    def plugin(self) -> Backend:
        """The backend's hooks, whether or not there is a device."""
        points = [point for point in doors.points(doors.BACKENDS) if point.name == self.backend]
        assert len(points) == 1, f"backend {self.backend!r} is installed {len(points)} times"
        return Backend(self.backend, points[0].load(), [])

    @pytest.fixture
    def trial(self, tmp_path: Path) -> Iterator[Trial]:
        """The backend on trial; everything that the test opened is closed after it.

        Skips where there is no device, with the backend's reason.
        """
        found = record(self.backend)
        if found.state is BackendState.NO_DEVICE:
            pytest.skip(str(found))
        plugin = open_backend(self.backend)
        with ExitStack() as closing:
            trial = self.trials(plugin, tmp_path, closing)
            if self.device_type:
                trial.choose_device(self.device_type)
            yield trial

    def require(self, trial: Trial, capability: Capability) -> None:
        """Skip the test of a backend without `capability`, or whose device lacks it."""
        self.needed = str(capability)
        if reason := trial.backend.lacks(capability, trial.device):
            pytest.skip(reason)

    def assert_close(self, actual: Value, expected: Array) -> None:
        """Assert equal dtype, shape and values; floating point within rtol and atol."""
        assert isinstance(actual, np.ndarray), f"expected a host array, got {type(actual)}"
        assert actual.dtype == expected.dtype, f"expected {expected.dtype}, got {actual.dtype}"
        assert actual.shape == expected.shape, f"expected {expected.shape}, got {actual.shape}"
        if expected.dtype.kind == "f":
            rtol = max(self.rtol, 2 * float(np.finfo(expected.dtype).eps))
            np.testing.assert_allclose(actual, expected, rtol=rtol, atol=self.atol)
        else:
            np.testing.assert_array_equal(actual, expected)


def _explaining(test: Callable[..., None]) -> Callable[..., None]:
    """Return a test whose failures say more, and which knows of gaps by operator or type."""

    @wraps(test)
    def run(self: Level, **arguments: Any) -> None:
        __tracebackhide__ = True
        trial = next((value for value in arguments.values() if isinstance(value, Trial)), None)
        try:
            test(self, **arguments)
        except (Exception, pytest.fail.Exception) as error:
            refused: set[str] = set()
            opened, types = (trial.opened, trial.opened_types) if trial else (refused, refused)
            is_refused = isinstance(error, ModelError)
            if trial is not None and is_refused and (trial.is_building or not trial.opened):
                refused = trial.refused()
                gap = model_gap(self.gaps, opened | refused, types, refused)
                if self.case.partition("[")[0] in NEVER_A_GAP:
                    # Of a model that was refused as a whole nothing ran, so no result is wrong.
                    gap = model_gap(self.gaps, refused, (), refused)
                if gap:
                    pytest.xfail(f"{gap}: {self.gaps[gap]}")
            explain(error, self.case, self.needed, opened, types, refused)
            raise
        gap = model_gap(self.gaps, trial.compiled, trial.compiled_types) if trial else ""
        assert not gap or isinstance(self.gaps[gap], sometimes), (
            f"the gap {gap!r} is closed: such a model compiles; remove the entry"
        )

    return run


def time_slow(trial: Trial) -> tuple[Running, Array, float]:
    """Return a running model, an input, and how long these take: at least 0.3 s anywhere."""
    rows = 512
    while True:
        x = np.ones((rows, models.SLOW_WIDTH), np.float32)
        running = trial.open(models.slow, x)
        running.predict(x)  # some compile at the first
        whole_s = time_predict(running, x)
        if whole_s >= 0.3:
            return running, x, whole_s
        if rows >= 2**19:
            pytest.skip(f"{rows} rows take {whole_s:.3f} s: too fast to be stopped")
        rows = int(rows * min(max(0.4 / whole_s, 1.2), 8))


def assert_stops_early(
    running: Running, x: Array, whole_s: float, stopped_s: Callable[[float], float]
) -> None:
    """Fail unless a predict that is told to stop after a tenth of its time ends before half of it.

    whole_s: what it takes, from `time_slow`. stopped_s: makes one that is told to stop after some
    seconds, and returns how long it took. Other processes slow this one down and let go, so that
    one early end proves nothing, nor a late one: of eight in turn with whole ones, three must be.
    """
    whole, stopped = [whole_s], [whole_s]
    for _ in range(8):
        stopped.append(stopped_s(min(whole) / 10))
        whole.append(time_predict(running, x))
        if sum(each < min(whole) / 2 for each in stopped) == 3:
            return
    best = ", ".join(f"{each:.2f}" for each in sorted(stopped)[:3])
    raise AssertionError(
        f"told to stop after {min(whole) / 10:.2f} s, predict stopped after {best} s at best; "
        f"undisturbed it takes {min(whole):.2f} s"
    )


def spent_s(window_s: float) -> float:
    """Return the processor time that all threads of this process take while this one sleeps."""
    begin = time.process_time()
    time.sleep(window_s)
    return time.process_time() - begin


PATIENCE_S = 10.0
"""Time in which a busy machine lets a measurement through that is as it should be."""


def turns(seconds: float) -> Iterator[int]:
    """Count the turns of a measurement: 8 at least, and more until so long has passed."""
    end_s = time.monotonic() + seconds
    turn = 0
    while turn < 8 or time.monotonic() < end_s:
        yield turn
        turn += 1


def time_predict(running: Running, x: Array) -> float:
    """Return how long a predict takes, in seconds."""
    start = time.monotonic()
    running.predict(x)
    return time.monotonic() - start
