"""The arguments and options that several commands share.

Options that belong together reach a command as one object: `BuildOptions`, `InputOptions`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import click

from engine.cli.commands import Argument, EnumChoice, Function, Integer, ModelPath, bundle
from engine.cli.completion import files, set_keys, targets
from engine.cli.pictures import Layout, Resize
from engine.host.child import KEY_VARIABLE as KEY_VARIABLE
from engine.report.filled import Fill

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

    target: str = "cpu"
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
    without a file. layout, resize, scale, mean and std are for images; mean and std are texts.
    """

    files: tuple[str, ...]
    shapes: tuple[str, ...]
    fill: Fill
    seed: int
    layout: Layout | None = None
    resize: Resize = Resize.STRETCH
    scale: float | None = None
    mean: str = ""
    std: str = ""


model = click.argument(
    "model",
    cls=Argument,
    metavar="MODEL",
    type=ModelPath(),
    help="The model's file, a folder with one model, or - for standard input.",
)
input_files = click.option(
    "--input",
    "-i",
    "files",
    multiple=True,
    metavar="[NAME=]FILE",
    help="A .npy, .npz, raw .bin, .csv, .json, .txt or image file, or - for standard input. "
    "An .npz, a JSON object and a CSV with a header hold arrays by input name; another file "
    "without a name goes to the next input. Files with commas between, or a folder of images "
    "or .npy files, are a batch. May be repeated.",
    shell_complete=files,
)
shapes = click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="NAME=SIZES",
    help="The shape of a generated, .bin or image input, as x=1,3,8,8 or x:1,3,8,8. May be "
    "repeated.",
)


def _fill(default: Fill) -> Function:
    return click.option(
        "--fill",
        type=EnumChoice(Fill),
        default=str(default),
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
    "--device-id", type=Integer(0), default=0, metavar="N", help="Which GPU or NPU."
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
    shell_complete=set_keys,
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

_of_images = (
    click.option(
        "--layout",
        type=EnumChoice(Layout),
        help="Of an image's input; by default what its shape says.",
    ),
    click.option(
        "--resize",
        type=EnumChoice(Resize),
        default=str(Resize.STRETCH),
        help="How an image of another size is fitted.",
    ),
    click.option(
        "--scale",
        type=float,
        metavar="X",
        help="What an image's values, 0 to 255, are multiplied by; by default the range that the "
        "model's metadata says, else 0 to 1 for floats and 0 to 255 for uint8.",
    ),
    click.option(
        "--mean",
        default="",
        show_default=False,
        metavar="X[,X,X]",
        help="What is then subtracted, for all channels or each.",
    ),
    click.option(
        "--std", default="", show_default=False, metavar="X[,X,X]", help="What is then divided by."
    ),
)


def inputs_filled(default: Fill) -> Function:
    """Return the options of inputs, of which those without a file are filled so by default."""
    return bundle("given", InputOptions, input_files, shapes, _fill(default), seed, *_of_images)


model_inputs = inputs_filled(Fill.ONES)
model_build = bundle(
    "how", BuildOptions, target, device_id, threads, config, settings, dec_key, dec_mode
)
