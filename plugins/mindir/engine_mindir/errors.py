"""Translate errors of decoding and lowering into ModelError, with the file's name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.errors import Cancelled, InputError, ModelError
from engine.formats import encryption
from engine.formats.protobuf import TooManyFields, WireError
from engine_mindir.data_files import DataFileError
from engine_mindir.emit import Unsupported
from engine_mindir.lower import ARGUMENT_ERRORS, LoweringError
from engine_mindir.messages import BYTES_PER_FIELD, FIELDS, DecodeError


@contextmanager
def refused(path: Path | None, view: memoryview) -> Iterator[None]:
    """Turn what goes wrong in the block into a ModelError that names the file.

    path: the file, None for a model in memory. view: all that is in it.
    """
    name = str(path) if path is not None else "model bytes"
    where = str(path or "")
    try:
        yield
    except encryption.DecryptionError as error:
        raise ModelError(f"{name}: {error}", where) from None
    except (ModelError, InputError, Cancelled):
        raise
    except TooManyFields:
        limit = FIELDS + len(view) // BYTES_PER_FIELD
        raise ModelError(
            f"{name}: not a valid MindIR model: more than {limit:,} fields in {len(view):,} bytes, "
            "which is beyond any real model",
            where,
        ) from None
    except (DecodeError, DataFileError, Unsupported) as error:
        raise ModelError(f"{name}: not a valid MindIR model: {_short(error)}", where) from None
    except LoweringError as error:
        raise ModelError(f"{name}: {_short(error)}", where) from None
    except WireError as error:
        raise ModelError(
            f"{name}: damaged MindIR file: {error}, at byte {error.offset(view):,} of "
            f"{len(view):,}; copy or download it again",
            where,
        ) from None
    except RecursionError:
        raise ModelError(
            f"{name}: not a valid MindIR model: functions or tuples nested too deep", where
        ) from None
    except MemoryError:
        raise ModelError(f"{name}: not enough memory to read it", where) from None
    except ARGUMENT_ERRORS as error:  # a damaged file may put anything anywhere
        raise ModelError(
            f"{name}: not a valid MindIR model: its parts do not fit: {type(error).__name__}: "
            f"{_short(error)}",
            where,
        ) from error


def _short(error: Exception) -> str:
    text = str(error)
    return text if len(text) <= 1000 else f"{text[:1000]} ..."
