"""Return codes of HCCL (`HcclResult`): their names, and what a user does about them.

After the page "HcclResult" of CANN's documentation and HCCL's header hccl_types.h; 23, 24 and 1041
are not in older ones. The advice follows CANN's pages on HCCL's messages (EI0002 a time-out, EI0006
connecting, EI0013 an error of a link).
"""

from __future__ import annotations

from typing import Final

from engine_ascend_ge.codes import FULL, LOG, OLD, OTHERS, OURS, PROFILING, TROUBLED

_TABLE: Final[dict[str, dict[int, str]]] = {
    "look at the rank table and at what the other ranks say; every rank needs its own part of one "
    f"slicing. Else {OURS}": {1: "E_PARA"},
    OURS: {2: "E_PTR"},
    f"{FULL}; HCCL_BUFFSIZE says how many MB HCCL takes for each group": {
        3: "E_MEMORY",
        24: "E_OOM",
    },
    LOG: {4: "E_INTERNAL", 1041: "E_IN_STATUS"},
    OLD: {5: "E_NOT_SUPPORT"},
    "look whether the devices of the rank table are there (npu-smi info)": {6: "E_NOT_FOUND"},
    "end other jobs on these devices (npu-smi info), then try again": {7: "E_UNAVAIL"},
    "look at the process's limits (ulimit -n) and whether the ports from HCCL_IF_BASE_PORT on are "
    f"free; {LOG}": {8: "E_SYSCALL"},
    "look at the other ranks' errors first; where a rank is only slow, HCCL_CONNECT_TIMEOUT gives "
    "more time to join and HCCL_EXEC_TIMEOUT to a collective, in seconds": {9: "E_TIMEOUT"},
    "the rank table must exist, and this process must be able to read it": {
        10: "E_OPEN_FILE_FAILURE",
    },
    "the hosts must reach each other: look at the firewall, and at HCCL_SOCKET_IFNAME or "
    "HCCL_IF_IP, which say by which network": {11: "E_TCP_CONNECT", 13: "E_TCP_TRANSFER"},
    "look at the devices' network (hccn_tool), and at device_ip in the rank table": {
        12: "E_ROCE_CONNECT",
        14: "E_ROCE_TRANSFER",
        19: "E_NETWORK",
    },
    TROUBLED: {15: "E_RUNTIME", 16: "E_DRV", 18: "E_CCE"},
    PROFILING: {17: "E_PROFILING"},
    "what the group does has not ended; try again when it has": {20: "E_AGAIN"},
    OTHERS: {21: "E_REMOTE", 23: "E_OPRETRY_FAIL"},
    "the group is suspended after an error: build the model anew in every rank": {
        22: "E_SUSPENDING",
    },
}  # fmt: skip

NAMES: Final = {code: f"HCCL_{name}" for codes in _TABLE.values() for code, name in codes.items()}
"""Every code but success, by HCCL's name for it."""

_ADVICE: Final = {code: text for text, codes in _TABLE.items() for code in codes}


def advice(code: int) -> str:
    """Return what to do about a return code, as far as its number tells."""
    return _ADVICE.get(code, LOG)
