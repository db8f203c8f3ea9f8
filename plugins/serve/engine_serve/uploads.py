"""Models that clients send with a load: their files, in a private folder until they go."""

from __future__ import annotations

import base64
import binascii
import re
import shutil
import tempfile
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from engine.host.folder import temporary_folder
from engine_serve.errors import RequestError, TooLarge, Unsupported
from engine_serve.folder import Source

_VERSION = re.compile("[1-9][0-9]{0,17}")
_MOST_FILES = 100
_LONGEST = 200  # bytes of a name; file systems take 255


class Upload:
    """The files of one load. source: the model that they are.

    uses: versions that are loaded of them; `leave` is called as often, and then they are removed.
    """

    def __init__(self, source: Source, nbytes: int, uploads: Uploads) -> None:
        self.source, self.uses = source, 1
        self._nbytes, self._uploads = nbytes, uploads
        self._lock = threading.Lock()

    def leave(self) -> None:
        """End a use."""
        with self._lock:
            self.uses -= 1
            is_over = self.uses == 0
        if is_over:
            shutil.rmtree(self.source.path, ignore_errors=True)
            self._uploads.give_back(self._nbytes)


class Uploads:
    """Room for such files. most_bytes: of all that are here; 0 where clients may send none.

    The folder goes with the process, however that ends.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most, self._left = most_bytes, most_bytes
        self._lock = threading.Lock()
        self._folder: Path | None = None
        self._closing = ExitStack()

    def require_allowed(self, sent: Mapping[str, object]) -> None:
        """Raise Unsupported where clients may send no files."""
        if not self._most:
            raise Unsupported(
                f"parameter {f'file:{next(iter(sent))}'!r}: models come from the server's folder, "
                "not from requests; --allow-uploads lets clients send them"
            )

    def write(self, name: str, sent: Mapping[str, object]) -> Upload:
        """Write the files of a model. sent: bytes, or text in base64, by "VERSION/FILE".

        Raises Unsupported, RequestError, TooLarge.
        """
        self.require_allowed(sent)
        _check_name(name, "model")
        if len(sent) > _MOST_FILES:
            raise RequestError(f"expected {_MOST_FILES} files at most, got {len(sent)}")
        files = {_path_of(path): _content_of(path, value) for path, value in sent.items()}
        nbytes = sum(map(len, files.values()))
        folder = self._take(nbytes)
        try:
            own = Path(tempfile.mkdtemp(dir=folder))
            upload = Upload(Source(name, own), nbytes, self)
        except BaseException:
            self.give_back(nbytes)
            raise
        try:
            for path, content in files.items():
                (own / path).parent.mkdir(mode=0o700, exist_ok=True)
                (own / path).write_bytes(content)
        except BaseException:
            upload.leave()
            raise
        return upload

    def _take(self, nbytes: int) -> Path:
        with self._lock:
            if nbytes > self._left:
                raise TooLarge(
                    f"the files that clients have sent have {self._most - self._left} bytes, and "
                    f"together they may have {self._most}, but {nbytes} more came; unload models, "
                    "or raise --allow-uploads"
                )
            if self._folder is None:
                self._folder = self._closing.enter_context(temporary_folder("engine-serve-"))
            self._left -= nbytes
            return self._folder

    def give_back(self, nbytes: int) -> None:
        """Note that files are removed."""
        with self._lock:
            self._left += nbytes

    def close(self) -> None:
        """Remove the folder."""
        self._closing.close()


def _path_of(path: str) -> Path:
    version, _, file = path.partition("/")
    if not _VERSION.fullmatch(version) or not file:
        raise RequestError(
            f"parameter {f'file:{path[:_LONGEST]}'!r}: expected 'file:VERSION/FILE', as "
            "'file:1/model.onnx'"
        )
    _check_name(file, "file")
    return Path(version, file)


def _check_name(name: str, what: str) -> None:
    is_plain = name.isprintable() and "/" not in name and not name.startswith(".")
    if not name or not is_plain or len(name.encode()) > _LONGEST:
        raise RequestError(
            f"a {what} that is sent needs a plain name of up to {_LONGEST} bytes, without '/' and "
            f"not beginning with '.', got {name[:_LONGEST]!r}"
        )


def _content_of(path: str, value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        if not isinstance(value, str):
            raise ValueError(f"got {type(value).__name__}")  # noqa: TRY004 - a client's
        return base64.b64decode(value, validate=True)
    except (ValueError, binascii.Error) as error:
        raise RequestError(
            f"parameter {f'file:{path}'!r}: expected bytes, as text in base64 over REST: {error}"
        ) from error
