"""Two sides of `engine compare` and `engine diff`: their options, their runs, their outputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from engine import Context
from engine.cli import options
from engine.cli.build import (
    Built,
    Decryption,
    build,
    decryption_of,
    fit_to,
    inputs_of,
    parse_shapes,
    parse_targets,
    require_free_input,
    require_timeout,
    set_target,
    timed,
)
from engine.cli.commands import Argument, Integer, ModelPath, bundle
from engine.cli.completion import set_keys, targets
from engine.cli.example import model_or_example
from engine.cli.hints import misuse
from engine.cli.input_files import STANDARD_INPUT, file_name, of_commands
from engine.cli.inputs import Inputs
from engine.cli.interrupt import interruptible
from engine.cli.open_sizes import run_shown
from engine.cli.options import BuildOptions, InputOptions
from engine.cli.output import aside, attributes, duration, notes, plain, table
from engine.config.wording import own_text, reworded
from engine.errors import EngineError, InputError
from engine.report.comparison import common_inputs, naming, outputs_of, values_for
from engine.report.filled import Fill
from engine.report.inspection import of_file
from engine.report.measurement import DeviceShare, devices_text, shares
from engine.types import TensorSpec

if TYPE_CHECKING:
    from engine.formats import ModelFile
    from engine.report.differences import Comparison, Largest, OutputComparison
    from engine.tensor.description import Array

TOLERANCES = """\b
Tolerances:
  within  |a - b| <= atol + rtol * |b| for every element; NaN only where both
          have one, an infinite one only where both have the same. Whole
          numbers have --atol alone, text is equal or not
  rtol    1e-3 by default; 1e-2 for types of 2 bytes, 1e-1 for 1 byte
  atol    1e-5 by default; 1e-3 for types of 2 bytes, 1e-2 for 1 byte; 0 for
          whole numbers

"""


@dataclass(frozen=True, slots=True)
class Sides:
    """The targets and the settings that one side has alone; b is the reference."""

    a: str
    b: str | None
    settings_a: tuple[str, ...]
    settings_b: tuple[str, ...]
    threads_a: int | None
    threads_b: int | None

    def options(self, how: BuildOptions, is_two_files: bool) -> tuple[BuildOptions, BuildOptions]:
        """Return how to build either side, from what both have."""
        b = self.b or ("cpu" if is_two_files else "reference")

        def own(target: str, settings: tuple[str, ...], threads: int | None) -> BuildOptions:
            threads = how.threads if threads is None else threads
            return replace(how, target=target, settings=(*how.settings, *settings), threads=threads)

        return (
            own(self.a, self.settings_a, self.threads_a),
            own(b, self.settings_b, self.threads_b),
        )


@dataclass(frozen=True, slots=True)
class Side:
    """One run that is over."""

    model: Path
    where: Sequence[DeviceShare]
    build_s: float
    predict_s: float
    outputs: dict[str, Array]

    def facts(self) -> dict[str, Any]:
        """Return what is said of it in JSON."""
        devices = [share._asdict() for share in self.where]
        times = attributes(self, "build_s", "predict_s")
        return {"model": str(self.model), "devices": devices, **times}

    def __str__(self) -> str:
        return (
            f"{file_name(self.model)} on {devices_text(self.where)}: "
            f"built in {duration(self.build_s)}, ran in {duration(self.predict_s)}"
        )


def _settings(name: str, side: str) -> Any:
    return click.option(
        f"--set-{side}",
        name,
        multiple=True,
        metavar="SEC.KEY=VALUE",
        help=f"One setting for {side} alone. May be repeated.",
        shell_complete=set_keys,
    )


def _threads(side: str) -> Any:
    return click.option(
        f"--threads-{side}",
        type=Integer(0),
        metavar="N",
        help=f"Host threads of {side} alone.  [default: --threads]",
    )


@dataclass(frozen=True, slots=True)
class Asked:
    """All that the command line says of two sides and their inputs."""

    model: Path
    other: Path | None
    sides: Sides
    rtol: float | None
    atol: float | None
    given: InputOptions
    how: BuildOptions
    timeout: float | None
    json: bool

    def check(self) -> None:
        """Raise a usage error for options that cannot be meant."""
        require_free_input(self.given, self.model, self.other)
        if str(self.model) == str(self.other) == STANDARD_INPUT:
            raise click.BadParameter("standard input holds one model; give OTHER a file")
        require_timeout(self.timeout)
        for name, tolerance in (("--rtol", self.rtol), ("--atol", self.atol)):
            if tolerance is not None and not 0 <= tolerance < math.inf:
                raise misuse(name, f"expected a number of 0 or more, got {tolerance:g}")


of_two_sides = bundle(
    "asked",
    Asked,
    model_or_example,
    click.argument(
        "other",
        cls=Argument,
        metavar="[OTHER]",
        required=False,
        type=ModelPath(),
        help="The file of b, if it is another one.",
    ),
    bundle(
        "sides",
        Sides,
        click.option(
            "--a",
            default="cpu",
            metavar="TARGET",
            help="Where a runs: cpu, gpu, ascend or an installed backend.",
            shell_complete=targets,
        ),
        click.option(
            "--b",
            metavar="TARGET",
            help="Where b runs, with which a is compared.  [default: reference, onnx's evaluator; "
            "cpu for two files]",
            shell_complete=targets,
        ),
        _settings("settings_a", "a"),
        _settings("settings_b", "b"),
        _threads("a"),
        _threads("b"),
    ),
    click.option(
        "--rtol", type=float, metavar="X", help="Relative error that is within; see below."
    ),
    click.option(
        "--atol", type=float, metavar="X", help="Absolute error that is within; see below."
    ),
    options.inputs_filled(Fill.RANDOM),
    bundle(
        "how",
        BuildOptions,
        options.device_id,
        options.threads,
        options.config,
        options.settings,
        options.dec_key,
        options.dec_mode,
    ),
    click.option("--timeout", type=float, metavar="SECONDS", help="Stop a run that takes longer."),
    options.json,
)
"""Adds the arguments and options of two sides to a command, which gets them as one."""


@dataclass(frozen=True, slots=True)
class Both:
    """Two sides that have run on the same inputs.

    hows, files: how each is built, and of which file, for who builds parts of them.
    """

    a: Side
    b: Side
    inputs: Inputs
    found: Comparison
    hows: tuple[BuildOptions, BuildOptions]
    files: tuple[ModelFile, ModelFile]

    def facts(self) -> dict[str, Any]:
        """Return what is said of them in JSON."""
        return {
            "is_within": self.found.is_within,
            "a": self.a.facts(),
            "b": self.b.facts(),
            "inputs": self.inputs.facts(),
            "outputs": [_output_facts(output) for output in self.found.outputs],
        }

    def show(self) -> None:
        """Print them, and the table of their outputs."""
        aside(f"a: {plain(str(self.a))}")
        aside(f"b: {plain(str(self.b))}")
        _print(self.found)


def run_both(
    asked: Asked, joined: tuple[ModelFile | None, ModelFile | None] = (None, None)
) -> Both:
    """Build and run one side after the other, on the same inputs. Raises what these raise.

    joined: models to run in place of the files.
    """
    from engine.report.differences import compare_outputs

    shapes = parse_shapes(asked.given.shapes)
    asked.check()
    model, other, sides, how = asked.model, asked.other, asked.sides, asked.how
    how_a, how_b = sides.options(how, other is not None)
    others: Sequence[TensorSpec] | None = None
    with side("a", model, sides.settings_a):
        decryption = decryption_of(model, how.dec_key, how.dec_mode, joined[0])
    with side("b", other or model, sides.settings_b):
        set_target(Context(), how_b.target)
    if other is not None:  # before anything is run: what is wrong with b shows at once
        with side("b", other, sides.settings_b):
            decryption_b = decryption_of(other, how.dec_key, how.dec_mode, joined[1])
            decryption_b.require_key(other)
            if decryption.encryption or decryption_b.encryption:
                decryption.drop_key()
                decryption_b.drop_key()
            others = of_file(str(other), decryption_b.file, parse_targets(how_b.target)).inputs
    else:
        decryption_b = decryption
    with side("a", model, sides.settings_a):
        a, inputs = _run_first(asked, how_a, decryption, shapes, others)
    path = other or model
    with side("b", path, sides.settings_b):
        b = _run_second(path, how_b, decryption_b, inputs, asked.timeout)
    found = compare_outputs(a.outputs, b.outputs, asked.rtol, asked.atol)
    return Both(a, b, inputs, found, (how_a, how_b), (decryption.file, decryption_b.file))


@contextmanager
def side(name: str, path: Path, settings: Sequence[str]) -> Iterator[None]:
    """Say in an error that comes out of the block which side it is of, by file and options."""
    try:
        with naming(name, file_name(path)):
            try:
                yield
            except EngineError as error:
                reworded(error, of_commands(own_text(error)))
                raise
    except click.BadParameter as error:
        if error.param_hint == "--target":
            error.param_hint = f"--{name}"
        elif error.param_hint == "--set" and settings:
            error.param_hint = f"--set, --set-{name}"
        raise


def _run_first(
    asked: Asked,
    how: BuildOptions,
    decryption: Decryption,
    shapes: dict[str, tuple[int, ...]],
    others: Sequence[TensorSpec] | None,
) -> tuple[Side, Inputs]:
    """Run the side that says which inputs both get.

    others: the inputs of b, if its file is another one and says them: what these fix and a leaves
    open is as they say.
    """
    model, other, given, timeout = asked.model, asked.other, asked.given, asked.timeout
    built = build(model, how, decryption)
    with built.model:
        specs = None
        if others is not None and not built.takes_shapes:
            specs = common_inputs(built.inputs, others, (str(model), str(other)))
        inputs = interruptible(lambda: _inputs(built, given, shapes, specs, other))
        notes(inputs.notes)
        run = partial(outputs_of, built.model, timeout_s=timeout)
        inputs, outputs, seconds = run_shown(built, inputs, "running a", run, not asked.json)
        return Side(model, shares(built.model.placement), built.seconds, seconds, outputs), inputs


def _inputs(
    built: Built,
    given: InputOptions,
    shapes: dict[str, tuple[int, ...]],
    specs: Sequence[TensorSpec] | None,
    other: Path | None,
) -> Inputs:
    """Return the inputs of a; where they fit a alone, the error is b's."""
    if specs is None:
        return inputs_of(built, given, shapes)
    try:
        return inputs_of(built, given, shapes, specs)
    except InputError:
        inputs_of(built, given, shapes)
        with naming("b", str(other)):
            raise


def _run_second(
    model: Path, how: BuildOptions, decryption: Decryption, inputs: Inputs, timeout: float | None
) -> Side:
    built = build(model, how, decryption)
    with built.model:
        values = values_for(built.model, [given.spec for given in inputs.given], inputs.values())
        fit_to(built, values)
        outputs, seconds = timed("running b", lambda: outputs_of(built.model, values, timeout))
        return Side(model, shares(built.model.placement), built.seconds, seconds, outputs)


def _print(found: Comparison) -> None:
    rows = [
        (
            output.name,
            " / ".join(dict.fromkeys(output.dtypes)),
            " / ".join(dict.fromkeys(str([*shape]) for shape in output.shapes)),
            _largest(output.absolute),
            _largest(output.relative),
            f"{output.rtol:g}, {output.atol:g}",
            (output.verdict, *not_numbers(output)),
        )
        for output in found.outputs
    ]
    errors = ("largest absolute error", "largest relative error")
    table(
        "Outputs",
        ("output", "type", "shape", *errors, "rtol, atol", "verdict"),
        rows,
        is_first=True,
    )


def _largest(largest: Largest | None) -> Any:
    if largest is None:
        return "-"
    if not largest.error:
        return "0"
    return (
        f"{largest.error:.3g} at {[*largest.at]}",
        f"a {_number(largest.a)}, b {_number(largest.b)}",
    )


def _number(value: Any) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def not_numbers(output: OutputComparison) -> list[str]:
    """Say how many NaN and infinite numbers each side has, where one has any."""
    return [
        f"{what}: {a:,} in a, {b:,} in b"
        for what, (a, b) in (("NaN", output.nans), ("infinite", output.infinities))
        if a or b
    ]


def _output_facts(output: OutputComparison) -> dict[str, Any]:
    def largest(found: Largest | None) -> dict[str, Any] | None:
        return None if found is None else attributes(found, "error", "at", "a", "b")

    own = ("name", "is_within", "is_equal", "verdict", "differing", "rtol", "atol")
    return {
        **attributes(output, *own),
        "dtype": output.dtypes,
        "shape": output.shapes,
        "largest_absolute": largest(output.absolute),
        "largest_relative": largest(output.relative),
        "nan": output.nans,
        "infinite": output.infinities,
    }
