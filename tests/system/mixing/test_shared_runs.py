"""Random models in ModelParallelRunner: no request's results depend on another request.

The models are made without any knowledge of how it is decided what may share a run. The expected
results are those of each request alone.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from random_models import (
    MIXERS,
    OPENED,
    RandomModel,
    context_of,
    hostile_rows,
    independent,
    loaded,
    mixing,
    written,
)

import engine

SHARED, ALONE = "shared", "alone"


def served(model: RandomModel, folder: Path) -> tuple[str, str]:
    """Serve eight hostile requests at once, and compare each with the same request alone.

    Returns whether they may share a run, and why not.
    """
    path = written(model, folder)
    rows = hostile_rows(8, len(model.steps))
    with loaded(model, path) as alone:
        expected = [alone.predict(list(row))[0].get_data_to_numpy() for row in rows]
    context = context_of(model)
    context.parallel.workers_num = 1
    runner = engine.ModelParallelRunner()
    try:
        runner.build_from_file(str(path), context, max_batch_size=8, max_delay_us=300_000)
    except engine.ModelError as error:
        if "cannot share runs" not in str(error):
            raise
        return ALONE, str(error)
    with runner:
        if model.is_gated_by_weight:
            runner.update_weights(OPENED)
        futures = [runner.submit(list(row)) for row in rows]
        results = [future.result()[0].get_data_to_numpy() for future in futures]
        sizes = runner.statistics().batch_sizes
    assert max(sizes) > 1, "nothing was shared, so nothing was tried"
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, wanted, err_msg=f"{model.steps}")
    return SHARED, ""


def none_depends_on_others(seeds: range, folder: Path) -> None:
    missing = []
    for seed in seeds:
        model = mixing(seed)
        verdict, reason = served(model, folder)
        if verdict == ALONE and " '" not in reason:
            missing.append((model.steps, reason))
    assert not missing, "models kept whole without the name of a node"


def most_are_shared(seeds: range, folder: Path) -> None:
    verdicts = {seed: served(independent(seed), folder) for seed in seeds}
    reasons = Counter(reason for verdict, reason in verdicts.values() if verdict == ALONE)
    assert sum(reasons.values()) <= len(seeds) // 10, reasons


def test_rows_that_mix_for_some_values_never_change_another_request(tmp_path):
    none_depends_on_others(range(len(MIXERS)), tmp_path)


def test_most_models_whose_rows_never_mix_are_shared(tmp_path):
    most_are_shared(range(40), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_two_thousand_models_whose_rows_mix_never_change_another_request(tmp_path):
    none_depends_on_others(range(1000, 3000), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_nine_of_ten_among_500_models_whose_rows_never_mix_are_shared(tmp_path):
    most_are_shared(range(1000, 1500), tmp_path)
