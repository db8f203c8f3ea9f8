"""Level of the kit: what cannot be done is refused with the right error, and nothing breaks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine.errors import BackendUnavailable, EngineError, ModelError
from engine.types import Capability, CompileOptions, Device, ModelSource
from engine_testing import models
from engine_testing.level import Level, Trial, floats


class Errors(Level):
    """Errors are of the contract's classes and name what is wrong."""

    @pytest.mark.parametrize("where", ["file", "bytes"])
    def test_a_truncated_model_is_a_model_error(self, trial: Trial, where: str) -> None:
        # The core refuses such a file; this is one that was whole when the core looked at it.
        source = trial.source(models.heavy)
        half = models.truncated(trial.folder)
        data = half.read_bytes() if where == "bytes" else None
        path = None if where == "bytes" else half
        source = replace(source, path=path, data=data)
        _refuse(trial, source, ModelError, naming="" if path is None else half.name)

    def test_a_contradictory_model_is_a_model_error(self, trial: Trial) -> None:
        _refuse(trial, trial.source(models.mismatched), ModelError, naming="mismatched.onnx")

    def test_an_unknown_operator_is_named(self, trial: Trial) -> None:
        _refuse(trial, trial.source(models.unknown_operator), ModelError, naming="Frobnicate")

    def test_unsupported_nodes_are_reported_before_compiling(self, trial: Trial) -> None:
        self.require(trial, Capability.MIXED_PLACEMENT)
        loaded = trial.load(models.unknown_operator)
        assert list(loaded.unsupported) == [1], "node 1 is the one that cannot run"
        assert loaded.unsupported[1], "no reason is given"
        assert not trial.load(models.affine).unsupported

    def test_what_is_no_tensor_is_reported_node_by_node(self, trial: Trial) -> None:
        """Refused as a whole is right too, but the core then gives no part of it to the backend."""
        self.require(trial, Capability.MIXED_PLACEMENT)
        try:
            loaded = trial.load(models.sequences)
        except ModelError as error:
            pytest.skip(f"refused as a whole, and not by nodes in `unsupported`: {error}")
        assert set(loaded.unsupported) <= {0, 1}, "nodes are reported that are not there"
        assert all(loaded.unsupported.values()), "no reason is given"

    def test_a_part_of_a_model_runs_without_the_rest(self, trial: Trial) -> None:
        """The part is in `data`; `path` goes on naming the whole file."""
        self.require(trial, Capability.MIXED_PLACEMENT)
        from engine.formats.onnx.infer import types_of
        from engine.plan.extract import Whole
        from engine.plan.partition import Segment

        whole = Whole(trial.source(models.unknown_operator))
        types = types_of(whole.proto, ["x", "twice"], guess=False)
        part = whole.part(Segment(0, (0,), ("x",), ("twice",)), types)
        x = floats([1, 2, 3])
        loaded = trial.load(part, shapes=trial.shapes(part, [x]))
        assert not loaded.unsupported, "nodes are reported that are not in the part"
        [y] = trial.run(part, x)
        self.assert_close(y, x + x)

    def test_an_unknown_option_is_named(self, trial: Trial) -> None:
        source = trial.source(models.affine)
        _refuse(trial, source, ValueError, naming="no_such_option", options={"no_such_option": "1"})

    def test_a_misspelt_option_is_told_the_right_one(self, trial: Trial) -> None:
        if not self.option:
            pytest.skip("set `option` to the name of one of the backend's options")
        source = trial.source(models.affine)
        wrong = self.option[:-1] + self.option[-1] * 2
        message = _refuse(trial, source, ValueError, naming=wrong, options={wrong: "1"})
        assert self.option in message.replace(wrong, ""), f"{self.option!r} is not suggested"

    def test_a_device_that_is_not_there_is_refused(self, trial: Trial) -> None:
        there = {info.device for info in trial.backend.devices().found}
        absent = Device(trial.device.type, max(device.id for device in there) + 57)
        source = trial.source(models.scalar)
        _refuse(trial, source, BackendUnavailable, naming=str(absent.id), device=absent)

    def test_a_model_that_fails_while_it_runs_is_a_model_error(self, trial: Trial) -> None:
        odd = floats([1, 2, 3])
        with pytest.raises(ModelError):
            trial.run(models.pairs, odd)

    def test_a_context_survives_a_failed_predict(self, trial: Trial) -> None:
        self.require(trial, Capability.DYNAMIC_SHAPES)
        running = trial.open(models.pairs)
        even = floats([1, 2, 3, 4])
        for _ in range(3):
            with pytest.raises(EngineError):
                running.predict(floats([1, 2, 3]))
            [y] = running.predict(even)
            self.assert_close(y, even.reshape(2, 2))


def _refuse(
    trial: Trial,
    source: ModelSource,
    error: type[Exception],
    naming: str,
    device: Device | None = None,
    options: dict[str, str] | None = None,
) -> str:
    """Expect loading or compiling to raise `error` with `naming` in its message; return that."""
    settings: CompileOptions = trial.options(
        device=device or trial.device, options=options or {}, shapes=_ones(trial, source)
    )
    with pytest.raises(error) as caught:
        trial.build(source, settings).close()
    message = str(caught.value)
    assert naming in message, f"{naming!r} is not in the message: {message}"
    assert "\n" not in message.strip(), f"the message has several lines: {message}"
    return message


def _ones(trial: Trial, source: ModelSource) -> dict[str, object]:
    assert source.graph is not None
    inputs = [
        np.ones([dim if isinstance(dim, int) else 1 for dim in spec.shape or ()], np.float32)
        for spec in source.graph.inputs
    ]
    return dict(trial.shapes(source, inputs))
