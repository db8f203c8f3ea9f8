"""The stored form of the protocol is what protocol.proto says, and what other clients speak."""

from __future__ import annotations

from pathlib import Path

import pytest
import tritonclient.grpc as rpc

from engine_serve.protocol import COMPILED, compile_to, message, methods
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
