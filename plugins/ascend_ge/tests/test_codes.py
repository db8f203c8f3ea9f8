"""Every return code of ACL that a user can meet has CANN's name and says what to do.

`emulated/codes.txt` is CANN's published table "aclError": numbers and names.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import BackendUnavailable, CommunicatorError, DeadlineExceeded, ModelError
from engine_ascend_ge import acl_call, codes, hccl, hccl_codes
from engine_testing import models

TABLE = (Path(__file__).parent / "emulated" / "codes.txt").read_text()
PUBLISHED = {int(code): f"ACL_ERROR_{name}" for code, name in re.findall(r"(\d+) (\w+)", TABLE)}
# In the runtime's header, rt_error_codes.h, and not in the table.
IN_THE_HEADER = {107035, 207016, 207017}
# Of calls that this plugin does not make: single operators, queues, captured graphs, callbacks,
# dumps, snapshots, debuggers, images, dies, user functions.
OF_OTHER_CALLS = re.compile(
    r"_OP_|QUEUE|CAPTURE|TASK_GROUP|SUBSCRIBE|CALLBACK|GROUP_NOT|DUMP|SNAPSHOT|KERNEL|BIN_SELECTOR|"
    r"CB_REG|RINGBUFFER|DEBUG_|DIE|JPEG|AIPP|SYMBOL|HOST_MEMORY|SYSPARAM|LABEL|UNJOINED|CCU_|"
    r"USER_RAISE|DATA_NOT_ALIGNED|INPUT_ARRAY|MODEL_UPDATE|DEVICE_FUNCTION|NOT_CLEARED|CDQ|"
    r"SEND_MSG|OVER_LIMIT|REPEATED_INIT|NOT_COMPLETE|TASK_EMPTY|END_OF_SEQUENCE"
)


def test_names_are_those_that_cann_publishes() -> None:
    for code, name in codes.NAMES.items():
        assert PUBLISHED.get(code, name) == name
    assert codes.NAMES.keys() - PUBLISHED.keys() == IN_THE_HEADER
    unnamed = PUBLISHED.keys() - codes.NAMES.keys()
    met = [PUBLISHED[code] for code in unnamed if not OF_OTHER_CALLS.search(PUBLISHED[code])]
    assert met == []


@pytest.mark.parametrize("code", sorted(PUBLISHED.keys() | IN_THE_HEADER | {199999, 599999}))
def test_every_error_says_what_to_do_on_one_line(code: int) -> None:
    error = acl_call.error(code, "load the model", "m.om")
    told, _, advice = str(error).partition(f" {code}; ")
    assert told.startswith("m.om: could not load the model: ")
    assert len(advice) > 15
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("code", "kind", "advice"),
    [
        (207018, BackendUnavailable, "close other models or processes"),
        (245002, BackendUnavailable, "close other models or processes"),
        (207004, BackendUnavailable, "run: engine plugins"),
        (207006, BackendUnavailable, "lender's list of pids"),
        (507054, BackendUnavailable, "npu-smi info"),
        (507056, BackendUnavailable, "the other device or its process"),
        (148049, BackendUnavailable, "source its set_env.sh"),
        (545005, ModelError, "compile it anew"),
        (145021, ModelError, "input_shape, dynamic_dims"),
        (207000, ModelError, "update driver and CANN"),
        (507014, ModelError, "longer than CANN allows"),
        (507046, DeadlineExceeded, "timeout_s"),
        (107017, ModelError, "please report it"),
        (500002, ModelError, "CANN's log"),
    ],
)  # fmt: skip
def test_a_code_is_an_error_of_the_right_class(code: int, kind: type, advice: str) -> None:
    error = acl_call.error(code, "run the model")
    assert type(error) is kind
    assert advice in str(error)
    assert codes.NAMES[code] in str(error)


def test_a_user_reads_the_advice_after_what_cann_says(
    build: Any, predict: Any, machine: Any, tmp_path: Path
) -> None:
    context = build(models.affine(tmp_path)).open_context()
    machine.fail("mdl.execute_async", 507015, message="EZ9999: aicore error")
    with pytest.raises(ModelError, match=r"AICORE_EXCEPTION 507015; CANN says: EZ9999: aicore "
                                         r"error; an operator failed on this data"):  # fmt: skip
        predict(context, np.ones((1, 3), np.float32))


def test_every_code_of_hccl_has_its_name_and_says_what_to_do_on_one_line() -> None:
    assert sorted(hccl_codes.NAMES) == [*range(1, 25), 1041]
    for code in (*hccl_codes.NAMES, 25, 1000):
        error = hccl.error(code, "join the group")
        assert type(error) is CommunicatorError
        told, _, advice = str(error).partition(f" {code}; ")
        assert told == f"could not join the group: {hccl_codes.NAMES.get(code, 'HCCL returned')}"
        assert len(advice) > 15
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("code", "name", "advice"),
    [
        (1, "HCCL_E_PARA", "rank table"),
        (9, "HCCL_E_TIMEOUT", "HCCL_EXEC_TIMEOUT"),
        (11, "HCCL_E_TCP_CONNECT", "HCCL_SOCKET_IFNAME"),
        (15, "HCCL_E_RUNTIME", "npu-smi info"),
        (20, "HCCL_E_AGAIN", "try again"),
        (21, "HCCL_E_REMOTE", "the other device or its process"),
        (24, "HCCL_E_OOM", "HCCL_BUFFSIZE"),
        (1041, "HCCL_E_IN_STATUS", "CANN's log"),
    ],
)
def test_a_code_of_hccl_is_named_and_explained(code: int, name: str, advice: str) -> None:
    text = str(hccl.error(code, "join the group"))
    assert f": {name} {code}; " in text
    assert advice in text
