"""`engine convert`: turns a model of another framework into a file that every backend takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from engine.cli import conversion_report, options
from engine.cli.converter_lite import ConverterLiteCommand
from engine.cli.interrupt import interruptible
from engine.cli.output import as_json
from engine.cli.progress import progress
from engine.cli.request import Request, request_options
from engine.types import CancelToken

if TYPE_CHECKING:
    from engine.converter.job import Job, Report

EPILOG = """\b
Examples:
  engine convert model.onnx net
  engine convert net.mindir net_fp16 --fp16 --infer
  engine convert model.pt net --input-shape x:1,3,224,224
  engine convert model.onnx net_int8 --quantize calibration.ini
  engine convert --fmk=TFLITE --modelFile=net.tflite --outputFile=net --fp16=on

\b
Frameworks:
  ONNX     what most frameworks export
  MINDIR   MindSpore's; encrypted and split files too
  PYTORCH  torch.export (.pt2) and TorchScript; needs the extra pytorch
  TF       SavedModel folders, frozen graphs, Keras; needs the extra
           tensorflow
  TFLITE   needs the extra tensorflow

The flags of MindSpore Lite's converter_lite work as they are: replace its name."""


@click.command("convert", cls=ConverterLiteCommand, epilog=EPILOG)
@request_options
@options.json
def convert(request: Request, json: bool) -> None:
    """Convert a model to ONNX, in a file that Model reads.

    The rest stays as it is in the model.
    """
    job = request.job()
    report = _run(job)
    if json:
        as_json(conversion_report.values(job, report))
    else:
        conversion_report.show(job, report)


def _run(job: Job) -> Report:
    from engine.converter.pipeline import convert

    cancel = CancelToken()
    with progress() as show:
        return interruptible(lambda: convert(job.watched(show, cancel)), cancel)
