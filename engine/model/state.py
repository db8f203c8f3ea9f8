"""The state of a model: what was built and of what, and what each thread has of it.

`build`, `facts` and `update` are functions over it, and Model holds one.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol

from engine.config.wording import prefixed
from engine.errors import ModelStateError
from engine.host import fork
from engine.host.imports import ready
from engine.model.handle import FORKED
from engine.runtime.extensions import unseen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from engine.model.recipe import Built, Recipe
    from engine.model.sharing import Sharing
    from engine.plan import Plan
    from engine.runtime.signature import Signature
    from engine.runtime.thread_state import ThreadState
    from engine.tensor import Tensor
    from engine.types import CancelToken, Capability

NOT_BUILT = "the model is not built; call build_from_file first"
BUILDING = "the model is being built; wait until build_from_file has returned"
_CLOSED = "the model is closed; build a new one"

# The priority and the id of a predict of which neither is asked. To be compared by identity: what
# is as empty but of another type, as None or False, goes on to where it is refused.
USUAL, NO_ID = 0, ""


class RequestQueue(Protocol):
    """The queue of the requests that `Model.predict_async` makes; the wing `request_queue`."""

    async def predict_async(
        self,
        inputs: Any,
        timeout_s: float | None,
        cancel: CancelToken | None,
        priority: int,
        request_id: str,
    ) -> list[Tensor]:
        """Await the results of one request."""

    def close(self, reason: str, finish: bool) -> None:
        """Take no more requests. finish: those that wait run, else they fail. Does not wait."""


class Observation(Protocol):
    """Teller of observers about a model; the wing `observation`."""

    def thread(self, state: ThreadState) -> ThreadState:
        """Return a thread's state for one predict, of which observers are told."""

    def update(self, work: Callable[[], Sequence[str]]) -> None:
        """Exchange weights, and tell of it. work: does it, and returns their names."""

    def close(self) -> None:
        """Tell that the model was closed; only once."""


class ModelState:
    """State of one model.

    built: what runs it; None before building and after closing. Replaced as one: a thread that
        makes its state meanwhile gets all of one or of the other.
    why_not: why nothing can run; "" where it can.
    recipe: what it was built of; None after closing. provider, own_names: the recipe's.
    declared: the signature as in the file. dims: the shapes of the last resize. is_reshaped: built
        for other sizes than the file fixes. is_resizable: False in a runner, which has no resize.
    has_peers: its weights change together with those of other models.
    is_inner: a runner's, which tells observers of its requests itself. observation: what tells
        them of this model; None where nobody observes it.
    named: how many inputs a call by name has to have.
    sharing: what the model has in common with others of its group.
    lock: held while the model is built or changed. Reentrant: a progress callback that builds this
        model is refused, not stuck.
    stops: the ways to stop a predict that its predicts were asked for; not every backend has them.
    threads: each thread's state; dropped with `built`. inputs: the tensors that get_inputs gave.
    """

    __slots__ = (
        "__weakref__",
        "built",
        "declared",
        "dims",
        "has_peers",
        "inputs",
        "is_inner",
        "is_reshaped",
        "is_resizable",
        "lock",
        "named",
        "observation",
        "own_names",
        "path",
        "provider",
        "queue",
        "recipe",
        "sharing",
        "stops",
        "threads",
        "why_not",
    )

    def __init__(self) -> None:
        self.path = ""
        self.provider = ""
        self.own_names: dict[str, str] = {}
        self.built: Built | None = None
        self.recipe: Recipe | None = None
        self.declared: Signature | None = None
        self.dims: Sequence[Sequence[int]] | None = None
        self.is_reshaped = False
        self.is_resizable = True
        self.has_peers = False
        self.is_inner = False
        self.observation: Observation | None = None
        self.sharing: Sharing | None = None
        self.queue: RequestQueue | None = None
        self.named = -1
        self.stops: set[Capability] = set()
        self.why_not = NOT_BUILT
        self.lock = threading.RLock()
        self.threads = threading.local()
        self.inputs = threading.local()
        fork.watch(self)

    @property
    def plan(self) -> Plan | None:
        """The plan that runs the model; None before building and after closing."""
        built = self.built
        return None if built is None else built.plan

    def require_built(self, caller: str = "") -> Built:
        """Return what was built. Raises ModelStateError. caller: the user's method."""
        built = self.built
        if built is None or self.why_not:
            raise prefixed(ModelStateError(self.why_not), f"{caller} failed! " if caller else "")
        return built

    def open_thread(self) -> ThreadState:
        """Make the calling thread's state, at its first predict. Raises ModelStateError.

        Where somebody observes the model, each predict comes here.
        """
        if self.observation is not None:
            own: ThreadState = getattr(self.threads, "own", None) or self._opened_thread()
            return own if unseen.trials or unseen.served else self.observation.thread(own)
        return self._opened_thread()

    def _opened_thread(self) -> ThreadState:
        ready("engine.runtime.thread_state")
        from engine.runtime.thread_state import ThreadState

        # Read in this order: a resize between the two lines leaves a state that nobody finds.
        threads = self.threads
        built = self.require_built("predict")
        plan, signature, predict = built.plan, built.signature, built.predict
        kind: type[ThreadState] = ThreadState
        if not signature.is_plain:
            ready("engine.runtime.values")
            from engine.runtime.values import ValuesState  # rare

            kind = ValuesState
        elif signature.is_open_ended:
            ready("engine.runtime.open_ended")
            from engine.runtime.open_ended import OpenEndedState

            kind = OpenEndedState
        state = kind(plan, signature, predict, self.path)
        state.stops = self.stops
        # Under the name `state` predict finds it by itself.
        setattr(threads, "state" if self.observation is None else "own", state)
        return state

    def replace(self, built: Built, failure: str) -> None:
        """Have what was built anew take the place of what the model is, with the lock held.

        Raises ModelStateError where another thread has closed the model meanwhile, or is about to.
        """
        self.built = built
        if self.why_not:
            self._free()
            raise prefixed(ModelStateError(self.why_not), failure)

    def close(self) -> None:
        """Free the model once running predicts have ended; twice does nothing."""
        if self.built is None:
            return
        self.why_not = _CLOSED
        self.recipe = None
        queue, self.queue = self.queue, None
        if queue is not None:
            queue.close(f"predict failed! {_CLOSED}", finish=False)
        self._free()
        if self.observation is not None:
            self.observation.close()

    def _free(self) -> None:
        """Close what is built; a resize in another thread may have built anew meanwhile."""
        while (built := self.built) is not None:
            try:
                self.threads, self.inputs = threading.local(), threading.local()
            finally:
                built.close()
            # Only now: until then another call, of a `with` block or the last, does what is left.
            if self.built is built:
                self.built = None

    def _abandon(self) -> None:
        """In a forked child: forget the model, and never free what belongs to the parent."""
        fork.never_free(self.built, self.threads)
        if self.built is not None:
            self.why_not = FORKED
        elif self.why_not is BUILDING:
            self.why_not = NOT_BUILT
        self.built = self.queue = None
        self.threads = threading.local()
        self.lock = threading.RLock()
