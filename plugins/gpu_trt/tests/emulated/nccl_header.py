"""NCCL's C interface, read from its header: functions with argument types, enums, structures.

`read` finds what this backend uses; `nccl.json` is what it found in NCCL 2.29.7. NVIDIA's wheels
of NCCL have the header: `python nccl_header.py nvidia/nccl/include/nccl.h` prints the table.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("nccl.json")
FUNCTIONS = (
    "ncclAllGather", "ncclAllReduce", "ncclBroadcast", "ncclCommAbort", "ncclCommDestroy",
    "ncclCommFinalize", "ncclCommGetAsyncError", "ncclCommInitRankConfig", "ncclGetErrorString",
    "ncclGetLastError", "ncclGetUniqueId", "ncclGetVersion", "ncclGroupEnd", "ncclGroupStart",
    "ncclRecv", "ncclReduce", "ncclReduceScatter", "ncclSend",
)  # fmt: skip
ENUMS = ("ncclResult_t", "ncclRedOp_t", "ncclDataType_t")
CONFIG_FIELDS = 4
"""As many fields of ncclConfig_t as version 2.14 had."""


def read(header: Path) -> dict[str, Any]:
    """Return the table of a header."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", header.read_text(), flags=re.S)
    config = re.search(r"typedef struct \w+ \{([^}]*)\} ncclConfig_t;", text)
    assert config is not None
    return {
        "version": int(_defined(text, "NCCL_VERSION_CODE")),
        "unique_id_bytes": int(_defined(text, "NCCL_UNIQUE_ID_BYTES")),
        "config_magic": int(_defined(text, "NCCL_API_MAGIC"), 16),
        "config_fields": [
            " ".join(field.split()) for field in config[1].split(";") if field.strip()
        ][:CONFIG_FIELDS],
        "functions": {name: _function(text, name) for name in FUNCTIONS},
        "enums": {name: _enum(text, name) for name in ENUMS},
    }


def _defined(text: str, name: str) -> str:
    match = re.search(rf"#define {name} (\S+)", text)
    assert match is not None, name
    return match[1]


def _function(text: str, name: str) -> list[str]:
    """Return the type that a function returns, then those of its arguments."""
    match = re.search(rf"([\w ]+\*?)\s+{name}\(([^)]*)\);", text)
    assert match is not None, name
    arguments = [part.strip() for part in match[2].split(",") if part.strip()]
    return [_tidy(match[1]), *(_tidy(re.sub(r"\w+$", "", part)) for part in arguments)]


def _tidy(text: str) -> str:
    """Return a C type without const."""
    return re.sub(r"\s+", "", re.sub(r"\bconst\b", "", text)).replace("*", " *")


def _enum(text: str, name: str) -> dict[str, int]:
    match = re.search(rf"typedef enum \{{([^}}]*)\}} {name};", text)
    assert match is not None, name
    return {key: int(value) for key, value in re.findall(r"(\w+)\s*=\s*(\d+)\s*(?=,|$)", match[1])}


if __name__ == "__main__":
    import tables

    print(tables.write(read(Path(sys.argv[1]))))
