"""Builds the model that a command is given, and parses the texts of its options."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from engine import Context, Model
from engine.cli.interrupt import interruptible
from engine.cli.options import KEY_VARIABLE, BuildOptions, DecMode
from engine.cli.progress import progress
from engine.config.reader import configuration, number_devices
from engine.errors import InputError, ModelError
from engine.formats.files import inside
from engine.types import CancelToken, TensorSpec

if TYPE_CHECKING:
    from engine.formats import ModelFile


@dataclass(frozen=True, slots=True)
class Decryption:
    """The key of a model's file, and how the file is encrypted.

    encryption: how the file is encrypted, "" for not at all. key: None where none was given. mode:
    that of the file unless the user says another. file: opened already, with that key.
    """

    file: ModelFile
    encryption: str = ""
    key: bytes | None = field(default=None, repr=False)
    mode: str = str(DecMode.AES_GCM)

    def require_key(self, path: Path) -> None:
        """Raise ModelError for an encrypted file without its key."""
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
        """Return the devices that the model's nodes run on, each with its number of nodes."""
        counts = Counter(
            (node.backend, node.device, node.provider) for node in self.model.placement
        )
        return [
            {"backend": backend, "device": device, "provider": provider, "nodes": nodes}
            for (backend, device, provider), nodes in counts.items()
        ]


def build(path: Path, options: BuildOptions, decryption: Decryption) -> Built:
    """Build the model at `path` for the first of the targets that can be had.

    Raises what Model.build_from_file raises, and click.BadParameter for options that cannot be
    understood; KeyboardInterrupt at once, also while a backend compiles.
    """
    sections = parse_settings(options.settings)
    context = Context()
    context.target = parse_targets(options.target)
    context.cpu.thread_num = options.threads
    context.gpu.device_id = context.ascend.device_id = options.device_id
    if options.device_id:
        number_devices(context.target, sections, options.device_id)
    decryption.require_key(path)
    if options.config is not None:
        require_config(options.config, "--config")
    path_text = "" if options.config is None else str(options.config)
    merged = configuration(path_text, sections, "build_from_file")
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
    """Return what `Built.where` gives, for people: "cpu:0 (CPUExecutionProvider)"."""
    return ", ".join(
        f"{place['device']} ({place['provider'] or place['backend']})" for place in where
    )


def require_file(path: Path) -> None:
    """Raise ModelError unless `path` is a file that can be opened."""
    if not path.exists():
        raise ModelError(f"{path}: no such file; give the path of a model", str(path))
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
    """Return the key that a hexadecimal text, or "@" and a file with one, stands for.

    No message quotes it.
    """
    if text.startswith("@"):
        name = text[1:]
        try:
            text = Path(name).read_text("ascii", "replace")
        except OSError as error:
            raise click.BadParameter(
                f"the file {name!r} cannot be read: {error.strerror}", param_hint=source
            ) from error
        source = f"{source} @{name}"
    digits = text.strip()
    if not re.fullmatch(r"([0-9a-fA-F]{2})+", digits):
        raise click.BadParameter(
            f"expected a key in hexadecimal, two digits a byte, got {len(digits):,} characters",
            param_hint=source,
        )
    return bytes.fromhex(digits)


def require_timeout(seconds: float | None) -> None:
    """Raise a usage error unless --timeout is above 0, or not given."""
    if seconds is not None and not seconds > 0:
        raise click.BadParameter(
            f"expected a number of seconds above 0, got {seconds:g}", param_hint="--timeout"
        )


def parse_targets(text: str) -> list[str]:
    """Return "gpu,cpu" as ["gpu", "cpu"]."""
    targets = [part.strip() for part in text.split(",")]
    if not all(targets):
        raise click.BadParameter(
            f"expected targets with commas between, for example gpu,cpu, got {text!r}",
            param_hint="--target",
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
            raise click.BadParameter(
                f"expected SECTION.KEY=VALUE, for example cpu_context.spin_us=0, got {text!r}",
                param_hint="--set",
            )
        sections.setdefault(section.strip(), {})[key.strip()] = value.strip()
    return sections


def parse_shapes(shapes: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return "name=1,3,224,224" texts as shapes by input name; "name=" is a scalar."""
    found: dict[str, tuple[int, ...]] = {}
    for text in shapes:
        # The last "=": names may have one, sizes have none.
        name, equals, dims = text.rpartition("=")
        parts = [part.strip() for part in dims.split(",")] if dims.strip() else []
        if not (equals and name and all(part.isdecimal() for part in parts)):
            raise click.BadParameter(
                f"expected NAME=SIZE,SIZE,..., for example image=1,3,224,224, got {text!r}",
                param_hint="--shape",
            )
        if name in found:
            raise click.BadParameter(
                f"expected one shape for each input, got two for {name!r}", param_hint="--shape"
            )
        found[name] = tuple(int(part) for part in parts)
    return found
