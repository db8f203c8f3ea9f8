"""Context: where a model runs and how. The API is MindSpore Lite's."""

from __future__ import annotations

from typing import Any

__all__ = ["Context"]

_ASCEND_PRECISIONS = (
    "enforce_fp32",
    "preferred_fp32",
    "enforce_fp16",
    "enforce_origin",
    "preferred_optimal",
)


class Context:
    """Where a model runs: an ordered list of targets, and the settings of each device type.

    `target` is a list of device types ("cpu", "gpu", "ascend") or names of installed backends;
    "type:provider" chooses among several that serve one type. The first is used; a later one only
    if the user listed it and the earlier cannot be had, and `Model.placement` says so.
    `cpu`, `gpu` and `ascend` hold settings and may be changed before or after `target`.
    A model reads its context when it is built; later changes do not reach it.
    """

    def __init__(self) -> None:
        self._target = ["cpu"]
        self.cpu = CpuSettings()
        self.gpu = GpuSettings()
        self.ascend = AscendSettings()
        self._group_info_file = ""

    @property
    def target(self) -> list[str]:
        """The targets as the user gave them; setting [] or None means ["cpu"].

        Raises TypeError for anything but a list of str, ValueError for an element that is
        neither a device type nor the name of an installed backend.
        """
        return list(self._target)

    @target.setter
    def target(self, target: list[str] | None) -> None:
        if not target:
            self._target = ["cpu"]
            return
        if not isinstance(target, list):
            raise TypeError(f"target must be list, but got {type(target)}.")
        for index, element in enumerate(target):
            if not isinstance(element, str):
                raise TypeError(f"target element must be str, but got {type(element)} at index "
                                f"{index}.")  # fmt: skip
        for element in target:
            if element.lower() not in ("cpu", "gpu", "ascend"):
                _check_backend(element)
        self._target = list(target)

    @property
    def group_info_file(self) -> str:
        """A file that defines groups of ranks; "" for none."""
        return self._group_info_file

    @group_info_file.setter
    def group_info_file(self, group_info_file: str) -> None:
        if not isinstance(group_info_file, str):
            raise TypeError(f"group_info_file must be str, but got {type(group_info_file)}.")
        self._group_info_file = group_info_file

    def __str__(self) -> str:
        return f"target: {self.target}."


class CpuSettings:
    """Settings of the CPU. thread_num 0 takes the CPUs that this process may use.

    precision_mode: "enforce_fp32" or "preferred_fp16". inter_op_parallel_num: operators that run
    at once, 0 for one. thread_affinity_mode: 0 none, 1 big cores first, 2 middle cores first.
    thread_affinity_core_list: CPU numbers to pin threads to; [] for none.
    """

    def __init__(self) -> None:
        self._precision_mode = "enforce_fp32"
        self._thread_num = 0
        self._inter_op_parallel_num = 0
        self._thread_affinity_mode = 0
        self._thread_affinity_core_list: list[int] = []

    @property
    def precision_mode(self) -> str:
        """ "enforce_fp32" or "preferred_fp16"."""
        return self._precision_mode

    @precision_mode.setter
    def precision_mode(self, value: str) -> None:
        self._precision_mode = _one_of(
            "cpu_precision_mode", value, ("enforce_fp32", "preferred_fp16")
        )

    @property
    def thread_num(self) -> int:
        """Threads inside one operator; 0 lets the runtime fit them to the machine."""
        return self._thread_num

    @thread_num.setter
    def thread_num(self, value: int) -> None:
        self._thread_num = _non_negative("cpu_thread_num", value)

    @property
    def inter_op_parallel_num(self) -> int:
        """Operators that run at once; 0 for one."""
        return self._inter_op_parallel_num

    @inter_op_parallel_num.setter
    def inter_op_parallel_num(self, value: int) -> None:
        self._inter_op_parallel_num = _non_negative("cpu_inter_op_parallel_num", value)

    @property
    def thread_affinity_mode(self) -> int:
        """0 none, 1 big cores first, 2 middle cores first; anything else warns and becomes 0."""
        return self._thread_affinity_mode

    @thread_affinity_mode.setter
    def thread_affinity_mode(self, value: int) -> None:
        _integer("cpu_thread_affinity_mode", value)
        if value not in (0, 1, 2):
            import warnings

            warnings.warn(
                f"cpu_thread_affinity_mode must be 0, 1 or 2, but got {value}; 0 is used",
                stacklevel=2,
            )
            value = 0
        self._thread_affinity_mode = value

    @property
    def thread_affinity_core_list(self) -> list[int]:
        """CPU numbers to pin the threads to; [] leaves them free."""
        return list(self._thread_affinity_core_list)

    @thread_affinity_core_list.setter
    def thread_affinity_core_list(self, value: list[int]) -> None:
        name = "cpu_thread_affinity_core_list"
        if not isinstance(value, list):
            raise TypeError(f"{name} must be list, but got {type(value)}.")
        for index, core in enumerate(value):
            if not isinstance(core, int):
                raise TypeError(f"{name} element must be int, but got {type(core)} at index "
                                f"{index}.")  # fmt: skip
        self._thread_affinity_core_list = list(value)

    def __str__(self) -> str:
        return (
            "device_type: DeviceType.kCPU,\n"
            f"precision_mode: {self.precision_mode},\n"
            f"thread_num: {self.thread_num},\n"
            f"inter_op_parallel_num: {self.inter_op_parallel_num},\n"
            f"thread_affinity_mode: {self.thread_affinity_mode},\n"
            f"thread_affinity_core_list: {self.thread_affinity_core_list}."
        )


class GpuSettings:
    """Settings of NVIDIA GPUs. `provider` chooses among a backend's providers ("" its default)."""

    def __init__(self) -> None:
        self._precision_mode = "enforce_fp32"
        self._device_id = 0
        self._provider = ""

    @property
    def precision_mode(self) -> str:
        """ "enforce_fp32" or "preferred_fp16"."""
        return self._precision_mode

    @precision_mode.setter
    def precision_mode(self, value: str) -> None:
        self._precision_mode = _one_of(
            "gpu_precision_mode", value, ("enforce_fp32", "preferred_fp16")
        )

    @property
    def device_id(self) -> int:
        """Which GPU of this host."""
        return self._device_id

    @device_id.setter
    def device_id(self, value: int) -> None:
        self._device_id = _non_negative("gpu_device_id", value)

    @property
    def provider(self) -> str:
        """How the backend runs the model; "" for its default."""
        return self._provider

    @provider.setter
    def provider(self, value: str) -> None:
        if not isinstance(value, str):
            raise TypeError(f"gpu_provider must be str, but got {type(value)}.")
        self._provider = value

    @property
    def rank_id(self) -> int:
        """This process among those that run one sliced model; 0 outside such a job."""
        return 0

    @property
    def group_size(self) -> int:
        """How many processes run one sliced model; 1 outside such a job."""
        return 1

    def __str__(self) -> str:
        return (
            "device_type: DeviceType.kGPU,\n"
            f"precision_mode: {self.precision_mode},\n"
            f"device_id: {self.device_id},\n"
            f"rank_id: {self.rank_id},\n"
            f"group_size: {self.group_size}."
        )


class AscendSettings:
    """Settings of Ascend NPUs. provider "" runs through ACL, "ge" through the Graph Engine."""

    def __init__(self) -> None:
        self._precision_mode = ""
        self._device_id = 0
        self._rank_id = 0
        self._provider = ""

    @property
    def precision_mode(self) -> str:
        """One of MindSpore Lite's five modes; "" keeps the model's own types."""
        return self._precision_mode

    @precision_mode.setter
    def precision_mode(self, value: str) -> None:
        self._precision_mode = _one_of("ascend_precision_mode", value, _ASCEND_PRECISIONS)

    @property
    def device_id(self) -> int:
        """Which NPU of this host."""
        return self._device_id

    @device_id.setter
    def device_id(self, value: int) -> None:
        self._device_id = _non_negative("ascend_device_id", value)

    @property
    def rank_id(self) -> int:
        """This process among those that run one sliced model."""
        return self._rank_id

    @rank_id.setter
    def rank_id(self, value: int) -> None:
        self._rank_id = _non_negative("ascend_rank_id", value)

    @property
    def provider(self) -> str:
        """ "" or "ge"."""
        return self._provider

    @provider.setter
    def provider(self, value: str) -> None:
        if not isinstance(value, str):
            raise TypeError(f"ascend_provider must be str, but got {type(value)}.")
        self._provider = value

    def __str__(self) -> str:
        # The dots without line breaks are MindSpore Lite's own formatting.
        return (
            "device_type: DeviceType.kAscend,\n"
            f"precision_mode: {self.precision_mode},\n"
            f"device_id: {self.device_id}."
            f"provider: {self.provider}."
            f"rank_id: {self.rank_id}."
        )


def _integer(name: str, value: Any) -> None:
    if not isinstance(value, int):
        raise TypeError(f"{name} must be int, but got {type(value)}.")


def _non_negative(name: str, value: Any) -> int:
    _integer(name, value)
    if value < 0:
        raise ValueError(f"{name} must be a non-negative int. got {value}")
    return int(value)


def _one_of(name: str, value: Any, choices: tuple[str, ...]) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be str, but got {type(value)}.")
    if value not in choices:
        raise ValueError(f"{name} must be in [{', '.join(choices)}], but got {value}.")
    return value


def _check_backend(element: str) -> None:
    # Imported here: `import engine` must not cost a scan of what is installed.
    from engine.backends import installed, is_target

    if not is_target(element):
        here = ", ".join(installed()) or "none"
        raise ValueError(
            f"target elements must be in ['cpu', 'gpu', 'ascend'], but got {element.lower()}. "
            f"Or the name of an installed backend (installed: {here})"
        )
