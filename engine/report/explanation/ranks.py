"""The ranks of a sliced model, each explained in a process of its own, as one of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from engine.context import Context
from engine.distributed.job import environment as of_rank
from engine.distributed.store import StoreServer
from engine.errors import EngineError, ModelError, one_line
from engine.formats import ModelFile
from engine.formats.collectives import part_of
from engine.formats.given import models_in
from engine.host.child import KEY_VARIABLE, environment
from engine.host.worker import Ended, Worker
from engine.model import Model
from engine.model.build import from_model_file
from engine.model.model import model_state
from engine.report.explanation.explaining import explained
from engine.report.explanation.explanation import Explanation
from engine.report.explanation.roof import Roof


class _Request(NamedTuple):
    path: Path
    context: Context
    config: Mapping[str, Mapping[str, str]]
    roof: Roof | None
    profile: bool


def ranks_in(folder: Path) -> list[Path]:
    """Return the files of the ranks in a folder, in their order.

    Raises ModelError where its models are not those of all ranks of one slicing.
    """
    parts: dict[int, Path] = {}
    slicings = set()
    _, paths = models_in(folder)
    for path in paths:
        graph = ModelFile(path)().graph
        part = None if graph is None else part_of(graph.metadata)
        if part is None:
            raise ModelError(
                f"{folder}: expected one model, or the ranks of one, but {path.name} is no rank; "
                "give the path of one",
                str(folder),
            )
        parts[part.rank] = path
        slicings.add((part.slicing, part.world_size))
    whole = slicings.pop() if len(slicings) == 1 else ("", 0)
    if sorted(parts) != list(range(whole[1])) or len(paths) != len(parts):
        raise ModelError(
            f"{folder}: expected the ranks of one slicing, all of them, but it has "
            f"{', '.join(path.name for path in paths)}; slice the model again",
            str(folder),
        )
    return [parts[rank] for rank in sorted(parts)]


def explain_ranks(
    paths: Sequence[Path],
    context: Context,
    config: Mapping[str, Mapping[str, str]],
    roof: Roof | None = None,
    *,
    profile: bool = False,
) -> list[Explanation]:
    """Explain each rank of a sliced model, built as in a job of as many processes.

    The work is for the sizes that the files declare. profile: measure the kernels of all ranks, in
    predicts that they make together. Raises what building one raises, and ModelError where its
    process ends.
    """
    with StoreServer() as server, ExitStack() as workers:
        started = []
        for rank, path in enumerate(paths):
            told = {
                name: text
                for name, text in of_rank(server, rank, len(paths)).items()
                if name.startswith("ENGINE_") and name != KEY_VARIABLE
            }
            request = _Request(path, context, config, roof, profile)
            worker = Worker(f"{__name__}:serve", request, env=environment(**told))
            started.append(workers.enter_context(worker))
        return [
            _received(worker, path, rank, server)
            for rank, (worker, path) in enumerate(zip(started, paths, strict=True))
        ]


def _received(worker: Worker, path: Path, rank: int, server: StoreServer) -> Explanation:
    try:
        answer = worker.receive()
    except Ended as end:
        server.fail(f"the process of rank {rank} {end}", (rank,))
        raise ModelError(f"{path}: the process of rank {rank} {end}", str(path)) from None
    if isinstance(answer, Exception):
        server.fail(one_line(answer), (rank,))
        raise answer
    assert isinstance(answer, Explanation)
    return answer


def serve(request: _Request, connection: Connection) -> int:
    """Explain one rank, for `explain_ranks`: send the explanation, or an error."""
    file = ModelFile(request.path)
    try:
        with Model() as model:
            state = model_state(model)
            from_model_file(state, file, request.context, request.config, None, None)
            profile, roof = request.profile, request.roof
            connection.send(explained(model, profile=profile, roof=roof, source=file()))
    except (EngineError, ValueError) as error:
        connection.send(error)
    return 0
