"""`engine convert`: a model of another framework, as a file that every backend takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engine.cli import conversion_report
from engine.cli.build import (
    KEY_VARIABLE,
    Config,
    DecMode,
    Json,
    Settings,
    decryption_of,
    parse_key,
    parse_settings,
    require_config,
)
from engine.cli.completion import files, one_of
from engine.cli.interrupt import interruptible
from engine.cli.output import as_json
from engine.cli.progress import progress
from engine.converter import Converter, job_of
from engine.enums import DataType, FmkType, Format
from engine.errors import InputError, ModelError
from engine.model import ModelType
from engine.types import CancelToken

if TYPE_CHECKING:
    from engine.convert.job import Job, Report
    from engine.formats import ModelFile

EPILOG = """[bold]Examples[/bold]

  engine convert model.onnx net

  engine convert net.mindir net_fp16 --fp16 --infer

  engine convert model.pt net --input-shape x:1,3,224,224

  engine convert model.onnx net_int8 --quantize calibration.ini

  engine convert --fmk=TFLITE --modelFile=model.tflite --outputFile=net --fp16=on

[bold]Frameworks[/bold]

  ONNX  what most frameworks export

  MINDIR  MindSpore's; encrypted and split files too

  PYTORCH  torch.export (.pt2) and TorchScript; needs the extra pytorch

  TF  SavedModel folders, frozen graphs, Keras; needs the extra tensorflow

  TFLITE  needs the extra tensorflow

[bold]Note[/bold]

  The flags of MindSpore Lite's converter_lite work as they are: replace its name."""

_TYPES = {
    "FLOAT": DataType.FLOAT32,
    **{name: DataType[name] for name in ("FLOAT16", "INT8", "UINT8", "INT32", "INT64")},
    "DEFAULT": None,
}
_FORMATS = {"NCHW": Format.NCHW, "NHWC": Format.NHWC}
_SUFFIXES = {
    ".onnx": FmkType.ONNX, ".mindir": FmkType.MINDIR, ".pt": FmkType.PYTORCH,
    ".pt2": FmkType.PYTORCH, ".pth": FmkType.PYTORCH, ".pb": FmkType.TF, ".keras": FmkType.TF,
    ".h5": FmkType.TF, ".hdf5": FmkType.TF, ".tflite": FmkType.TFLITE,
}  # fmt: skip
_NOT_READ = {
    "OM": "compiled for one NPU, with nothing left to convert; convert the model it was made of",
    "MSLITE": "a .ms model for devices; convert the model that it was made of",
}


def _hidden(name: str) -> Any:
    return typer.Option(name, hidden=True)


def convert(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="The model's file, or a SavedModel's folder.",
            show_default=False,
            autocompletion=files,
        ),
    ],
    output: Annotated[
        str,
        typer.Argument(
            metavar="OUTPUT",
            help="The file to write; .mindir is added where it is missing.",
            show_default=False,
            autocompletion=files,
        ),
    ],
    fmk: Annotated[
        str,
        typer.Option(
            metavar="FRAMEWORK",
            help="ONNX, MINDIR, PYTORCH, TF or TFLITE. By default the file's content says.",
            show_default=False,
            autocompletion=one_of("ONNX", "MINDIR", "PYTORCH", "TF", "TFLITE"),
        ),
    ] = "",
    input_shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:SIZES",
            help="Shape of an input, as x:1,3,224,224; -1 stays open. May be repeated, or several "
            "with ; between.",
            show_default=False,
        ),
    ] = None,
    fp16: Annotated[bool, typer.Option("--fp16", help="Store weights as float16.")] = False,
    quantize: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A configuration file that says how to quantize to int8.",
            show_default=False,
            autocompletion=files,
            readable=False,
        ),
    ] = None,
    config: Config = None,
    settings: Settings = None,
    input_format: Annotated[
        str,
        typer.Option(
            metavar="LAYOUT",
            help="Of 4-D inputs: NCHW or NHWC.",
            show_default=False,
            autocompletion=one_of(*_FORMATS),
        ),
    ] = "",
    output_format: Annotated[
        str,
        typer.Option(
            metavar="LAYOUT",
            help="Of 4-D outputs: NCHW or NHWC.",
            show_default=False,
            autocompletion=one_of(*_FORMATS),
        ),
    ] = "",
    input_type: Annotated[
        str,
        typer.Option(
            metavar="TYPE",
            help="Of all inputs: FLOAT, FLOAT16, INT8, UINT8, INT32, INT64 or DEFAULT.",
            show_default=False,
            autocompletion=one_of(*_TYPES),
        ),
    ] = "DEFAULT",
    output_type: Annotated[
        str,
        typer.Option(
            metavar="TYPE",
            help="Of all outputs, likewise.",
            show_default=False,
            autocompletion=one_of(*_TYPES),
        ),
    ] = "DEFAULT",
    infer: Annotated[
        bool,
        typer.Option("--infer", help="Run the result once; write it only if it runs."),
    ] = False,
    optimize: Annotated[
        str,
        typer.Option(
            metavar="GOAL",
            help="none, general, gpu_oriented, ascend_oriented[:910b]; noted in the file, changes "
            "nothing else.",
        ),
    ] = "general",
    save_type: Annotated[
        str, typer.Option(metavar="TYPE", help="MINDIR, or MINDIR_LITE for a file named .ms.")
    ] = "MINDIR",
    encrypt_key: Annotated[
        str,
        typer.Option(
            metavar="HEX|@FILE",
            help="Encrypt the result: 16 bytes as 32 hexadecimal characters, or a file with them.",
            show_default=False,
        ),
    ] = "",
    decrypt_key: Annotated[
        str | None,
        typer.Option(
            "--decrypt-key",
            "--dec-key",
            metavar="HEX|@FILE",
            help=f"Of an encrypted MindIR. Without it the variable {KEY_VARIABLE} is read.",
            show_default=False,
        ),
    ] = None,
    decrypt_mode: Annotated[
        DecMode | None,
        typer.Option(
            "--decrypt-mode",
            "--dec-mode",
            help="How it is encrypted; by default what its file says.",
            show_default=False,
        ),
    ] = None,
    weight_file: Annotated[str, _hidden("--weight-file")] = "",
    device: Annotated[str, _hidden("--device")] = "",
    encryption: Annotated[bool | None, _hidden("--encryption/--no-encryption")] = None,
    train_model: Annotated[bool, _hidden("--train-model")] = False,
    optimize_transformer: Annotated[bool, _hidden("--optimize-transformer")] = False,
    json: Json = False,
) -> None:
    """Convert a model to ONNX in a file that Model reads, and say what was done.

    What is not asked for stays as it is in the model.
    """
    converter = Converter()
    _assign(converter, "optimize", optimize, "--optimize")
    if device:
        _assign(converter, "device", device, "--device")
    save = _choice(save_type, {each.name: each for each in ModelType}, "--save-type")
    converter.save_type = save
    converter.input_shape = _shapes(input_shape or [])
    converter.weight_fp16 = fp16
    converter.infer = infer
    converter.enable_encryption = bool(encrypt_key) if encryption is None else encryption
    if encrypt_key:
        converter.encrypt_key = parse_key(encrypt_key, "--encrypt-key").hex()
    elif converter.enable_encryption:
        raise typer.BadParameter(
            "expected --encrypt-key (--encryptKey) as well", param_hint="--encryption"
        )
    from engine.formats import ModelFile  # not for every command: it takes a moment

    file = ModelFile(model)
    framework = _framework(fmk, file)
    changes: dict[str, Any] = {
        "file": file,
        "input_format": _choice(input_format, {"": None, **_FORMATS}, "--input-format"),
        "output_format": _choice(output_format, {"": None, **_FORMATS}, "--output-format"),
        "input_dtype": _choice(input_type, _TYPES, "--input-type"),
        "output_dtype": _choice(output_type, _TYPES, "--output-type"),
    }
    if Path(model).is_file():
        decryption = decryption_of(Path(model), decrypt_key, decrypt_mode, file)
        converter.decrypt_mode = decryption.mode
        converter.decrypt_key = "" if decryption.key is None else decryption.key.hex()
    sections = _sections(config, quantize, settings)
    job = replace(job_of(converter, framework, model, output, weight_file, sections), **changes)
    for name, asked in (("trainModel", train_model), ("optimizeTransformer", optimize_transformer)):
        if asked:
            job = replace(job, notes=(*job.notes, f"{name} has no effect on this conversion"))
    report = _run(job)
    if json:
        as_json(conversion_report.values(job, report))
    else:
        conversion_report.show(job, report)


def _run(job: Job) -> Report:
    from engine.convert import convert

    cancel = CancelToken()
    with progress() as show:
        return interruptible(lambda: convert(job.watched(show, cancel)), cancel)


# ------------------------------------------------------------------------------------ what is asked


def _assign(converter: Converter, name: str, value: str, option: str) -> None:
    try:
        setattr(converter, name, value)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _choice(text: str, choices: Mapping[str, Any], option: str) -> Any:
    if text.upper() not in choices:
        listed = ", ".join(filter(None, choices))
        raise typer.BadParameter(f"expected one of {listed}, got {text!r}", param_hint=option)
    return choices[text.upper()]


def _framework(text: str, file: ModelFile) -> FmkType:
    """Return the framework by its name, else by the file's content."""
    path = file.path
    assert path is not None
    source = str(path)
    if text.upper() in _NOT_READ:
        raise ModelError(f"{source}: {text.upper()} is {_NOT_READ[text.upper()]}", source)
    if not path.exists():
        raise ModelError(f"{source}: no such file; give the path of a model", source)
    if text:
        found: FmkType = _choice(text, {each.name: each for each in FmkType}, "--fmk")
        return found
    from engine.convert.sources import framework_of
    from engine.formats import kinds

    # Where the content does not tell, the reader that the name asks for says what is wrong.
    likely = framework_of(file) or _SUFFIXES.get(path.suffix.lower())
    if likely is None:
        what, advice = kinds.FOREIGN[file.kind]
        raise ModelError(
            f"{source}: is {what}; expected a model of ONNX, MindIR, PyTorch, TensorFlow, Keras or "
            f"TensorFlow Lite; {advice}",
            source,
        )
    return likely


def _shapes(texts: list[str]) -> dict[str, list[int]]:
    """ "x:1,3;y:2" texts as shapes by input name; "x:" is a scalar."""
    found: dict[str, list[int]] = {}
    for text in filter(None, (part.strip() for each in texts for part in each.split(";"))):
        name, colon, sizes = text.rpartition(":")  # the last: names may have one
        if name in found:
            raise typer.BadParameter(
                f"expected one shape for each input, got two for {name!r}",
                param_hint="--input-shape",
            )
        try:
            if not colon or not name:
                raise ValueError
            found[name] = [int(part) for part in sizes.split(",")] if sizes.strip() else []
        except ValueError:
            raise typer.BadParameter(
                f"expected NAME:SIZE,SIZE,..., for example x:1,3,224,224, got {text!r}",
                param_hint="--input-shape",
            ) from None
    return found


def _sections(
    config: Path | None, quantize: Path | None, settings: list[str] | None
) -> dict[str, dict[str, str]]:
    """The configuration: --set over --quantize over --config."""
    from engine.config.reader import configuration

    found: dict[str, dict[str, str]] = {}
    for path, option in ((config, "--config"), (quantize, "--quantize")):
        if path is not None:
            require_config(path, option)
            for section, keys in configuration(str(path), None, "convert").items():
                found[section] = {**found.get(section, {}), **keys}
    if quantize is not None:
        from engine.convert.quantize import asked
        from engine.convert.quantize.settings import SECTIONS
        from engine.options import nearest

        if not asked(found):
            near = next((nearest(each, SECTIONS) for each in found if nearest(each, SECTIONS)), "")
            hint = f"did you mean [{near}]?" if near else "for example [common_quant_param]"
            raise InputError(
                f"{quantize}: expected a section that says how to quantize, got: "
                f"{', '.join(found) or 'none'}; {hint}"
            )
    return configuration("", {**found, **_over(found, parse_settings(settings or []))}, "convert")


def _over(
    sections: Mapping[str, Mapping[str, str]], over: Mapping[str, Mapping[str, str]]
) -> dict[str, dict[str, str]]:
    return {name: {**sections.get(name, {}), **keys} for name, keys in over.items()}
