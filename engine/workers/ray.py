"""Workers that are Ray actors: the cluster says on which machine each of them is.

    ray.init(address="auto")                     # or nothing: the cluster that RAY_ADDRESS names,
    engine.MultiDeviceRunner(..., workers="ray")  # or one on this machine

Section [ray_context] of the configuration says what an actor takes: `num_cpus`, `num_gpus` and
`resources` ("NPU=1, fast=0.5") as Ray means them, and `start_timeout_s`, how long it may take until
a node has room. Without them an actor takes 1 CPU and one device of the target's kind.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.backends.install import pip_install
from engine.errors import BackendUnavailable, one_line
from engine.host.interrupts import raised_by_handler
from engine.workers.protocol import Assignment, Lost, Ready
from engine.workers.ray_actor import Actor
from engine.workers.ray_content import Content, digest_of

if TYPE_CHECKING:
    from engine.types import Progress, Value
    from engine.weights.variables import Update

SECTION = "ray_context"
_LOOK_S = 0.05
_CLOSE_S = 2.0  # for one that is busy, and for the process to be gone
_FREE_S = 60.0  # for one that is idle, to free its model: some devices take half a minute


@dataclass(frozen=True, slots=True)
class Needs:
    """CPUs, GPUs and other resources by name; how long to wait for a node that has room."""

    num_cpus: float = 1
    num_gpus: float = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    start_timeout_s: float = 120

    def __str__(self) -> str:
        amounts = {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus, **self.resources}
        return ", ".join(f"{name}={amount:g}" for name, amount in amounts.items())


def start(assignment: Assignment) -> RayWorker:
    """Have Ray place an actor for an assignment; see Start.

    Raises BackendUnavailable where ray is not installed or its cluster is not there, ValueError for
    a setting.
    """
    return RayWorker(assignment, needs_of(assignment))


class RayWorker:
    """An actor of a Ray cluster. See Worker.

    Ray keeps to what is asked here: it restarts no actor and repeats no call.
    """

    def __init__(self, assignment: Assignment, needs: Needs) -> None:
        self._ray = ray = _connected()
        self._assignment = _for_actor(assignment, needs)
        self._needs = needs
        self._pid, self._where = 0, ""
        self._why = ""  # it was ended
        self._number = 0  # of runs that were begun
        self._is_idle = False  # it has a model, and works on nothing
        self._closed = False
        # `control` is for what comes while the actor works, `life` for a call that lasts as long
        # as the actor does.
        remote = ray.remote(concurrency_groups={"control": 1, "life": 1})(Actor)
        self._actor = remote.options(
            num_cpus=needs.num_cpus,
            num_gpus=needs.num_gpus,
            resources=dict(needs.resources) or None,
            max_restarts=0,
            max_task_retries=0,
        ).remote()
        self._job = _job(ray)
        self._life = self._call("life", "live")
        self._sentinel: int | None
        self._sentinel, self._other_end = os.pipe()
        self._ending = threading.Lock()
        self._life.future().add_done_callback(self._tell_end)  # in a thread of Ray's

    @property
    def pid(self) -> int:
        """See Worker."""
        return self._pid

    @property
    def sentinel(self) -> int | None:
        """See Worker."""
        return self._sentinel

    @property
    def has_ended(self) -> bool:
        """See Worker."""
        try:
            return bool(self._why) or self._is_done(self._life, 0)
        except Exception:  # the connection was shut down
            return True

    def build(self, progress: Progress | None) -> Ready:
        """See Worker."""
        self._greet()
        wanted, content = self._assignment, None
        digest = digest_of(wanted.model_path)
        if digest and not self._result(self._call("control", "has", wanted.model_path, digest)):
            content = Content.of(self._ray, wanted.model_path, digest)
        built = self._call("", "build", wanted, content and content.reference)
        seen = 0
        while not self._is_done(built, None if progress is None else _LOOK_S):
            seen += self._pass_on(progress, seen)
        ready: Ready = self._answer(built)
        self._pass_on(progress, seen)
        return ready

    def run(
        self, values: Sequence[Value], deadline_s: float | None, may_stop: bool = True
    ) -> list[Value]:
        """See Worker."""
        if self.has_ended:
            raise Lost(f"{self._why or 'has ended'} ({self._process})", had_begun=False)
        self._number += 1
        left_s = None if deadline_s is None else deadline_s - time.monotonic()
        results = self._answer(self._call("", "run", self._number, list(values), left_s))
        return [_owned(value) for value in results]

    def prepare(self, weights: Update) -> list[str]:
        """See Worker."""
        names: list[str] = self._answer(self._call("", "prepare", weights))
        return names

    def settle(self, take: bool) -> None:
        """See Worker."""
        self._answer(self._call("", "settle", take))

    def stop(self) -> None:
        """See Worker."""
        with suppress(Lost):  # the run hears of it itself
            self._call("control", "stop", self._number)

    def end(self, why: str) -> None:
        """See Worker."""
        self._why = self._why or why
        with suppress(Exception):  # the cluster is gone, and the actor with it
            self._check_connection()
            self._ray.kill(self._actor, no_restart=True)

    def close(self) -> None:
        """See Worker. One that is idle is let free its model first."""
        if self._closed:
            return
        self._closed = True
        if not self.has_ended:
            with suppress(Exception):
                freed = self._call("", "close")
                self._is_done(freed, _FREE_S if self._is_idle else _CLOSE_S)
        self.end("closed")
        with suppress(Exception):
            self._is_done(self._life, _CLOSE_S)  # its process has gone
        self._tell_end()
        sentinel, self._sentinel = self._sentinel, None
        if sentinel is not None:
            os.close(sentinel)

    def _tell_end(self, _: object = None) -> None:
        """Make the sentinel readable: close the other end of its pipe."""
        with self._ending:
            if self._other_end >= 0:
                os.close(self._other_end)
            self._other_end = -1

    # ------------------------------------------------------------------------------- steps

    def _greet(self) -> None:
        """Wait until the actor is somewhere. Raises BackendUnavailable where nobody has room."""
        from engine.host.version import __version__

        hello = self._call("control", "hello")
        if not self._is_done(hello, self._needs.start_timeout_s):
            there = ", ".join(
                f"{name}={amount:g}"
                for name, amount in sorted(self._ray.available_resources().items())
                if not name.startswith(("node:", "memory", "object_store"))
            )
            raise BackendUnavailable(
                f"no node of the Ray cluster had room for worker {self._assignment.place} "
                f"({self._needs}) within {self._needs.start_timeout_s:g} s; free are: "
                f"{there or 'none'}; ask for less in [{SECTION}], or add nodes",
                "ray",
            )
        try:
            self._pid, self._where, version = self._ray.get(hello)
        except self._ray.exceptions.ActorDiedError as error:
            if "ModuleNotFoundError" not in str(error) or self._why:
                raise self._lost(error) from None
            raise BackendUnavailable(
                "a node of the Ray cluster cannot import engine; install the same version of "
                "inference-engine on all nodes",
                "ray",
            ) from error
        except Exception as error:  # as in _call
            raise self._lost(error) from None
        if version != __version__:
            raise BackendUnavailable(
                f"node {self._where} of the Ray cluster has inference-engine {version}, but this "
                f"process has {__version__}; install the same version on all nodes",
                "ray",
            )

    def _pass_on(self, progress: Progress | None, seen: int) -> int:
        """Report the steps of the build from the `seen`-th on; return how many these are."""
        if progress is None:
            return 0
        steps = self._result(self._call("control", "progressed", seen))
        for step in steps:
            progress(*step)
        return len(steps)

    def _call(self, group: str, method: str, *arguments: Any) -> Any:
        """Have the actor do something; return the reference of its result."""
        bound = getattr(self._actor, method)
        try:
            self._check_connection()
            return (bound.options(concurrency_group=group) if group else bound).remote(*arguments)
        except Exception as error:  # Ray's, and ours where its connection was shut down
            raise self._lost(error) from None

    def _is_done(self, reference: Any, timeout_s: float | None) -> bool:
        self._check_connection()
        done, _ = self._ray.wait([reference], timeout=timeout_s, fetch_local=False)
        return bool(done)

    def _result(self, reference: Any) -> Any:
        """Return what a call gave. Raises Lost."""
        try:
            self._check_connection()
            return self._ray.get(reference)
        except Exception as error:  # as in _call
            raise self._lost(error) from None
        except SystemExit as error:  # Ray's, for who waits as the connection is shut down
            if raised_by_handler(error) or self._ray.is_initialized():
                raise
            raise self._lost(error) from None

    def _check_connection(self) -> None:
        """Raise ConnectionError where the process has left the cluster, or is in another one.

        Ray would begin a new cluster there, and wait for what that does not know.
        """
        if not self._ray.is_initialized() or _job(self._ray) != self._job:
            raise ConnectionError("the connection to the Ray cluster was shut down")

    def _answer(self, reference: Any) -> Any:
        """Return what the model gave, or raise what it raised."""
        self._is_idle = False
        is_error, value = self._result(reference)
        self._is_idle = True
        if is_error:
            raise value
        return value

    def _lost(self, error: BaseException) -> Lost:
        how = self._why or one_line(error).partition(". ")[0]
        return Lost(f"{how} ({self._process})")

    @property
    def _process(self) -> str:
        return f"actor process {self._pid} on {self._where}" if self._pid else "an actor"


_was_connected = False  # so that no restart of a worker begins another cluster


def _connected() -> Any:
    """Return the module ray, connected to a cluster: the user's, or one that is started here."""
    try:
        import ray
    except ImportError as error:
        raise BackendUnavailable(
            f"workers='ray' needs ray ({error}); run: {pip_install('ray')}", "ray"
        ) from error
    global _was_connected
    if not ray.is_initialized():
        if _was_connected:
            raise BackendUnavailable(
                "the connection to the Ray cluster was shut down; call ray.init again", "ray"
            )
        try:
            ray.init(include_dashboard=False, logging_level="warning")
        except Exception as error:  # ConnectionError, RuntimeError ...
            raise BackendUnavailable(
                f"no Ray cluster can be reached: {one_line(error)}; call ray.init before, with the "
                "address of one",
                "ray",
            ) from error
    _was_connected = True
    return ray


def _job(ray: Any) -> str:
    """Return a name of this process's connection to a cluster."""
    context = ray.get_runtime_context()
    return f"{context.get_node_id()} {context.get_job_id()}"


def _for_actor(assignment: Assignment, needs: Needs) -> Assignment:
    """Return an assignment as it is meant where the actor is.

    There Ray shows an actor no device but its own, which is therefore number 0.
    """
    context = copy(assignment.context)
    if needs.num_gpus:
        context.gpu.device_id = 0
    if "NPU" in needs.resources:
        context.ascend.device_id = 0
    if not context.cpu.thread_num:
        context.cpu.thread_num = max(1, int(needs.num_cpus))
    config = {name: keys for name, keys in assignment.config.items() if name != SECTION}
    return replace(assignment, context=context, config=config, cores=())


def _owned(value: Any) -> Any:
    """Return a value in memory of the caller's: Ray gives views of its own, for reading."""
    if isinstance(value, np.ndarray):
        return value if value.flags.writeable else value.copy()
    if isinstance(value, list):
        return [_owned(element) for element in value]
    return value


def needs_of(assignment: Assignment) -> Needs:
    """Return what a worker takes: by [ray_context], else by its target.

    Raises ValueError for a setting that is none.
    """
    given = assignment.config.get(SECTION, {})
    target = assignment.context.target[0].partition(":")[0].lower()
    pairs = given.get("resources", "NPU=1" if target == "ascend" else "").split(",")
    resources = dict(_pair(pair) for pair in pairs if pair.strip())
    return Needs(
        _amount("num_cpus", given.get("num_cpus", "1")),
        _amount("num_gpus", given.get("num_gpus", "1" if target == "gpu" else "0")),
        resources,
        _amount("start_timeout_s", given.get("start_timeout_s", "120")),
    )


def _pair(text: str) -> tuple[str, float]:
    name, _, amount = text.partition("=")
    if not name.strip():
        raise ValueError(f"[{SECTION}] resources must be 'name=amount, ...', but got {text!r}")
    return name.strip(), _amount(f"resources {name.strip()}", amount)


def _amount(name: str, text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    if not 0 <= amount < math.inf:
        raise ValueError(f"[{SECTION}] {name} must be a number of 0 or more, but got {text!r}")
    return amount
