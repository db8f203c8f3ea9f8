"""All observers at once, on requests that share a run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner
from prometheus_client import REGISTRY

import engine
from engine import Context
from engine_telemetry.record import read
from engine_telemetry.replay import replay

CLIENTS = 8


def test_requests_that_share_a_run_are_each_their_own(
    affine: Path, tmp_path: Path, spans: Callable[[], list[Any]]
) -> None:
    folder = tmp_path / "requests"
    context = Context()
    context.extensions = {
        "recorder": {"path": str(folder)},
        "opentelemetry": {},
        "prometheus": {},
    }
    context.parallel.workers_num = 1  # two would each wait for what the other has taken
    inputs = [np.full((1, 3), number, np.float32) for number in range(CLIENTS)]
    with engine.ModelParallelRunner() as runner:
        # A run waits for so many samples, or longer than any machine takes to start the threads.
        runner.build_from_file(
            str(affine), context, max_batch_size=CLIENTS, max_delay_us=60_000_000
        )
        threads = [threading.Thread(target=runner.predict, args=[[x]]) for x in inputs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    requests = [span for span in spans() if span.name == f"predict {affine.stem}"]
    assert [span.attributes["inference_engine.batch.size"] for span in requests] == [
        CLIENTS
    ] * CLIENTS
    ids = {span.attributes["inference_engine.request.id"] for span in requests}
    assert len(ids) == CLIENTS
    size = REGISTRY.get_sample_value(
        "inference_engine_request_batch_size_sum", {"model": affine.stem}
    )
    assert size == CLIENTS * CLIENTS
    records = [read(path, 1) for path in folder.glob("*.npz")]
    found = {}
    for record in records:
        assert record.inputs is not None
        assert record.outputs is not None
        found[record.inputs["x"][0, 0]] = record.outputs["y"].tolist()
    assert found == {number: [[2 * number + 1] * 3] for number in range(CLIENTS)}
    done = CliRunner().invoke(replay, [str(folder), str(affine)])
    assert done.output == "equal: 8 requests\n"
