"""A setup that runs under the load: a plan for one client, a runner for several."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from engine.plan import BuildOptions
from engine.report.choice.evidence import Setup
from engine.report.choice.running import Running
from engine.report.choice.setups import applied
from engine.types import Values
from engine.weights.compile_cache import without_cache
from engine.wings import wing


class Contender(NamedTuple):
    """A setup that is ready. run: makes one request; of any of the clients' threads."""

    run: Callable[[], Any]
    close: Callable[[], None]
    shares_runs: bool = False


def alone(running: Running, values: Values, is_own: bool = True) -> Contender:
    """Return a compiled setup as a contender for one client. is_own: it closes the setup."""
    return Contender(partial(running.run, values), running.close if is_own else _nothing)


def _nothing() -> None:
    pass


def served(setup: Setup, options: BuildOptions, path: str, values: Values) -> Contender:
    """Return a setup as a contender for several clients: its model in a ModelParallelRunner.

    path: of the setup's model. Raises what the runner's build raises.
    """
    chosen = applied(setup, options)
    context = chosen.context
    context.parallel.config_info = {
        name: dict(keys) for name, keys in without_cache(chosen.config).items()
    }
    runner = wing("ModelParallelRunner")()
    runner.build_from_file(
        path, context, max_batch_size=setup.max_batch or None, cancel=options.cancel
    )
    return Contender(partial(runner.predict, values), runner.close, runner.shares_runs)
