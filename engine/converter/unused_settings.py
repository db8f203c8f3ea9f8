"""Report settings of the configuration that nothing reads; mistakes are logged too."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from engine.converter.job import Job
from engine.tensor.enums import FmkType

if TYPE_CHECKING:
    from engine.config.schema import Unused

_QUANTIZING = (
    "common_quant_param", "full_quant_param", "weight_quant_param", "dynamic_quant_param",
    "data_preprocess_param", "mixed_bit_weight_quant_param", "transform_quant_param",
)  # fmt: skip


def warn(config: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Log and return a line for each unknown section and each unused key.

    The keys that say how to quantize are looked at by `quantize.settings`.
    """
    texts = [unused.text for unused in _unused(config)]
    for text in texts:
        logging.getLogger("engine").warning(text)
    return texts


def unknown(config: Mapping[str, Mapping[str, str]]) -> str:
    """Return a line on the first section or key that nothing ever reads; "" for none."""
    from engine.converter.quantize import settings

    texts = (unused.text for unused in _unused(config) if unused.is_unknown)
    return next(texts, "") or settings.unknown(config)


def _unused(config: Mapping[str, Mapping[str, str]]) -> Iterator[Unused]:
    if not config:
        return
    from engine.backends import OFFICIAL, installed
    from engine.config.schema import unused_settings

    with_sections = (*OFFICIAL, *OFFICIAL.values(), *installed())
    yield from unused_settings(config, "converter", _QUANTIZING, {}, lambda: with_sections)


def unread(job: Job) -> Iterator[str]:
    """Report settings that belong to another kind of conversion, a line each."""
    if job.weight_file is not None and job.framework is not FmkType.CAFFE:
        yield f"{job.weight_file} is not read: only Caffe models have a weight_file"
    if job.decrypt_key is not None and not _is_encrypted(job):
        yield f"decrypt_key is not used: {job.model_file} is not encrypted"
    from engine.config.schema import KNOWN

    # convert/declared.py
    kept = ("model_file", "ascend_context", "acl_build_options", "SplitGraph")
    for section in job.config:
        if section in KNOWN and section not in (*_QUANTIZING, *kept):
            yield f"configuration section [{section}] has no effect on a conversion"


def _is_encrypted(job: Job) -> bool:
    # Only MindIR's reader takes such files, whatever is in them.
    return job.framework is FmkType.MINDIR and bool(job.file.encryption)
