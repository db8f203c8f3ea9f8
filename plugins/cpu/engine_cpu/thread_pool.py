"""One pool of threads for all sessions of the process, where the user asks for it.

ONNX Runtime gives each session a pool of its own, so a model that is cut into 25 segments has 25.
Its global pool serves any number of sessions, but there is no way back: it can be made once, and
every session of the process that wants a pool of its own is refused from then on, also those that
the user or another library makes. So it is made on demand only (option thread_pool).

Its Python interface has no other pool that sessions can share, and RunOptions's
only_execute_path_to_fetches, by which one session could serve all segments, is for builds with
training: others run every node.
"""

from __future__ import annotations

import threading

from engine_cpu.runtime import ort

_REFUSED = "use_per_session_threads must be false"

_lock = threading.Lock()
_sizes: tuple[int, int] | None = None
is_shared = False
"""The process has ONNX Runtime's global pool: each session must use it."""


def make(intra_op: int, inter_op: int) -> None:
    """Make the global pool; the size of the first that asks is everybody's.

    intra_op: 0 for one thread a physical core. Raises ValueError where this ONNX Runtime has none.
    """
    global is_shared, _sizes
    import logging  # rare

    log = logging.getLogger("engine.cpu")
    set_sizes = getattr(ort, "set_global_thread_pool_sizes", None)
    if set_sizes is None:
        raise ValueError(
            f"[cpu_context] thread_pool = 'process' needs a newer onnxruntime than "
            f"{ort.__version__}; leave it at 'own', or run: pip install --upgrade onnxruntime"
        )
    with _lock:
        if _sizes is None and not is_shared:
            try:
                set_sizes(intra_op, inter_op)
                _sizes = intra_op, inter_op
            except Exception as error:  # somebody else has made it
                log.warning("thread_pool: onnxruntime's global pool is there already: %s", error)
            is_shared = True
        elif _sizes is not None and _sizes != (intra_op, inter_op):
            log.warning(
                "thread_pool: the process has one pool of %d and %d threads (intra, inter); "
                "%d and %d cannot be had beside it", *_sizes, intra_op, inter_op,
            )  # fmt: skip


def join(settings: ort.SessionOptions) -> None:
    """Have a session use the global pool, which is there."""
    global is_shared
    is_shared = True
    settings.use_per_session_threads = False
    settings.intra_op_num_threads = settings.inter_op_num_threads = 0  # the pool has its own


def is_refused(error: Exception) -> bool:
    """Return True where a session was refused because it wants threads of its own."""
    return _REFUSED in str(error)
