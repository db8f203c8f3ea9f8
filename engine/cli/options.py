"""The arguments and options that several commands share.

Options that belong together reach a command as one object: `BuildOptions`, `InputOptions`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import click

from engine.cli.commands import Argument, EnumChoice, Integer, bundle
from engine.cli.completion import files, targets
from engine.cli.inputs import Fill

KEY_VARIABLE = "ENGINE_DEC_KEY"

# A path that is not there or cannot be read is no wrong usage: the commands say so, click does not.
PATH = click.Path(readable=False, path_type=Path)


class DecMode(StrEnum):
    """The ways in which a model can be encrypted."""

    AES_GCM = "AES-GCM"
    AES_CBC = "AES-CBC"
    SM4_CBC = "SM4-CBC"


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """The options of building a model.

    target: names with commas between. threads: 0 fits them to the machine. settings:
    "SECTION.KEY=VALUE" texts. dec_key: hexadecimal, or "@" and a file.
    """

    target: str
    device_id: int = 0
    threads: int = 0
    config: Path | None = None
    settings: tuple[str, ...] = ()
    dec_key: str | None = None
    dec_mode: DecMode | None = None


@dataclass(frozen=True, slots=True)
class InputOptions:
    """The options that say where the inputs of a run come from.

    files: "[NAME=]FILE" texts. shapes: "NAME=SIZES" texts. fill and seed are for the inputs
    without a file.
    """

    files: tuple[str, ...]
    shapes: tuple[str, ...]
    fill: Fill
    seed: int


model = click.argument("model", cls=Argument, metavar="MODEL", type=PATH, help="The model's file.")
input_files = click.option(
    "--input",
    "-i",
    "files",
    multiple=True,
    metavar="[NAME=]FILE",
    help="A .npy, .npz or raw .bin file. An .npz holds arrays by input name; another "
    "file without a name goes to the next input. May be repeated.",
    shell_complete=files,
)
shapes = click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="NAME=SIZES",
    help="The shape of a generated or .bin input, as x=1,3,8,8. May be repeated.",
)
fill = click.option(
    "--fill",
    type=EnumChoice(Fill),
    default=str(Fill.ONES),
    help="What inputs without a file are filled with.",
)
seed = click.option("--seed", type=Integer(0), default=0, metavar="N", help="For --fill random.")
target = click.option(
    "--target",
    default="cpu",
    metavar="TARGET",
    help="Where to run: cpu, gpu, ascend or an installed backend; several, with commas "
    "between, are tried in that order.",
    shell_complete=targets,
)
device_id = click.option(
    "--device-id",
    type=Integer(0),
    default=0,
    metavar="N",
    help="Which GPU or NPU.",
)
threads = click.option(
    "--threads",
    type=Integer(0),
    default=0,
    metavar="N",
    help="Host threads; 0 fits them to the machine.",
)
config = click.option("--config", type=PATH, metavar="FILE", help="A configuration file.")
settings = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="SEC.KEY=VALUE",
    help="One setting of a section, over the file's. May be repeated.",
)
dec_key = click.option(
    "--dec-key",
    metavar="HEX|@FILE",
    help="The key of an encrypted model, in hexadecimal or in a file. Without it the "
    f"variable {KEY_VARIABLE} is read. The shell's history and the list of processes keep "
    "a key that stands on the command line.",
)
dec_mode = click.option(
    "--dec-mode",
    type=EnumChoice(DecMode),
    help="How the model is encrypted; by default what its file says.",
)
json = click.option("--json", is_flag=True, help="Print JSON, for programs.")

model_inputs = bundle("given", InputOptions, input_files, shapes, fill, seed)
model_build = bundle(
    "how", BuildOptions, target, device_id, threads, config, settings, dec_key, dec_mode
)
