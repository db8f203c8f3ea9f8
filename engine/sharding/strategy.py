"""Strategies: how a job of ranks split a model's operators and where its parameters are.

    strategy = Strategy.load("strategy.ckpt")
    strategy.nodes["MatMul-op0"].inputs       # ((1, 1), (1, 4))
    strategy.layouts["fc.weight"]             # a Layout

A file is of one pipeline stage, or merged from all stages: then its parameters are called
"<stage>-<name>". Its form goes by its name: .json is JSON, everything else protobuf.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from engine.errors import ModelError
from engine.sharding import strategy_file
from engine.sharding.layout import Layout, LayoutError, NodeStrategy

_STAGED = re.compile(r"(\d{1,9})-(.+)", re.DOTALL)

FileName: TypeAlias = "str | Path"


@dataclass(frozen=True)
class Strategy:
    """A strategy file. nodes, layouts: by the names in the file. source: how errors call it."""

    nodes: Mapping[str, NodeStrategy] = field(default_factory=dict)
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    current_stage: int = 0
    source: str = "strategy"

    @classmethod
    def load(cls, path: FileName) -> Strategy:
        """Read a strategy file. Raises ModelError naming the file, and what is wrong where."""
        return cls(*strategy_file.read(Path(path)))

    def save(self, path: FileName) -> None:
        """Write a strategy file, in place of an earlier one; only its owner may read it."""
        strategy_file.write((self.nodes, self.layouts, self.current_stage, self.source), Path(path))


class Arrangement:
    """Ranks of a job by stage, and where each parameter is: what a strategy says of parameters.

    Without a strategy it is one device, and every parameter is whole.
    stage_count; stage_devices: ranks of each stage. Rank r is rank r % stage_devices of stage
    r // stage_devices.
    """

    def __init__(self, layouts: Mapping[str, Layout] | None, source: str = "strategy") -> None:
        """Take the layouts of a strategy, whose names may begin with a stage.

        Raises ModelError where they contradict each other: naming two parameters.
        """
        self.source = source
        self.is_single = layouts is None
        self._by_name: dict[str, dict[int, Layout]] = {}
        self.stage_count = self.stage_devices = 1
        if layouts is None:
            return
        widest = ""
        for name, layout in layouts.items():
            stages, plain = _stages_of(name, layout)
            try:
                layout.check()
            except LayoutError as error:
                raise ModelError(f"{source}: parameter {plain!r}: {error}", source) from error
            # Fields that do not say where the parts are go: equal layouts are worked out once.
            bare = layout._replace(pipeline_stages=(0,), indices_offset=(), tensor_shape=())
            for stage in stages:
                self._by_name.setdefault(plain, {})[stage] = bare
            if layout.device_count > self.stage_devices:
                widest, self.stage_devices = plain, layout.device_count
        for name, by_stage in self._by_name.items():
            for layout in by_stage.values():
                if layout.device_count not in (self.stage_devices, 1):
                    raise ModelError(
                        f"{source}: parameter {name!r} is laid out over {layout.device_count} "
                        f"devices and {widest!r} over {self.stage_devices}; expected one number of "
                        "devices in a strategy",
                        source,
                    )
        stages_seen = {stage for by_stage in self._by_name.values() for stage in by_stage}
        self.stage_count = max(stages_seen, default=0) + 1
        # The first alone: a damaged name may be of stage 999,999,999.
        missing = next((n for n in range(self.stage_count) if n not in stages_seen), None)
        if missing is not None and stages_seen:
            raise ModelError(
                f"{source}: has pipeline stages up to {self.stage_count - 1}, but no parameter of "
                f"stage {missing}; merge the strategies of all stages: merge_pipeline_strategys",
                source,
            )

    @classmethod
    def of_file(cls, path: FileName | None) -> Arrangement:
        """Read what a strategy file says of parameters; None is one device. Raises ModelError."""
        if path is None:
            return cls(None)
        strategy = Strategy.load(path)
        if not strategy.layouts:
            raise ModelError(
                f"{path}: has no layout of any parameter; save the strategy of the parallel "
                "network (strategy_ckpt_save_file), or pass None for weights that are not split",
                str(path),
            )
        return cls(strategy.layouts, str(path))

    @property
    def rank_count(self) -> int:
        """Number of ranks of all stages."""
        return self.stage_count * self.stage_devices

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def names(self, stage: int) -> list[str]:
        """Return the parameters that a stage holds."""
        return [name for name, stages in self._by_name.items() if stage in stages]

    def stages(self, name: str) -> dict[int, Layout]:
        """Return the layout of a parameter in each stage that holds it; whole where not known."""
        return self._by_name.get(name) or dict.fromkeys(range(self.stage_count), Layout())

    def place(self, rank: int) -> tuple[int, int]:
        """Return the stage of a rank, and its number there."""
        return divmod(rank, self.stage_devices)


def _stages_of(name: str, layout: Layout) -> tuple[tuple[int, ...], str]:
    match = _STAGED.fullmatch(name)
    if match is None:
        return layout.pipeline_stages or (0,), name
    return (int(match[1]),), match[2]


def plain_name(name: str) -> str:
    """Return a parameter's name without the stage by which a merged strategy calls it."""
    match = _STAGED.fullmatch(name)
    return name if match is None else match[2]


def staged(name: str, stage: int) -> str:
    """Return what a merged strategy calls a parameter of a stage."""
    return f"{stage}-{name}"
