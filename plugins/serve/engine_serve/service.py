"""All of the protocol but inference, with plain values, for REST and gRPC alike."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from google.protobuf import json_format

from engine.errors import ModelError, SettingError
from engine_serve import __version__, config_file
from engine_serve.errors import NotFound, RequestError, Unavailable, Unsupported, text_of
from engine_serve.repository import Repository
from engine_serve.shared_memory import Regions
from engine_serve.statistics import statistics_of

NAME = "inference-engine"
EXTENSIONS = (
    "classification",
    "model_configuration",
    "model_repository",
    "binary_tensor_data",
    "parameters",
    "schedule_policy",
    "statistics",
    "system_shared_memory",
    "logging",
    "trace",
)
_TRACE = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "opentelemetry",
}
_TRACED_BY = {
    "trace_level": "opentelemetry-instrument and ENGINE_EXTENSIONS=opentelemetry switch them on",
    "trace_rate": "OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG say how many there are",
}
_LEVELS = ("log_error", "log_warning", "log_info")
ENDING = "the server is ending and takes no new requests; ask another one"
_MOST_CHANGES = 32  # that wait or run; each may hold files that a client has sent
_log = logging.getLogger("engine_serve")


class Service:
    """What a server knows and can do. For the event loop's thread.

    ending: set when the server begins to end. may_change: clients may load and unload.
    """

    def __init__(self, repository: Repository, regions: Regions, *, may_change: bool) -> None:
        self.repository, self.regions = repository, regions
        self._may_change = may_change
        self._verbose = 0
        self._waiting = 0  # loads and unloads
        self._changes = ThreadPoolExecutor(1, "engine serve load")
        self.ending = asyncio.Event()

    # -------------------------------------------------------------------------------- readiness

    @property
    def is_ready(self) -> bool:
        """Return whether all models are ready and requests are taken."""
        return self.is_open and self.repository.is_ready

    def is_model_ready(self, name: str, version: str) -> bool:
        """Return whether a model would run a request now."""
        try:
            model = self.repository.borrow(name, version)
        except (NotFound, Unavailable):
            return False
        try:
            return self.is_open and model.runner.is_ready
        finally:
            self.repository.give_back(model)

    @property
    def is_open(self) -> bool:
        """Return whether requests are taken: not while the server ends."""
        return not self.ending.is_set()

    def check_open(self) -> None:
        """Refuse a new request while the server ends. Raises Unavailable."""
        if not self.is_open:
            raise Unavailable(ENDING)

    # --------------------------------------------------------------------------------- metadata

    def server_metadata(self) -> dict[str, Any]:
        """Return the server's name, version and extensions."""
        return {"name": NAME, "version": __version__, "extensions": [*EXTENSIONS]}

    def model_metadata(self, name: str, version: str) -> dict[str, Any]:
        """Return a model's inputs and outputs. Raises NotFound, Unavailable."""
        model = self.repository.loaded(name, version)[0]
        versions = [each.version for each in self.repository.loaded(name)]

        def tensors(specs: Mapping[str, Any]) -> list[dict[str, Any]]:
            return [
                {"name": spec.name, "datatype": spec.datatype, "shape": [*spec.shape]}
                for spec in specs.values()
            ]

        return {
            "name": name,
            "versions": sorted(versions, key=int),
            "platform": model.platform,
            "inputs": tensors(model.inputs),
            "outputs": tensors(model.outputs),
        }

    def config(self, name: str, version: str) -> dict[str, Any]:
        """Return a model's configuration, completed by what its file says."""
        model = self.repository.loaded(name, version)[0]
        found: dict[str, Any] = json_format.MessageToDict(
            config_file.completed(model), preserving_proto_field_name=True
        )
        found.setdefault("max_batch_size", 0)
        return {key: _with_numbers(value, key) for key, value in found.items()}

    def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """Return the statistics of models. Raises NotFound, Unavailable."""
        models = self.repository.loaded(name, version)
        return {"model_stats": [statistics_of(model) for model in models]}

    # ------------------------------------------------------------------------------- repository

    async def refreshed_index(self, *, ready: bool = False) -> list[dict[str, str]]:
        """Look which models there are now; return all with their states."""
        await asyncio.to_thread(self.repository.refresh)
        return self.index(ready=ready)

    def index(self, *, ready: bool = False) -> list[dict[str, str]]:
        """Return all known models with their states."""
        found = []
        for entry in self.repository.index(ready=ready):
            line = {key: value for key, value in entry._asdict().items() if value}
            found.append(line)
        return found

    async def load(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Load a model, or what is now in its files. Raises what loading raises."""
        self._check_change()
        sent = {
            key.removeprefix("file:"): value
            for key, value in parameters.items()
            if key.startswith("file:")
        }

        if sent:
            self.repository.uploads.require_allowed(sent)

        def load() -> None:
            if "config" not in parameters and not sent:
                self.repository.load(name)
                return
            config = config_file.of_json(parameters.get("config", "{}"))
            if any(output.label_filename for output in config.output):
                raise RequestError("label_filename: only a folder's own config.pbtxt names files")
            if not sent:
                self.repository.load(name, config)
                return
            upload = self.repository.uploads.write(name, sent)
            try:
                self.repository.load(name, config, upload=upload)
            except ModelError as error:  # it is the client's model
                raise RequestError(text_of(error).replace(f"{upload.source.path}/", "")) from error

        try:
            await self._changed(load)
        except SettingError as error:
            raise RequestError(text_of(error)) from error

    async def unload(self, name: str) -> None:
        """Unload a model. Raises NotFound."""
        self._check_change()
        await self._changed(self.repository.unload, name)

    async def _changed(self, change: Callable[..., None], *arguments: Any) -> None:
        """Load or unload, one after the other: those that wait are to take no thread of others.

        One whose client has gone is done as well. Raises Unavailable where too many wait.
        """
        if self._waiting >= _MOST_CHANGES:
            raise Unavailable(f"{self._waiting} loads and unloads wait already; try again")
        self._waiting += 1
        loop = asyncio.get_running_loop()
        done = loop.run_in_executor(self._changes, change, *arguments)
        done.add_done_callback(self._end_change)
        await asyncio.shield(done)

    def _end_change(self, done: asyncio.Future[None]) -> None:
        self._waiting -= 1
        if not done.cancelled():
            done.exception()  # who waits for it has it; one whose client has gone has nobody

    def _check_change(self) -> None:
        if not self._may_change:
            raise Unsupported("loading and unloading are off: the server has --no-model-control")

    # ---------------------------------------------------------------------------- shared memory

    def region_status(self, name: str = "") -> list[dict[str, Any]]:
        """Return the registered regions, or the one of a name. Raises NotFound."""
        return [
            {
                "name": region.name,
                "key": region.key,
                "offset": region.offset,
                "byte_size": region.nbytes,
            }
            for region in self.regions.listed(name)
        ]

    # --------------------------------------------------------------------------------- settings

    def trace_setting(self, wanted: Mapping[str, Any], name: str = "") -> dict[str, Any]:
        """Return the trace settings; refuse to change them. Raises Unsupported, NotFound."""
        if name and name not in self.repository.names:
            raise NotFound(f"there is no model {name!r}")
        for key, value in wanted.items():
            if key not in _TRACE:
                raise RequestError(
                    f"there is no trace setting {key!r}; there are: {', '.join(_TRACE)}"
                )
            if value not in (None, _TRACE[key]) and not (key == "trace_level" and value == "OFF"):
                by = _TRACED_BY.get(key, "OTEL_EXPORTER_OTLP_ENDPOINT says where they go")
                raise Unsupported(
                    f"trace setting {key!r}: expected {_TRACE[key]!r}, got {value!r}: traces are "
                    f"OpenTelemetry's here, and fixed when the server starts; {by}"
                )
        return dict(_TRACE)

    def log_settings(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Change the log's settings, and return them. Raises RequestError, Unsupported."""
        now = self._log_settings()
        for key, value in wanted.items():
            if key not in now:
                raise RequestError(f"there is no log setting {key!r}; there are: {', '.join(now)}")
            if type(value) is not type(now[key]):
                kind = type(now[key]).__name__
                raise RequestError(f"log setting {key!r} must be {kind}, got {value!r}")
            if key in ("log_file", "log_format") and value != now[key]:
                raise Unsupported(f"log setting {key!r} is fixed when the server starts")
        verbose = wanted.get("log_verbose_level", now["log_verbose_level"])
        if not 0 <= verbose < 1 << 32:
            raise RequestError(
                f"log setting 'log_verbose_level' must be a number of 32 bits, got {verbose}"
            )
        on = {key: wanted.get(key, now[key]) for key in _LEVELS}
        self._verbose = verbose
        _log.setLevel(
            logging.DEBUG if verbose
            else logging.INFO if on["log_info"]
            else logging.WARNING if on["log_warning"]
            else logging.ERROR if on["log_error"]
            else logging.CRITICAL
        )  # fmt: skip
        return self._log_settings()

    def _log_settings(self) -> dict[str, Any]:
        level = _log.getEffectiveLevel()
        return {
            "log_file": "",
            "log_info": level <= logging.INFO,
            "log_warning": level <= logging.WARNING,
            "log_error": level <= logging.ERROR,
            "log_verbose_level": self._verbose,
            "log_format": "default",
        }


_WIDE = {
    "dims", "versions", "max_queue_delay_microseconds", "priority_levels",
    "default_priority_level", "default_timeout_microseconds",
}  # fmt: skip
"""Fields of 64 bits, which protobuf writes as text into JSON; clients expect numbers."""


def _with_numbers(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _with_numbers(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_with_numbers(inner, key) for inner in value]
    return int(value) if key in _WIDE else value
