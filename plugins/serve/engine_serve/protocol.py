"""The messages of protocol.proto and health.proto, made from their compiled form, protocol.binpb.

A compiled form is read by every later version of protobuf; generated Python code is not. The
messages have a pool of their own: a process may also import tritonclient's or grpc_health's, of the
same names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"
HEALTH = "grpc.health.v1"
_FOLDER = Path(__file__).parent
COMPILED = _FOLDER / "protocol.binpb"

_pool = descriptor_pool.DescriptorPool()
for _file in descriptor_pb2.FileDescriptorSet.FromString(COMPILED.read_bytes()).file:
    _pool.Add(_file)


def message(name: str, package: str = PACKAGE) -> Any:
    """Return the class of a message of a package, as "ModelInferRequest"."""
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{package}.{name}"))


def methods() -> list[tuple[str, Any, Any, bool]]:
    """Return the service's methods: name, classes of request and response, is it a stream."""
    service = _pool.FindServiceByName(SERVICE)
    return [
        (
            method.name,
            message_factory.GetMessageClass(method.input_type),
            message_factory.GetMessageClass(method.output_type),
            method.client_streaming,
        )
        for method in service.methods
    ]


def compile_to(path: Path) -> None:
    """Write the compiled form of the two files."""
    from grpc_tools import protoc

    words = ["protoc", f"-I{_FOLDER}", f"--descriptor_set_out={path}"]
    if protoc.main([*words, "protocol.proto", "health.proto"]):
        raise RuntimeError("protoc refused a file; its messages are above")


if __name__ == "__main__":
    compile_to(COMPILED)
