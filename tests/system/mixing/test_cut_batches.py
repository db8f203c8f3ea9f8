"""Random models in MultiDeviceRunner and micro-batches: only rows that are alone are cut apart.

The expected results are those of the whole batch in one run on one device.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from random_models import (
    MIXERS,
    OPENED,
    WIDTH,
    RandomModel,
    context_of,
    hostile_rows,
    independent,
    loaded,
    mixing,
    written,
)

import engine
from engine.sharding import slice_model


def on_two_devices(model: RandomModel, folder: Path) -> str:
    """Run a hostile batch of 6 on two workers; returns what the runner says of it."""
    path = written(model, folder)
    batch = [np.concatenate(column) for column in zip(*hostile_rows(6, 5), strict=True)]
    context = context_of(model)
    with engine.MultiDeviceRunner(str(path), [0, 1], context) as runner:
        if model.is_gated_by_weight:
            runner.update_weights(OPENED)
        result = runner.predict(batch)[0].get_data_to_numpy()
        said = repr(runner) + str(runner.statistics())
    with loaded(model, path) as whole:
        expected = whole.predict(batch)[0].get_data_to_numpy()
    np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-4, err_msg=f"{model.steps}")
    return said


@pytest.mark.parametrize("number", [0, 13])
def test_a_batch_whose_rows_mix_is_not_cut_over_devices(number, tmp_path):
    on_two_devices(mixing(number), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(len(MIXERS)))
def test_no_batch_whose_rows_mix_is_cut_over_devices(number, tmp_path):
    on_two_devices(mixing(1000 + number), tmp_path)


def micro_batched(model: RandomModel, folder: Path) -> None:
    path = written(model, folder)
    slice_model(
        path,
        folder / "slices",
        pp=2,
        micro_batches=True,
        input_shapes={"x": [2, WIDTH], "ids": [2, WIDTH]},
    )


@pytest.mark.parametrize("number", range(6))
def test_micro_batches_are_refused_where_rows_mix(number, tmp_path):
    with pytest.raises(engine.ModelError, match="'"):
        micro_batched(mixing(number), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_micro_batches_are_refused_wherever_rows_mix(tmp_path):
    for seed in range(2000, 2000 + 5 * len(MIXERS)):
        model = mixing(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            micro_batched(model, folder)
        except engine.ModelError:
            continue
        pytest.fail(f"cut apart: {model.steps}")


def test_micro_batches_are_written_where_rows_are_alone(tmp_path):
    refused = []
    for seed in range(10):
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            micro_batched(independent(seed), folder)
        except engine.ModelError as error:
            if "enough for 2" not in str(error):
                refused.append((seed, str(error)))
    assert len(refused) <= 1, refused
