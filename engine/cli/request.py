"""The options of `engine convert`, and the conversion that they ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from engine.cli import options
from engine.cli.build import (
    absent,
    decryption_of,
    parse_key,
    parse_settings,
    parse_shapes,
    require_config,
)
from engine.cli.commands import Argument, EnumChoice, bundle
from engine.cli.completion import one_of
from engine.cli.converter_lite import OUTPUT_IS_LITERAL
from engine.cli.hints import hint, misuse
from engine.cli.options import KEY_VARIABLE, DecMode
from engine.converter.converter import SUFFIXES, Converter, job_of
from engine.errors import InputError, ModelError
from engine.model import ModelType
from engine.tensor.enums import DataType, Format

if TYPE_CHECKING:
    from engine.converter.job import Framework, Job
    from engine.formats import ModelFile

_TYPES = {
    "FLOAT": DataType.FLOAT32,
    **{name: DataType[name] for name in ("FLOAT16", "INT8", "UINT8", "INT32", "INT64")},
    "DEFAULT": None,
}
_FORMATS = {"NCHW": Format.NCHW, "NHWC": Format.NHWC}
_NOT_READ = {
    "OM": "compiled for one NPU, with nothing left to convert; convert the model it was made of",
    "MSLITE": "a .ms model for devices; convert the model that it was made of",
}


@dataclass(frozen=True, slots=True)
class Request:
    """The options of one conversion, as texts; `job` reads them.

    encryption: None where only the key says so. weight_file, device, train_model and
    optimize_transformer are converter_lite's alone.
    """

    model: str
    output: str
    fmk: str
    input_shape: tuple[str, ...]
    fp16: bool
    quantize: Path | None
    config: Path | None
    settings: tuple[str, ...]
    input_format: str
    output_format: str
    input_type: str
    output_type: str
    infer: bool
    optimize: str
    save_type: str
    encrypt_key: str
    decrypt_key: str | None
    decrypt_mode: DecMode | None
    weight_file: str
    device: str
    encryption: bool | None
    train_model: bool
    optimize_transformer: bool

    def job(self) -> Job:
        """Return the conversion. Raises ModelError, InputError, and click.BadParameter."""
        converter = self._converter()
        from engine.formats import ModelFile  # not for every command: it takes a moment

        file = ModelFile(self.model)
        framework = _framework(self.fmk, file)
        changes: dict[str, Any] = {
            "file": file,
            "input_format": _choice(self.input_format, {"": None, **_FORMATS}, "--input-format"),
            "output_format": _choice(self.output_format, {"": None, **_FORMATS}, "--output-format"),
            "input_dtype": _choice(self.input_type, _TYPES, "--input-type"),
            "output_dtype": _choice(self.output_type, _TYPES, "--output-type"),
        }
        if Path(self.model).is_file():
            decryption = decryption_of(Path(self.model), self.decrypt_key, self.decrypt_mode, file)
            mode: Any = decryption.mode  # the option's choices, or what the file says
            converter.decrypt_mode = mode
            converter.decrypt_key = "" if decryption.key is None else decryption.key.hex()
        sections = _sections(self.config, self.quantize, self.settings)
        suffix = SUFFIXES[converter.save_type]
        output = _output_file(self.output, Path(self.model), suffix)
        if output is not None:
            changes["output_file"] = output
        job = job_of(
            converter, framework, self.model, str(output or self.output), self.weight_file, sections
        )
        ignored = {"trainModel": self.train_model, "optimizeTransformer": self.optimize_transformer}
        notes = [f"{name} has no effect on this conversion" for name, on in ignored.items() if on]
        return replace(job, notes=(*job.notes, *notes), **changes)

    def _converter(self) -> Converter:
        """Return a Converter with all but the decryption set, which needs the model's file."""
        converter = Converter()
        _assign(converter, "optimize", self.optimize, "--optimize")
        if self.device:
            _assign(converter, "device", self.device, "--device")
        saves = {kind.name: kind for kind in ModelType}
        converter.save_type = _choice(self.save_type, saves, "--save-type")
        converter.input_shape = _shapes(self.input_shape)
        converter.weight_fp16 = self.fp16
        converter.infer = self.infer
        is_encrypted = bool(self.encrypt_key) if self.encryption is None else self.encryption
        converter.enable_encryption = is_encrypted
        if self.encrypt_key:
            converter.encrypt_key = parse_key(self.encrypt_key, "--encrypt-key").hex()
        elif is_encrypted:
            raise misuse("--encryption", "expected --encrypt-key (--encryptKey) as well")
        return converter


def _text(name: str, metavar: str, help: str, values: Sequence[str] = ()) -> Any:
    """Return an option that takes a text, "" by default; `values` complete it."""
    return click.option(
        name,
        default="",
        show_default=False,
        metavar=metavar,
        help=help,
        shell_complete=one_of(lambda: values),
    )


def _layout(name: str, help: str) -> Any:
    return _text(name, "LAYOUT", help, tuple(_FORMATS))


def _type(name: str, help: str) -> Any:
    return click.option(
        name,
        default="DEFAULT",
        show_default=False,
        metavar="TYPE",
        help=help,
        shell_complete=one_of(lambda: _TYPES),
    )


def _flag(name: str, help: str = "", hidden: bool = False) -> Any:
    return click.option(name, is_flag=True, help=help, hidden=hidden)


_SOURCE = click.Path(readable=False)

request_options = bundle(
    "request",
    Request,
    click.argument(
        "model",
        cls=Argument,
        metavar="MODEL",
        type=_SOURCE,
        help="The model's file, or a SavedModel's folder.",
    ),
    click.argument(
        "output",
        cls=Argument,
        metavar="OUTPUT",
        type=_SOURCE,
        help="The file to write, or a folder for it; .mindir is added where it has no ending of "
        "a model's file.",
    ),
    _text(
        "--fmk",
        "FRAMEWORK",
        "ONNX, MINDIR, PYTORCH, TF, TFLITE, or another source that is installed. By default the "
        "file's content says.",
        ("ONNX", "MINDIR", "PYTORCH", "TF", "TFLITE"),
    ),
    click.option(
        "--input-shape",
        multiple=True,
        metavar="NAME:SIZES",
        help="Shape of an input, as x:1,3,224,224 or x=1,3,224,224; -1 stays open. May be "
        "repeated, or several with ; between.",
    ),
    _flag("--fp16", "Store weights as float16."),
    click.option(
        "--quantize",
        type=options.PATH,
        metavar="FILE",
        help="A configuration file that says how to quantize to int8.",
    ),
    options.config,
    options.settings,
    _layout("--input-format", "Of 4-D inputs: NCHW or NHWC."),
    _layout("--output-format", "Of 4-D outputs: NCHW or NHWC."),
    _type("--input-type", "Of all inputs: FLOAT, FLOAT16, INT8, UINT8, INT32, INT64 or DEFAULT."),
    _type("--output-type", "Of all outputs, likewise."),
    _flag("--infer", "Run the result once; write it only if it runs."),
    click.option(
        "--optimize",
        default="general",
        metavar="GOAL",
        help="none, general, gpu_oriented, ascend_oriented[:910b]; noted in the file, changes "
        "nothing else.",
    ),
    click.option(
        "--save-type",
        default="MINDIR",
        metavar="TYPE",
        help="MINDIR, or MINDIR_LITE for a file named .ms.",
    ),
    _text(
        "--encrypt-key",
        "HEX|@FILE",
        "Encrypt the result: 16 bytes as 32 hexadecimal characters, or a file with them.",
    ),
    click.option(
        "--decrypt-key",
        "--dec-key",
        "decrypt_key",
        metavar="HEX|@FILE",
        help=f"Of an encrypted MindIR. Without it the variable {KEY_VARIABLE} is read.",
    ),
    click.option(
        "--decrypt-mode",
        "--dec-mode",
        "decrypt_mode",
        type=EnumChoice(DecMode),
        help="How it is encrypted; by default what its file says.",
    ),
    click.option("--weight-file", default="", hidden=True),
    click.option("--device", default="", hidden=True),
    click.option("--encryption/--no-encryption", default=None, hidden=True),
    _flag("--train-model", hidden=True),
    _flag("--optimize-transformer", hidden=True),
)


def _assign(converter: Converter, name: str, value: str, option: str) -> None:
    try:
        setattr(converter, name, value)
    except ValueError as error:
        raise misuse(option, str(error)) from None


def _choice(text: str, choices: Mapping[str, Any], option: str) -> Any:
    if text.upper() not in choices:
        listed = ", ".join(filter(None, choices))
        near = hint(text, filter(None, choices))
        raise misuse(option, f"expected one of {listed}, got {text!r}{near}")
    return choices[text.upper()]


def _framework(text: str, file: ModelFile) -> Framework:
    """Return the framework of that name, else the one that the file's content tells."""
    path = file.path
    assert path is not None
    source = str(path)
    if text.upper() in _NOT_READ:
        raise ModelError(f"{source}: {text.upper()} is {_NOT_READ[text.upper()]}", source)
    if not path.exists():
        raise absent(path)
    from engine.converter.sources import framework_of, frameworks
    from engine.formats import kinds

    if text:
        found: Framework = _choice(text, frameworks(), "--fmk")
        return found
    # Where the content does not tell, the reader that the name asks for says what is wrong.
    likely = framework_of(file, by_name=True)
    if likely is None:
        what, advice = kinds.FOREIGN[file.kind]
        raise ModelError(
            f"{source}: is {what}; expected a model of ONNX, MindIR, PyTorch, TensorFlow, Keras or "
            f"TensorFlow Lite; {advice}",
            source,
        )
    return likely


def _shapes(texts: Sequence[str]) -> dict[str, list[int]]:
    """Return "x:1,3;y:2" texts as shapes by input name; "x:" is a scalar."""
    form = "NAME:SIZE,SIZE,..., for example x:1,3,224,224"
    shapes = parse_shapes(texts, "--input-shape", form, with_open=True)
    return {name: list(sizes) for name, sizes in shapes.items()}


def _output_file(text: str, model: Path, suffix: str) -> Path | None:
    """Return the file that a user means by OUTPUT; None where the Converter's own rule does.

    A folder takes a file of the model's name. The ending of a model's file stays as it was written.
    """
    context = click.get_current_context(silent=True)
    if context is not None and context.meta.get(OUTPUT_IS_LITERAL):
        return None
    path = Path(text)
    if text and path.is_dir():
        name = path / (model.resolve().stem + suffix)
        # The model itself may lie there; then it would be replaced.
        if not name.exists() or not model.exists() or not name.samefile(model):
            return name
        raise ModelError(
            f"output {text!r}: is the model's own folder, where {name.name!r} is the model itself; "
            "name a file in it"
        )
    return path if path.suffix in (".onnx", ".mindir", ".ms") and path.stem else None


def _sections(
    config: Path | None, quantize: Path | None, settings: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Return the configuration: --set over --quantize over --config."""
    from engine.config.reader import configuration

    found: dict[str, dict[str, str]] = {}
    for path, option in ((config, "--config"), (quantize, "--quantize")):
        if path is not None:
            require_config(path, option)
            found = _over(found, configuration(str(path), None, "convert"))
    if quantize is not None:
        from engine.converter.quantize import asked
        from engine.converter.quantize.settings import SECTIONS
        from engine.options import nearest

        if not asked(found):
            near = next(filter(None, (nearest(name, SECTIONS) for name in found)), "")
            hint = f"did you mean [{near}]?" if near else "for example [common_quant_param]"
            raise InputError(
                f"{quantize}: expected a section that says how to quantize, got: "
                f"{', '.join(found) or 'none'}; {hint}"
            )
    over = parse_settings(settings)
    if over:
        from engine.converter.unused_settings import unknown

        if text := unknown(over):
            raise misuse("--set", text)
    return configuration("", _over(found, over), "convert")


def _over(
    sections: dict[str, dict[str, str]], over: dict[str, dict[str, str]]
) -> dict[str, dict[str, str]]:
    own = {name: {**sections.get(name, {}), **keys} for name, keys in over.items()}
    return {**sections, **own}
