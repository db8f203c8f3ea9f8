"""The stored form of the protocol is what protocol.proto says, and what other clients speak."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tritonclient.grpc as rpc
from grpc_health.v1 import health_pb2

from engine_serve.protocol import COMPILED, HEALTH, compile_to, message, methods
from engine_serve.rpc_methods import METHODS

OURS = {
    name
    for _, request, response, _ in methods()
    for name in (request.DESCRIPTOR.name, response.DESCRIPTOR.name)
}
THEIRS = rpc.service_pb2.DESCRIPTOR.message_types_by_name


def test_the_stored_form_is_the_compiled_file(tmp_path: Path) -> None:
    from google.protobuf import descriptor_pb2

    compile_to(tmp_path / "again")
    forms = [descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes())
             for path in (COMPILED, tmp_path / "again")]  # fmt: skip
    assert forms[0] == forms[1]


@pytest.mark.parametrize("name", sorted(OURS & {*THEIRS}))
def test_messages_have_the_names_and_numbers_of_tritons_client(name: str) -> None:
    def fields(descriptor: object, depth: int = 0) -> dict[str, object]:
        return {
            field.name: (field.number, field.type, field.is_repeated,
                         fields(field.message_type, depth + 1)
                         if field.message_type is not None and depth < 4 else None)
            for field in descriptor.fields
            if field.message_type is None or field.message_type.name != "ModelConfig"
        }  # fmt: skip

    assert fields(message(name).DESCRIPTOR) == fields(THEIRS[name])


@pytest.mark.parametrize("name", ["HealthCheckRequest", "HealthCheckResponse"])
def test_messages_of_health_are_those_of_grpcs_own_package(name: str) -> None:
    theirs, ours = getattr(health_pb2, name), message(name, HEALTH)
    assert [(field.name, field.number, field.type) for field in ours.DESCRIPTOR.fields] == [
        (field.name, field.number, field.type) for field in theirs.DESCRIPTOR.fields
    ]
    for kind in ours.DESCRIPTOR.enum_types:
        values = theirs.DESCRIPTOR.enum_types_by_name[kind.name].values
        assert [(each.name, each.number) for each in kind.values] == [
            (each.name, each.number) for each in values
        ]


def test_no_code_generated_for_one_version_of_protobuf_is_imported() -> None:
    code = (
        "import sys, engine_serve.command\n"
        "print([name for name in sys.modules if name.endswith(('_pb2', '_pb2_grpc'))])"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == "['google.protobuf.descriptor_pb2']\n"


def test_every_method_of_tritons_service_is_there() -> None:
    service = rpc.service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    assert {name for name, *_ in methods()} == {method.name for method in service.methods}
    assert {*METHODS} == {name for name, _, _, is_stream in methods() if not is_stream}


def test_what_is_read_of_a_configuration_has_tritons_numbers() -> None:
    theirs = rpc.model_config_pb2.ModelConfig.DESCRIPTOR.fields_by_name
    for field in message("ModelConfig").DESCRIPTOR.fields:
        assert field.number == theirs[field.name].number
        if field.message_type is None:
            continue
        inner = theirs[field.name].message_type.fields_by_name
        for each in field.message_type.fields:
            assert (each.number, each.type) == (inner[each.name].number, inner[each.name].type)
