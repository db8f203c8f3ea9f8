"""Builds the model that a command is given, and parses the texts of its options."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from engine import Context, Model
from engine.cli.hints import misuse
from engine.cli.input_files import STANDARD_INPUT
from engine.cli.inputs import Inputs, Reader, collect
from engine.cli.interrupt import interruptible
from engine.cli.options import KEY_VARIABLE, BuildOptions, DecMode, InputOptions
from engine.cli.pictures import Preparation
from engine.cli.progress import progress, waiting
from engine.cli.witness import witnessed
from engine.config.reader import Config, configuration, number_devices
from engine.config.wording import own_text, reworded
from engine.errors import (
    BackendError,
    DeadlineExceeded,
    InputError,
    ModelError,
    ModelNotFound,
    ModelStateError,
)
from engine.formats.files import beside, inside
from engine.model.build import from_model_file
from engine.model.model import model_state
from engine.plan.targets import is_auto
from engine.types import CancelToken, TensorSpec
from engine.weights.compile_cache import Mode

if TYPE_CHECKING:
    from engine.formats import ModelFile

Result = TypeVar("Result")

_KEY_FILE_BYTES = 4096  # far more than any key has


@dataclass(frozen=True, slots=True)
class Decryption:
    """The key of a model's file, and how the file is encrypted.

    encryption: how the file is encrypted, "" for not at all. key: None where none was given. mode:
    that of the file unless the user says another. file: opened already, with that key. nbytes: of
    a model that came by standard input; None for a file.
    """

    file: ModelFile
    encryption: str = ""
    key: bytes | None = field(default=None, repr=False)
    mode: str = str(DecMode.AES_GCM)
    nbytes: int | None = None

    def require_key(self, path: Path) -> None:
        """Raise ModelError for an encrypted file without its key."""
        if self.encryption and self.key is None:
            raise ModelError(
                f"{path}: is encrypted with {self.encryption}; give its key: --dec-key @FILE, "
                f"--dec-key HEX or the variable {KEY_VARIABLE}",
                str(path),
            )

    def drop_key(self) -> None:
        """Open a file that is not encrypted without the key, which is another file's."""
        if not self.encryption:
            self.file.unlock(None, self.mode)


@dataclass(frozen=True, slots=True)
class Built:
    """A model that is ready to run, what it takes and gives, and how long building took.

    backend: the name of the target's. file: what it was built of.
    """

    model: Model
    backend: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    seconds: float
    file: ModelFile = field(repr=False, compare=False)

    @property
    def takes_shapes(self) -> bool:
        """True if the axes of the file may all be fixed and can be others."""
        return self.file.takes_shapes


def build(path: Path, options: BuildOptions, decryption: Decryption) -> Built:
    """Build the model at `path` for the first of the targets that can be had.

    Raises what Model.build_from_file raises, and click.BadParameter for options that cannot be
    understood; KeyboardInterrupt at once, also while a backend compiles.
    """
    decryption.require_key(path)
    context, merged = _recipe_of_one_run(options)
    command = click.get_current_context(silent=True)
    if command is not None and not merged.get("common_context", {}).get("isolate"):
        command.with_resource(witnessed(path))  # to the command's end: predict may crash too
    model = Model()
    state, cancel = model_state(model), CancelToken()
    begin = time.perf_counter()
    with progress() as show, in_options():
        interruptible(
            lambda: from_model_file(state, decryption.file, context, merged, show, cancel), cancel
        )
    seconds = time.perf_counter() - begin
    backend = state.require_built().plan.backend.name
    return Built(model, backend, model.inputs, model.outputs, seconds, decryption.file)


def build_again(built: Built, options: BuildOptions, cancel: CancelToken) -> Built:
    """Build a model once more, in the calling thread and without a word."""
    context, merged = _recipe_of_one_run(options)
    model = Model()
    from_model_file(
        model_state(model), built.file, context, merged, lambda phase, done, total: None, cancel
    )
    return replace(built, model=model)


def _recipe_of_one_run(options: BuildOptions) -> tuple[Context, Config]:
    context, merged = recipe_of(options)
    if "ENGINE_CACHE" not in os.environ and not is_auto(context.target):
        # One run does not pay for an entry that the next may never use. A choice is worth keeping.
        merged.setdefault("common_context", {}).setdefault("compile_cache", str(Mode.READ))
    return context, merged


def recipe_of(options: BuildOptions) -> tuple[Context, Config]:
    """Return the context and the configuration that options stand for.

    Raises click.BadParameter for options that cannot be understood.
    """
    sections = parse_settings(options.settings)
    context = Context()
    set_target(context, options.target)
    context.cpu.thread_num = options.threads
    context.gpu.device_id = context.ascend.device_id = options.device_id
    if options.device_id:
        number_devices(context.target, sections, options.device_id)
    refuse_unknown(sections, context)
    if options.config is not None:
        require_config(options.config, "--config")
    return context, configuration(str(options.config or ""), sections, "build_from_file")


def inputs_of(
    built: Built,
    given: InputOptions,
    shapes: Mapping[str, tuple[int, ...]],
    specs: Sequence[TensorSpec] | None = None,
) -> Inputs:
    """Return the inputs that the options give; a MindIR is resized where they want that.

    specs: what they must fit, if that is less than the model takes.
    An ONNX model has open axes where it is to have other sizes, and another one is a mistake.
    Raises what `collect` raises of the model as it is where it cannot be resized.
    """
    metadata = json.loads(built.model.get_model_info("user_info") or "{}") if given.files else {}
    reader = reader_of(given, metadata)

    def collected(specs: Sequence[TensorSpec]) -> Inputs:
        reader.notes.clear()
        return collect(specs, given.files, shapes, given.fill, given.seed, reader)

    try:
        return collected(built.inputs if specs is None else specs)
    except InputError as refused:
        if not built.takes_shapes:
            raise
        opened = [
            replace(spec, shape=(None,) * len(spec.shape)) if spec.shape else spec
            for spec in built.inputs
        ]
        try:
            # A file, or --shape, says all sizes; an input that has neither keeps the file's.
            named = {name.partition("=")[0] for name in given.files} | set(shapes)
            is_open = len(given.files) > len(named & {spec.name for spec in opened})
            inputs = collected([
                free if is_open or free.name in named else spec
                for spec, free in zip(built.inputs, opened, strict=True)
            ])  # fmt: skip
            fit_to(built, inputs.values())
        except (InputError, AttributeError):  # a value that is no tensor has no shape
            raise refused from None
    was = ", ".join(map(str, built.inputs))
    return replace(inputs, notes=(*inputs.notes, f"note: resized from {was}"), others=iter(()))


def reader_of(given: InputOptions, metadata: Mapping[str, str] | None = None) -> Reader:
    """Return what reads the files of the options' inputs. metadata: the model's own."""
    if given.scale is not None and not math.isfinite(given.scale):
        raise misuse("--scale", f"expected a finite number, got {given.scale:g}")
    wishes = Preparation(
        given.layout,
        given.resize,
        given.scale,
        _numbers(given.mean, "--mean"),
        _numbers(given.std, "--std", is_divisor=True),
    )
    return Reader(wishes, metadata)


def fit_to(built: Built, values: Sequence[Any]) -> None:
    """Resize a MindIR, whose file fixes all sizes, to those of its inputs where they are others.

    Raises InputError, and AttributeError for a value that is no tensor.
    """
    if built.takes_shapes:
        sizes = [[*value.shape] for value in values]
        if sizes != [[*(spec.shape or ())] for spec in built.inputs]:
            built.model.resize(built.model.get_inputs(), sizes)


def _numbers(text: str, option: str, is_divisor: bool = False) -> tuple[float, ...]:
    """Return "0.5,0.5,0.5" as numbers, "" as none."""
    try:
        numbers = tuple(map(float, text.split(","))) if text else ()
    except ValueError:
        numbers = (math.nan,)
    if not all(map(math.isfinite, numbers)) or (is_divisor and 0 in numbers):
        raise misuse(
            option, f"expected a number, or one for each channel as 0.5,0.5,0.5, got {text!r}"
        )
    return numbers


def refuse_unknown(sections: Mapping[str, Mapping[str, str]], context: Context) -> None:
    """Raise a usage error for a setting of --set that nothing reads; a file's are warned of."""
    if not sections:
        return
    from engine.backends import find_target, open_backend
    from engine.plan.options import unknown_setting
    from engine.plan.targets import targets_of

    candidates = []
    for name in targets_of(context)[0]:
        with suppress(BackendError):  # the build says so
            target = find_target(name)
            candidates.append((open_backend(target.backend), target))
    if text := unknown_setting(candidates, sections):
        raise misuse("--set", text)


def absent(path: Path) -> ModelError:
    """Return the error for a model that is not there, with the file that it may have meant."""
    advice = "give the path of a model"
    if str(path) == STANDARD_INPUT:
        return ModelNotFound("standard input is not read by this command; give a file's path", "-")
    if re.match(r"https?:/", str(path)):  # a Path has no two slashes in a row
        return ModelError(f"{path}: is an address; download the model and {advice}", str(path))
    return ModelNotFound(f"{path}: no such file{beside(path) or f'; {advice}'}", str(path))


def _standard_input() -> bytes:
    stream = sys.stdin
    if stream is None or stream.isatty():
        raise ModelError("standard input: is no file or pipe; send a model: ... - < m.onnx", "-")
    data = stream.buffer.read()
    if not data:
        raise ModelError("standard input: empty; expected a model", "-")
    return data


def require_file(path: Path) -> None:
    """Raise ModelError unless `path` is a file that can be opened."""
    if not path.exists():
        raise absent(path)
    if path.is_dir():
        raise ModelError(f"{path}: is a folder; {inside(path)}", str(path))
    if not path.is_file():
        raise ModelError(f"{path}: expected a model's file, got a device or a pipe", str(path))


def require_config(path: Path, option: str) -> None:
    """Raise InputError unless `path` is a file."""
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "no such file"
        raise InputError(f"{path}: {what}; give {option} a configuration file")


def decryption_of(
    path: Path,
    dec_key: str | None = None,
    dec_mode: DecMode | None = None,
    file: ModelFile | None = None,
) -> Decryption:
    """Return how the file at `path` is opened, by the options, the variable and the file itself.

    Raises ModelError where there is no such file, and click.BadParameter for what is no key.
    """
    from engine.formats import ModelFile  # not for every command: it takes a moment

    nbytes: int | None = None
    if str(path) == STANDARD_INPUT:
        data = _standard_input()
        nbytes, file = len(data), ModelFile.of_bytes(data)
    else:
        require_file(path)
    file = file or ModelFile(path)
    encryption = file.encryption
    text, source = dec_key, "--dec-key"
    if text is None and encryption:  # the variable may be set for other models
        text, source = os.environ.get(KEY_VARIABLE) or None, KEY_VARIABLE
    key = None if text is None else parse_key(text, source)
    mode = str(dec_mode or encryption or DecMode.AES_GCM)
    file.unlock(key, mode)
    return Decryption(file, encryption, key, mode, nbytes)


def parse_key(text: str, source: str) -> bytes:
    """Return the key that a hexadecimal text, or "@" and a file with one, stands for.

    No message quotes it.
    """
    if text.startswith("@"):
        name = text[1:]
        try:
            with open(name, "rb") as file:  # a device has no end
                text = file.read(_KEY_FILE_BYTES).decode("ascii", "replace")
        except OSError as error:
            raise misuse(source, f"the file {name!r} cannot be read: {error.strerror}") from error
        source = f"{source} @{name}"
    digits = text.strip()
    if not re.fullmatch(r"([0-9a-fA-F]{2})+", digits):
        raise misuse(
            source,
            f"expected a key in hexadecimal, two digits a byte, got {len(digits):,} characters",
        )
    return bytes.fromhex(digits)


@contextmanager
def in_options() -> Iterator[None]:
    """Let an error speak of --timeout and --device-id, not of the arguments they stand for."""
    try:
        yield
    except (BackendError, DeadlineExceeded, ModelStateError) as error:
        text = own_text(error).replace("timeout_s", "--timeout")
        reworded(error, text.replace("device_id=", "--device-id "))
        raise


def timed(phase: str, predict: Callable[[], Result]) -> tuple[Result, float]:
    """Return what a predict gives, and its seconds; Ctrl-C ends the wait for it."""
    begin = time.perf_counter()
    with waiting(phase), in_options():
        result = interruptible(predict)
    return result, time.perf_counter() - begin


def require_free_input(given: InputOptions, *models: Path | None) -> None:
    """Raise a usage error for an --input that is to read what a model is read from."""
    is_model = any(str(model) == STANDARD_INPUT for model in models)
    named = (text.rpartition("=")[2] for text in given.files)
    if is_model and any(STANDARD_INPUT in text.split(",") for text in named):
        raise misuse("--input", "standard input is the model already; give the input a file")


def require_timeout(seconds: float | None) -> None:
    """Raise a usage error unless --timeout is above 0, or not given."""
    if seconds is not None and not seconds > 0:
        raise misuse("--timeout", f"expected a number of seconds above 0, got {seconds:g}")


def set_target(context: Context, text: str) -> None:
    """Set the targets of --target; a usage error for a name that nothing has."""
    targets = parse_targets(text)
    try:
        context.target = targets
    except ValueError as error:
        raise misuse("--target", own_text(error)) from None


def parse_targets(text: str) -> list[str]:
    """Return "gpu,cpu" as ["gpu", "cpu"]."""
    targets = [part.strip() for part in text.split(",")]
    if not all(targets):
        raise misuse(
            "--target", f"expected targets with commas between, for example gpu,cpu, got {text!r}"
        )
    return targets


def parse_settings(settings: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return "section.key=value" texts as sections; the last wins where a key comes twice."""
    sections: dict[str, dict[str, str]] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        # Keys have dots of their own (ge.exec.precision_mode), sections have none.
        section, dot, key = name.partition(".")
        if not (equals and dot and section.strip() and key.strip()):
            raise misuse(
                "--set",
                f"expected SECTION.KEY=VALUE, for example cpu_context.spin_us=0, got {text!r}",
            )
        sections.setdefault(section.strip(), {})[key.strip()] = value.strip()
    return sections


def parse_shapes(
    shapes: Sequence[str],
    option: str = "--shape",
    form: str = "NAME=SIZE,SIZE,..., for example image=1,3,224,224",
    with_open: bool = False,
) -> dict[str, tuple[int, ...]]:
    """Return "name=1,3,224,224" texts as shapes by input name; "name=" is a scalar.

    "name:1,3,224,224" is the same, and ";" stands between several. option, form: for messages.
    with_open: -1 is a size too.
    """
    found: dict[str, tuple[int, ...]] = {}
    for text in filter(None, map(str.strip, ";".join(shapes).split(";"))):
        name, sizes = _named_sizes(text, with_open)
        if sizes is None:
            raise misuse(option, f"expected {form}, got {text!r}")
        if name in found:
            raise misuse(option, f"expected one shape for each input, got two for {name!r}")
        found[name] = sizes
    return found


def _named_sizes(text: str, with_open: bool) -> tuple[str, tuple[int, ...] | None]:
    """Return the name and the sizes in a text; None for the sizes where it cannot be read."""
    size = r"-?\d+" if with_open else r"\d+"
    # The last sign of the two: names may have them, sizes have none.
    match = re.fullmatch(rf"(.+)[=:]((?:\s*{size}\s*,)*(?:\s*{size})?\s*)", text, re.ASCII)
    if match is None or match[2].rstrip().endswith(","):
        return "", None
    sizes = match[2].strip()
    return match[1], tuple(map(int, sizes.split(","))) if sizes else ()
