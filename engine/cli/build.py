"""What the commands that build a model share: their options, and the model built from them."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engine import Context, Model
from engine.cli.completion import files, targets
from engine.cli.inputs import Fill
from engine.cli.interrupt import interruptible
from engine.cli.progress import progress
from engine.config.reader import configuration, number_devices
from engine.errors import InputError, ModelError
from engine.formats.files import inside
from engine.types import CancelToken, TensorSpec

if TYPE_CHECKING:
    from engine.formats import ModelFile

KEY_VARIABLE = "ENGINE_DEC_KEY"

ModelPath = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        help="The model's file.",
        show_default=False,
        autocompletion=files,
        readable=False,  # not typer's to say: a file that cannot be read is no wrong usage
    ),
]
InputFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "-i",
        metavar="[NAME=]FILE",
        help="A .npy, .npz or raw .bin file. An .npz holds arrays by input name; another "
        "file without a name goes to the next input. May be repeated.",
        show_default=False,
    ),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=SIZES",
        help="The shape of a generated or .bin input, as x=1,3,8,8. May be repeated.",
        show_default=False,
    ),
]
FillWith = Annotated[Fill, typer.Option(help="What inputs without a file are filled with.")]
Seed = Annotated[int, typer.Option(min=0, metavar="N", help="For --fill random.")]
Target = Annotated[
    str,
    typer.Option(
        metavar="TARGET",
        help="Where to run: cpu, gpu, ascend or an installed backend; several, with commas "
        "between, are tried in that order.",
        autocompletion=targets,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A configuration file.",
        show_default=False,
        autocompletion=files,
        readable=False,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SEC.KEY=VALUE",
        help="One setting of a section, over the file's. May be repeated.",
        show_default=False,
    ),
]
Threads = Annotated[
    int, typer.Option(min=0, metavar="N", help="Host threads; 0 fits them to the machine.")
]


class DecMode(StrEnum):
    """How a model is encrypted."""

    AES_GCM = "AES-GCM"
    AES_CBC = "AES-CBC"
    SM4_CBC = "SM4-CBC"


DecKey = Annotated[
    str | None,
    typer.Option(
        "--dec-key",
        metavar="HEX|@FILE",
        help=f"The key of an encrypted model, in hexadecimal or in a file. Without it the "
        f"variable {KEY_VARIABLE} is read. The shell's history and the list of processes keep "
        "a key that stands on the command line.",
        show_default=False,
    ),
]
DecModeOption = Annotated[
    DecMode | None,
    typer.Option(
        "--dec-mode",
        help="How the model is encrypted; by default what its file says.",
        show_default=False,
    ),
]
DeviceId = Annotated[int, typer.Option(min=0, metavar="N", help="Which GPU or NPU.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@dataclass(frozen=True, slots=True)
class Decryption:
    """What opens a model's file.

    encryption: how the file is encrypted, "" for not at all. key: None where none was given. mode:
    that of the file unless the user says another. file: opened already, with that key.
    """

    file: ModelFile
    encryption: str = ""
    key: bytes | None = field(default=None, repr=False)
    mode: str = str(DecMode.AES_GCM)

    def require_key(self, path: Path) -> None:
        """ModelError for an encrypted file without its key."""
        if self.encryption and self.key is None:
            raise ModelError(
                f"{path}: is encrypted with {self.encryption}; give its key: --dec-key @FILE, "
                f"--dec-key HEX or the variable {KEY_VARIABLE}",
                str(path),
            )


@dataclass(frozen=True, slots=True)
class Built:
    """A model that is ready to run, what it takes and gives, and how long building took."""

    model: Model
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    seconds: float

    def where(self) -> list[dict[str, Any]]:
        """The devices that the model's nodes run on, each with its number of nodes."""
        counts: dict[tuple[str, str, str], int] = {}
        for each in self.model.placement:
            key = (each.backend, each.device, each.provider)
            counts[key] = counts.get(key, 0) + 1
        return [
            {"backend": backend, "device": device, "provider": provider, "nodes": nodes}
            for (backend, device, provider), nodes in counts.items()
        ]


def build(
    path: Path,
    target: str,
    config: Path | None = None,
    settings: list[str] | None = None,
    threads: int = 0,
    device_id: int = 0,
    decryption: Decryption | None = None,
) -> Built:
    """Build the model at `path` for the first of the targets that can be had.

    decryption: of an encrypted one; None stands for what `decryption_of` finds without options.

    Raises what Model.build_from_file raises, and typer.BadParameter for options that cannot be
    understood; KeyboardInterrupt at once, also while a backend compiles.
    """
    sections = parse_settings(settings or [])
    context = Context()
    context.target = parse_targets(target)
    context.cpu.thread_num = threads
    context.gpu.device_id = context.ascend.device_id = device_id
    if device_id:
        number_devices(context.target, sections, device_id)
    decryption = decryption or decryption_of(path)
    decryption.require_key(path)
    if config is not None:
        require_config(config, "--config")
    merged = configuration("" if config is None else str(config), sections, "build_from_file")
    model = Model()
    cancel = CancelToken()
    begin = time.perf_counter()
    with progress() as show:
        interruptible(
            lambda: model._build_file(decryption.file, context, merged, show, cancel), cancel
        )
    seconds = time.perf_counter() - begin
    return Built(model, model.input_specs, model.output_specs, seconds)


def devices_text(where: list[dict[str, Any]]) -> str:
    """What `Built.where` gives, for people: "cpu:0 (CPUExecutionProvider)"."""
    return ", ".join(f"{each['device']} ({each['provider'] or each['backend']})" for each in where)


def require_file(path: Path) -> None:
    """ModelError unless `path` is a file that can be opened."""
    if not path.exists():
        raise ModelError(f"{path}: no such file; give the path of a model", str(path))
    if path.is_dir():
        raise ModelError(f"{path}: is a folder; {inside(path)}", str(path))
    if not path.is_file():
        raise ModelError(f"{path}: expected a model's file, got a device or a pipe", str(path))


def require_config(path: Path, option: str) -> None:
    """InputError unless `path` is a file."""
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "no such file"
        raise InputError(f"{path}: {what}; give {option} a configuration file")


def decryption_of(
    path: Path,
    dec_key: str | None = None,
    dec_mode: DecMode | None = None,
    file: ModelFile | None = None,
) -> Decryption:
    """Find what opens the file at `path`: of the options, the variable and the file itself.

    file: where it has been opened already.
    Raises ModelError where there is no such file, and typer.BadParameter for what is no key.
    """
    from engine.formats import ModelFile  # not for every command: it takes a moment

    require_file(path)
    file = file or ModelFile(path)
    encryption = file.encryption
    text, source = dec_key, "--dec-key"
    if text is None and encryption:  # the variable may be set for other models
        text, source = os.environ.get(KEY_VARIABLE) or None, KEY_VARIABLE
    key = None if text is None else parse_key(text, source)
    mode = str(dec_mode or encryption or DecMode.AES_GCM)
    file.unlock(key, mode)
    return Decryption(file, encryption, key, mode)


def parse_key(text: str, source: str) -> bytes:
    """What a hexadecimal text, or "@" and a file with one, stands for. No message quotes it."""
    if text.startswith("@"):
        name = text[1:]
        try:
            text = Path(name).read_text("ascii", "replace")
        except OSError as error:
            raise typer.BadParameter(
                f"the file {name!r} cannot be read: {error.strerror}", param_hint=source
            ) from error
        source = f"{source} @{name}"
    digits = text.strip()
    if not re.fullmatch(r"([0-9a-fA-F]{2})+", digits):
        raise typer.BadParameter(
            f"expected a key in hexadecimal, two digits a byte, got {len(digits):,} characters",
            param_hint=source,
        )
    return bytes.fromhex(digits)


def require_timeout(seconds: float | None) -> None:
    """A usage error unless --timeout is above 0, or not given."""
    if seconds is not None and not seconds > 0:
        raise typer.BadParameter(
            f"expected a number of seconds above 0, got {seconds:g}", param_hint="--timeout"
        )


def parse_targets(text: str) -> list[str]:
    """ "gpu,cpu" as ["gpu", "cpu"]."""
    targets = [part.strip() for part in text.split(",")]
    if not all(targets):
        raise typer.BadParameter(
            f"expected targets with commas between, for example gpu,cpu, got {text!r}",
            param_hint="--target",
        )
    return targets


def parse_settings(settings: list[str]) -> dict[str, dict[str, str]]:
    """ "section.key=value" texts as sections; the last one wins where a key comes twice."""
    sections: dict[str, dict[str, str]] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        # Keys have dots of their own (ge.exec.precision_mode), sections have none.
        section, dot, key = name.partition(".")
        if not (equals and dot and section.strip() and key.strip()):
            raise typer.BadParameter(
                f"expected SECTION.KEY=VALUE, for example cpu_context.spin_us=0, got {text!r}",
                param_hint="--set",
            )
        sections.setdefault(section.strip(), {})[key.strip()] = value.strip()
    return sections


def parse_shapes(shapes: list[str]) -> dict[str, tuple[int, ...]]:
    """ "name=1,3,224,224" texts as shapes by input name; "name=" is a scalar."""
    found: dict[str, tuple[int, ...]] = {}
    for text in shapes:
        # The last "=": names may have one, sizes have none.
        name, equals, dims = text.rpartition("=")
        parts = [part.strip() for part in dims.split(",")] if dims.strip() else []
        if not (equals and name and all(part.isdecimal() for part in parts)):
            raise typer.BadParameter(
                f"expected NAME=SIZE,SIZE,..., for example image=1,3,224,224, got {text!r}",
                param_hint="--shape",
            )
        if name in found:
            raise typer.BadParameter(
                f"expected one shape for each input, got two for {name!r}", param_hint="--shape"
            )
        found[name] = tuple(int(part) for part in parts)
    return found
