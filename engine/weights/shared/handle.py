"""Weights shared between processes by a handle: what a configuration asks for.

    slave    pid = Model().get_model_info("current_pid")
    master   builds with {"common_context": {"shareable_weight_pid_list": "12, 34"}}
             handle = master.get_model_info("shareable_weight_mem_handle")
    slave    builds the same model with {"common_context": {"shareable_weight_mem_handle": handle}}

A handle is a random number, and names a socket of the master's; it opens nothing to a process that
is not on the list. The sections [ascend_context], as in MindSpore Lite, [common_context] and those
of the backends are read alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from engine.errors import SharingError
from engine.weights.compile_cache import CompileCache
from engine.weights.shared.handle_settings import HANDLE, PIDS, handle_of, pids_of, setting_of

if TYPE_CHECKING:
    from engine.model.group_forms import GroupForms
    from engine.types import CancelToken
    from engine.weights.shared.borrower import Borrower
    from engine.weights.shared.lender import Lender


def lending_of(
    config: Mapping[str, Mapping[str, str]],
    forms: CompileCache | GroupForms,
    cancel: CancelToken | None = None,
) -> Lender | Borrower | None:
    """Return what lends or borrows weights in a build, as a configuration asks for; None for none.

    forms: what the build uses otherwise. Raises SharingError.
    """
    pids, handle = setting_of(config, PIDS), setting_of(config, HANDLE)
    if pids is not None and handle is not None:
        raise SharingError(
            f"{PIDS} and {HANDLE} are both set, but a model either lends its weights or borrows "
            "another's; give the list to the master and the handle to its slaves"
        )
    if pids is not None:
        from engine.weights.shared.lender import Lender

        return Lender(pids_of(pids), CompileCache.of(config), forms)
    if handle is not None:
        from engine.weights.shared.borrower import Borrower

        return Borrower(handle_of(handle), cancel)
    return None
