"""Caffe models: refused with advice, since no maintained tool reads them."""

from __future__ import annotations

from typing import NoReturn

from engine.converter.job import Job

title = "a Caffe model"


def read(job: Job) -> NoReturn:
    """Raise the ModelError that says what to do."""
    raise job.error(
        "Caffe models are not read; make it ONNX where Caffe's tools are, for "
        "example with the package caffe2onnx, and convert that with FmkType.ONNX (on the command "
        "line: --fmk ONNX)"
    )
