"""The methods of GRPCInferenceService, each from its request to a message or its plain values."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from engine_serve.errors import Unsupported
from engine_serve.inferring import infer
from engine_serve.protocol import message
from engine_serve.rpc_infer import answer_of, parameters_of, request_of
from engine_serve.service import Service

Method = Callable[[Service, Any, Any], Awaitable[Any]]
"""From the service, a request and grpc's context."""

_Trace, _Logs = message("TraceSettingResponse"), message("LogSettingsResponse")


async def model_infer(service: Service, request: Any, context: Any) -> Any:
    """Return the ModelInferResponse of a request. context: None in a stream, without deadline."""
    left_s = context.time_remaining() if context is not None else None
    regions = service.regions
    return await infer(
        service.repository,
        request.model_name,
        request.model_version,
        lambda model: request_of(request, model, regions, left_s),
        answer_of,
    )


async def _index(service: Service, request: Any, context: Any) -> Any:
    return {"models": await service.refreshed_index(ready=request.ready)}


async def _load(service: Service, request: Any, context: Any) -> Any:
    await service.load(request.model_name, parameters_of(request.parameters))
    return {}


async def _unload(service: Service, request: Any, context: Any) -> Any:
    await service.unload(request.model_name)
    return {}


async def _register(service: Service, request: Any, context: Any) -> Any:
    service.regions.register(request.name, request.key, request.offset, request.byte_size)
    return {}


async def _unregister(service: Service, request: Any, context: Any) -> Any:
    service.regions.unregister(request.name)
    return {}


async def _nothing(service: Service, request: Any, context: Any) -> Any:
    return {}


async def _no_device_memory(service: Service, request: Any, context: Any) -> Any:
    raise Unsupported("CUDA shared memory is not offered; use system shared memory")


async def _trace(service: Service, request: Any, context: Any) -> Any:
    wanted = {
        key: [*setting.value] if len(setting.value) > 1 else setting.value[0]
        for key, setting in request.settings.items()
        if setting.value
    }
    answer = _Trace()
    for key, value in service.trace_setting(wanted, request.model_name).items():
        answer.settings[key].value.extend(value if isinstance(value, list) else [value])
    return answer


async def _logs(service: Service, request: Any, context: Any) -> Any:
    answer = _Logs()
    for key, value in service.log_settings(parameters_of(request.settings)).items():
        field = {bool: "bool_param", int: "uint32_param", str: "string_param"}[type(value)]
        setattr(answer.settings[key], field, value)
    return answer


def _values(of: Callable[[Service, Any], Any]) -> Method:
    """Return a method that answers with plain values, at once. of: from a service and a request."""

    async def answer(service: Service, request: Any, context: Any) -> Any:
        return of(service, request)

    return answer


METHODS: Mapping[str, Method] = {
    "ServerLive": _values(lambda service, _: {"live": True}),
    "ServerReady": _values(lambda service, _: {"ready": service.is_ready}),
    "ModelReady": _values(lambda s, asked: {"ready": s.is_model_ready(asked.name, asked.version)}),
    "ServerMetadata": _values(lambda service, _: service.server_metadata()),
    "ModelMetadata": _values(lambda s, asked: s.model_metadata(asked.name, asked.version)),
    "ModelInfer": model_infer,
    "ModelConfig": _values(lambda s, asked: {"config": s.config(asked.name, asked.version)}),
    "ModelStatistics": _values(lambda s, asked: s.statistics(asked.name, asked.version)),
    "RepositoryIndex": _index,
    "RepositoryModelLoad": _load,
    "RepositoryModelUnload": _unload,
    "SystemSharedMemoryStatus": _values(
        lambda s, asked: {"regions": {line["name"]: line for line in s.region_status(asked.name)}}
    ),
    "SystemSharedMemoryRegister": _register,
    "SystemSharedMemoryUnregister": _unregister,
    "CudaSharedMemoryStatus": _nothing,
    "CudaSharedMemoryRegister": _no_device_memory,
    "CudaSharedMemoryUnregister": _nothing,
    "TraceSetting": _trace,
    "LogSettings": _logs,
}
"""By the names in protocol.proto; ModelStreamInfer is in rpc.py."""
