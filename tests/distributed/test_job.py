"""The environment says which rank of which job a process is."""

from __future__ import annotations

import pytest

from engine import Context
from engine.distributed.job import Job, environment, this_job
from engine.distributed.store import StoreServer
from engine.errors import CommunicatorError


def test_a_process_that_nobody_started_as_a_rank_is_alone() -> None:
    assert this_job({}) == Job(0, 1, "", b"", 120.0)
    assert this_job({"ENGINE_RANK": "", "ENGINE_RANKS_TIMEOUT_S": ""}) == Job()


def test_a_rank_reads_what_its_launcher_wrote() -> None:
    with StoreServer() as server:
        job = this_job(environment(server, 2, 4))
        assert job == Job(2, 4, server.address, server.key, 120.0)
        assert environment(server, 2, 4)["ENGINE_LOCAL_SIZE"] == "4", "they share the CPUs"


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"ENGINE_RANK": "x"}, "ENGINE_RANK='x': expected a whole number"),
        ({"ENGINE_RANK": "-1"}, "ENGINE_RANK='-1'"),
        ({"ENGINE_RANK": "2", "ENGINE_WORLD_SIZE": "2"}, "ENGINE_RANK=2 and ENGINE_WORLD_SIZE=2"),
        ({"ENGINE_WORLD_SIZE": "0"}, "ENGINE_RANK=0 and ENGINE_WORLD_SIZE=0"),
        ({"ENGINE_STORE_KEY": "secret"}, "ENGINE_STORE_KEY is no hexadecimal number"),
        ({"ENGINE_RANKS_TIMEOUT_S": "soon"}, "ENGINE_RANKS_TIMEOUT_S='soon': expected seconds"),
        ({"ENGINE_RANKS_TIMEOUT_S": "0"}, "expected seconds, above 0"),
        ({"ENGINE_RANKS_TIMEOUT_S": "inf"}, "expected seconds, above 0"),
    ],
)
def test_a_variable_that_cannot_be_is_named(variables: dict[str, str], says: str) -> None:
    with pytest.raises(CommunicatorError) as caught:
        this_job(variables)
    assert says in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_context_has_the_rank_of_the_launch_until_a_script_says_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context = Context()
    assert (context.gpu.rank_id, context.gpu.group_size, context.ascend.rank_id) == (0, 1, 0)
    monkeypatch.setenv("ENGINE_RANK", "1")
    monkeypatch.setenv("ENGINE_WORLD_SIZE", "2")
    assert (context.gpu.rank_id, context.gpu.group_size, context.ascend.rank_id) == (1, 2, 1)
    context.ascend.rank_id = 0
    assert (context.gpu.rank_id, context.ascend.rank_id) == (1, 0)
