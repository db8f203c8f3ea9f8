"""A model on a server of the Open Inference Protocol (V2, REST), as `engine bench` calls it.

The server may be anybody's: engine serve, Triton, KServe, MLServer, OpenVINO Model Server. Tensors
go as binary data where the server says that it takes them, and as JSON elsewhere.
Format: the protocol's page "Predict Protocol - Version 2" and Triton's "Binary Tensor Data
Extension".
"""

from __future__ import annotations

import http.client
import json
import ssl
import struct
import threading
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

import numpy as np

from engine.errors import DeadlineExceeded, EngineError, InputError, ModelError, ModelNotFound
from engine.types import DType, TensorSpec

DATATYPES: Mapping[str, DType] = {
    "BOOL": DType.BOOL,
    "UINT8": DType.UINT8,
    "UINT16": DType.UINT16,
    "UINT32": DType.UINT32,
    "UINT64": DType.UINT64,
    "INT8": DType.INT8,
    "INT16": DType.INT16,
    "INT32": DType.INT32,
    "INT64": DType.INT64,
    "FP16": DType.FLOAT16,
    "BF16": DType.BFLOAT16,
    "FP32": DType.FLOAT32,
    "FP64": DType.FLOAT64,
    "BYTES": DType.STRING,
}
"""Element types by the protocol's names."""

_NAMES = {dtype: name for name, dtype in DATATYPES.items()}
_BINARY = "binary_tensor_data"
_JSON_BYTES = "Inference-Header-Content-Length"
_MODELS = "/v2/models/"
_SENTENCE = 500  # of a server's error, at most

Array = np.ndarray[Any, np.dtype[Any]]


class ServedModel:
    """A model on a server. Any number of threads may call `predict`: each has a connection.

    url: the server's, as http://localhost:8000, or a model's there,
        http://localhost:8000/v2/models/NAME or .../NAME/versions/3. The server's alone will do
        where it has one model. headers: sent with every request. timeout_s: of an answer.
    name, version, inputs, outputs: as the server describes the model; an axis of any size is None.
    server: its name and version.
    Raises InputError for an address that is none, ModelNotFound where the server does not have the
    model, ModelError where no server of the protocol answers.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str] | None = None, timeout_s: float = 60.0
    ) -> None:
        self._address, prefix, name, version = _parsed(url)
        self._headers, self._timeout_s = dict(headers or {}), timeout_s
        self._own = threading.local()
        self._connections: list[http.client.HTTPConnection] = []
        self.url = f"{self._address.scheme}://{self._address.netloc}{prefix}"
        try:
            server = self._read(f"{prefix}/v2")
            self.server = " ".join(
                str(server[key]) for key in ("name", "version") if server.get(key)
            )
            self._is_binary = _BINARY in server.get("extensions", ())
            self.name, self.version = name or self._only_model(prefix), version
            self._path = f"{prefix}{_MODELS}{quote(self.name, safe='')}"
            if version:
                self._path += f"/versions/{quote(version, safe='')}"
            facts = self._read(self._path)
            self.inputs = tuple(map(self._spec, facts["inputs"]))
            self.outputs = tuple(map(self._spec, facts["outputs"]))
        except BaseException:
            self.close()
            raise

    def predict(self, values: Sequence[Any]) -> list[Array]:
        """Send arrays in the order of `inputs`, and return the outputs in the server's order.

        Raises InputError where the server refuses them, and ModelError where it fails.
        """
        tensors, parts = [], []
        for spec, value in zip(self.inputs, values, strict=True):
            array = _cast(spec, np.asarray(value))
            tensor: dict[str, Any] = {
                "name": spec.name,
                "shape": array.shape,
                "datatype": _NAMES[spec.dtype],
            }
            if self._is_binary:
                data = _packed(array, spec.dtype)
                tensor["parameters"] = {"binary_data_size": len(data)}
                parts.append(data)
            else:
                tensor["data"] = array.ravel().tolist()
            tensors.append(tensor)
        request: dict[str, Any] = {"inputs": tensors}
        headers = {"Content-Type": "application/json"}
        if self._is_binary:
            request["parameters"] = {"binary_data_output": True}
        body = json.dumps(request).encode()
        if self._is_binary:
            headers = {"Content-Type": "application/octet-stream", _JSON_BYTES: str(len(body))}
        answer, binary = self._exchange(
            "POST", f"{self._path}/infer", b"".join([body, *parts]), headers
        )
        results, place = [], 0
        for output in answer["outputs"]:
            nbytes = output.get("parameters", {}).get("binary_data_size")
            part = None if nbytes is None else binary[place : place + nbytes]
            place += nbytes or 0
            results.append(_unpacked(output, part))
        return results

    def close(self) -> None:
        """Close the connections of all threads."""
        while self._connections:
            self._connections.pop().close()

    def __enter__(self) -> ServedModel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _only_model(self, prefix: str) -> str:
        advice = f"give the model's address: {self.url}{_MODELS}NAME"
        try:
            index, _ = self._exchange("POST", f"{prefix}/v2/repository/index", b"{}", {})
        except EngineError as error:
            raise InputError(f"{self.url}: the server names no models; {advice}") from error
        names = sorted({model["name"] for model in index})
        if len(names) != 1:
            held = f"{len(names)} models: {', '.join(names)}" if names else "no model"
            raise InputError(f"{self.url}: the server has {held}; {advice}")
        return str(names[0])

    def _spec(self, facts: Mapping[str, Any]) -> TensorSpec:
        datatype = facts["datatype"]
        if datatype not in DATATYPES:
            raise ModelError(
                f"{self.url}{self._path}: tensor {facts['name']!r} is of {datatype}, which cannot "
                f"be sent; expected one of {', '.join(DATATYPES)}",
                self.url,
            )
        shape = tuple(None if size < 0 else size for size in map(int, facts["shape"]))
        return TensorSpec(facts["name"], DATATYPES[datatype], shape)

    def _read(self, path: str) -> dict[str, Any]:
        found, _ = self._exchange("GET", path, None, {})
        if not isinstance(found, dict):
            raise self._no_protocol(path)
        return found

    def _no_protocol(self, path: str) -> ModelError:
        where = f"{self._address.scheme}://{self._address.netloc}{path}"
        return ModelError(
            f"{where}: the answer is not the Open Inference Protocol's; give the address of such a "
            "server's REST port, as http://localhost:8000",
            self.url,
        )

    def _exchange(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[Any, memoryview]:
        """Return the JSON of the answer, and the binary data behind it."""
        connection = self._connection()
        was_open = connection.sock is not None
        try:
            try:
                connection.request(method, path, body, {**self._headers, **headers})
                response = connection.getresponse()
            except (ConnectionError, http.client.BadStatusLine):
                connection.close()
                if not was_open:
                    raise
                # A server ends connections that were idle: this one asks anew.
                connection.request(method, path, body, {**self._headers, **headers})
                response = connection.getresponse()
            data = response.read()
        except TimeoutError:
            connection.close()
            raise DeadlineExceeded(f"{self.url}: no answer in {self._timeout_s:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            connection.close()  # the next request opens it anew
            if isinstance(error, http.client.BadStatusLine) and not isinstance(error, OSError):
                raise self._no_protocol(path) from error  # as a port of gRPC answers
            if isinstance(error, ssl.SSLCertVerificationError):
                raise ModelError(
                    f"{self.url}: the server's certificate is not trusted: {error.verify_message}; "
                    "the variable SSL_CERT_FILE names a file of certificates to trust",
                    self.url,
                ) from error
            why = str(error) or type(error).__name__
            raise ModelError(
                f"{self.url}: the server does not answer: {why}; is it running there, and is that "
                "the port of REST?",
                self.url,
            ) from error
        if response.status != 200:
            raise self._refused(path, response.status, data)
        size = int(response.headers.get(_JSON_BYTES) or len(data))
        try:
            return json.loads(data[:size]), memoryview(data)[size:]
        except ValueError:
            raise self._no_protocol(path) from None

    def _refused(self, path: str, status: int, data: bytes) -> EngineError:
        try:
            sentence = str(json.loads(data)["error"])
        except (ValueError, LookupError, TypeError):
            sentence = data.decode(errors="replace")
        sentence = " ".join(sentence.split())[:_SENTENCE]
        text = f"{self.url}: the server answers {path} with status {status}: {sentence}"
        if status == 404:
            return ModelNotFound(text, self.url)
        return ModelError(text, self.url) if status >= 500 else InputError(text)

    def _connection(self) -> http.client.HTTPConnection:
        found: http.client.HTTPConnection | None = getattr(self._own, "connection", None)
        if found is None:
            host, port = self._address.hostname or "", self._address.port
            if self._address.scheme == "https":
                found = http.client.HTTPSConnection(
                    host, port, timeout=self._timeout_s, context=ssl.create_default_context()
                )
            else:
                found = http.client.HTTPConnection(host, port, timeout=self._timeout_s)
            self._own.connection = found
            self._connections.append(found)
        return found


def _parsed(url: str) -> tuple[SplitResult, str, str, str]:
    """Return an address in parts, the path before /v2, and the model's name and version."""
    wanted = "expected http://HOST:PORT or http://HOST:PORT/v2/models/NAME"
    try:
        address = urlsplit(url)
        address.port  # noqa: B018 - raises for what is no number
    except ValueError as error:
        raise InputError(f"{url}: {error}; {wanted}") from None
    if address.scheme not in ("http", "https") or not address.hostname:
        raise InputError(f"{url}: is no address of a server; {wanted}")
    prefix, _, rest = address.path.rstrip("/").partition("/v2")
    words = rest.strip("/").split("/") if rest.strip("/") else []
    if words and (
        words[0] != "models" or len(words) not in (2, 4) or words[2:3] not in ([], ["versions"])
    ):
        raise InputError(f"{url}: is no address of a model; {wanted}")
    name, version = (unquote(words[1]) if words else ""), (words[3] if len(words) == 4 else "")
    return address, prefix, name, version


def _cast(spec: TensorSpec, array: Array) -> Array:
    """Return an array in an input's element type. Raises InputError where that changes values."""
    if spec.dtype is DType.STRING or array.dtype == spec.dtype.numpy:
        return array
    with np.errstate(all="ignore"):
        cast = array.astype(spec.dtype.numpy)
    is_float = array.dtype.kind in "fc" and cast.dtype.kind not in "iub"  # which may be rounded
    same = np.isfinite(array) == np.isfinite(cast) if is_float else cast == array
    if not np.all(same):
        raise InputError(
            f"input {spec.name!r}: expected {spec}, got {array.dtype} values that do not fit",
            spec.name,
        )
    return cast


def _packed(array: Array, dtype: DType) -> bytes:
    """Return an array as binary data: little-endian, a string behind its length."""
    if dtype is DType.STRING:
        texts = [item if isinstance(item, bytes) else str(item).encode() for item in array.flat]
        return b"".join(struct.pack("<I", len(text)) + text for text in texts)
    return array.tobytes()


def _unpacked(output: Mapping[str, Any], data: memoryview | None) -> Array:
    """Return a tensor of an answer as an array; strings are bytes objects where they came so."""
    dtype, shape = DATATYPES[output["datatype"]], tuple(output["shape"])
    if data is None:
        return np.array(output["data"], object if dtype is DType.STRING else dtype.numpy).reshape(
            shape
        )
    if dtype is not DType.STRING:
        return np.frombuffer(data, dtype.numpy).reshape(shape)
    texts, place = [], 0
    while place < len(data):
        (size,) = struct.unpack_from("<I", data, place)
        texts.append(bytes(data[place + 4 : place + 4 + size]))
        place += 4 + size
    return np.array(texts, object).reshape(shape)
