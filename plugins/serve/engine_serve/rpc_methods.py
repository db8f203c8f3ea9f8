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
        lambda inference, results, model: answer_of(inference, results, model, regions),
    )


async def _live(service: Service, request: Any, context: Any) -> Any:
    return {"live": True}


async def _ready(service: Service, request: Any, context: Any) -> Any:
    return {"ready": service.is_ready}


async def _model_ready(service: Service, request: Any, context: Any) -> Any:
    return {"ready": service.is_model_ready(request.name, request.version)}


async def _server_metadata(service: Service, request: Any, context: Any) -> Any:
    return service.server_metadata()


async def _model_metadata(service: Service, request: Any, context: Any) -> Any:
    return service.model_metadata(request.name, request.version)


async def _config(service: Service, request: Any, context: Any) -> Any:
    return {"config": service.config(request.name, request.version)}


async def _statistics(service: Service, request: Any, context: Any) -> Any:
    return service.statistics(request.name, request.version)


async def _index(service: Service, request: Any, context: Any) -> Any:
    return {"models": await service.refreshed_index(ready=request.ready)}


async def _load(service: Service, request: Any, context: Any) -> Any:
    await service.load(request.model_name, parameters_of(request.parameters))
    return {}


async def _unload(service: Service, request: Any, context: Any) -> Any:
    await service.unload(request.model_name)
    return {}


async def _region_status(service: Service, request: Any, context: Any) -> Any:
    return {"regions": {line["name"]: line for line in service.region_status(request.name)}}


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


METHODS: Mapping[str, Method] = {
    "ServerLive": _live,
    "ServerReady": _ready,
    "ModelReady": _model_ready,
    "ServerMetadata": _server_metadata,
    "ModelMetadata": _model_metadata,
    "ModelInfer": model_infer,
    "ModelConfig": _config,
    "ModelStatistics": _statistics,
    "RepositoryIndex": _index,
    "RepositoryModelLoad": _load,
    "RepositoryModelUnload": _unload,
    "SystemSharedMemoryStatus": _region_status,
    "SystemSharedMemoryRegister": _register,
    "SystemSharedMemoryUnregister": _unregister,
    "CudaSharedMemoryStatus": _nothing,
    "CudaSharedMemoryRegister": _no_device_memory,
    "CudaSharedMemoryUnregister": _nothing,
    "TraceSetting": _trace,
    "LogSettings": _logs,
}
"""By the names in protocol.proto; ModelStreamInfer is in rpc.py."""
