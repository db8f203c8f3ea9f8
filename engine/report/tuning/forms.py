"""The model quantized by the converter, where the user allows an error."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from engine.errors import ModelError
from engine.formats import ModelFile
from engine.formats.opened import OpenedSource
from engine.tensor.enums import FmkType
from engine.types import CancelToken
from engine.wings import wing

FORMS: Mapping[str, Mapping[str, str]] = {
    "dynamic-int8": {"quant_type": "DYNAMIC_QUANT"},
    "weights-int8": {"quant_type": "WEIGHT_QUANT"},
    "weights-int4": {"quant_type": "WEIGHT_QUANT", "bit_num": "4"},
}
"""Forms by name, with what [common_quant_param] says for each."""


class Forms:
    """The forms of one model. folder: for their files, each written when it is asked for."""

    def __init__(self, path: str, folder: str) -> None:
        self._path = path
        self._folder = Path(folder)
        self._files: dict[str, ModelFile] = {}

    def path(self, form: str, cancel: CancelToken | None = None) -> str:
        """Return the path of a form's file; the model's own for "".

        cancel: ends the conversion. Raises ModelError, Cancelled.
        """
        if not form:
            return self._path
        found = self._found(form)
        return found[0] if found else self._converted(form, cancel)

    def source(self, form: str) -> OpenedSource:
        """Return a form, opened. Raises ModelError."""
        if form not in self._files:
            self._files[form] = ModelFile(Path(self.path(form)))
        return self._files[form]()

    def _found(self, form: str) -> list[str]:
        return [str(path) for path in self._folder.glob(f"{form}.*")]

    def _converted(self, form: str, cancel: CancelToken | None) -> str:
        converter = wing("Converter")()
        converter.set_config_info("common_quant_param", dict(FORMS[form]))
        with redirect_stdout(StringIO()):  # its report is for who converts
            converter.convert(FmkType.ONNX, self._path, str(self._folder / form), cancel=cancel)
        found = self._found(form)
        if not found:
            raise ModelError(f"{self._path}: the converter wrote no model for {form}", self._path)
        return found[0]
