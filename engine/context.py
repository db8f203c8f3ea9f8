"""Context: where a model runs and how. The API is MindSpore Lite's."""

from __future__ import annotations

import os
from collections.abc import Sized
from typing import Literal, TypeAlias

from engine.config.checks import require, require_choice, require_count, require_int, require_list
from engine.config.settings import Settings, setting
from engine.host.launched import is_launched
from engine.wings import wing

__all__ = ["Context"]

Float32Arithmetic: TypeAlias = Literal["enforce_fp32", "preferred_fp16"]
AscendPrecision: TypeAlias = Literal[
    "enforce_fp32", "preferred_fp32", "enforce_fp16", "enforce_origin", "preferred_optimal"
]


def _launched_rank() -> int:
    """Return this process's rank in the job that it was started for; 0 outside of one."""
    return wing("this_job")().rank if is_launched() else 0


class CpuSettings(Settings):
    """Settings of the CPU; also of what a GPU's or NPU's model does on the host."""

    _called = "context.cpu"

    @setting("enforce_fp32")
    def precision_mode(self, value: Float32Arithmetic) -> Float32Arithmetic:
        """Arithmetic on float32 values: "enforce_fp32", or "preferred_fp16" where it is faster."""
        return require_choice("cpu_precision_mode", value, "enforce_fp32", "preferred_fp16")

    @setting(0)
    def thread_num(self, value: int) -> int:
        """Threads inside one operator; 0 fits them to the CPUs that this process may use."""
        return require_count("cpu_thread_num", value)

    @setting(0)
    def inter_op_parallel_num(self, value: int) -> int:
        """Operators that run at once; 0 for one."""
        return require_count("cpu_inter_op_parallel_num", value)

    @setting(0)
    def thread_affinity_mode(self, value: int) -> int:
        """0 none, 1 big cores first, 2 middle cores first; anything else warns and becomes 0."""
        mode = require_int("cpu_thread_affinity_mode", value)
        if mode in (0, 1, 2):
            return mode
        import warnings

        text = f"cpu_thread_affinity_mode must be 0, 1 or 2, but got {mode}; 0 is used"
        warnings.warn(text, stacklevel=4)  # the line that assigns: above the setting's own frames
        return 0

    @setting([])
    def thread_affinity_core_list(self, value: list[int]) -> list[int]:
        """CPU numbers to pin the threads to, one a thread; [] leaves them free.

        The first is for the thread that calls predict, which is never pinned. Reading gives a copy.
        """
        return require_list("cpu_thread_affinity_core_list", value, int)

    def __str__(self) -> str:
        return (
            "device_type: DeviceType.kCPU,\n"
            f"precision_mode: {self.precision_mode},\n"
            f"thread_num: {self.thread_num},\n"
            f"inter_op_parallel_num: {self.inter_op_parallel_num},\n"
            f"thread_affinity_mode: {self.thread_affinity_mode},\n"
            f"thread_affinity_core_list: {self.thread_affinity_core_list}."
        )


class GpuSettings(Settings):
    """Settings of NVIDIA GPUs."""

    _called = "context.gpu"

    @setting("enforce_fp32")
    def precision_mode(self, value: Float32Arithmetic) -> Float32Arithmetic:
        """Arithmetic on float32 values: "enforce_fp32", or "preferred_fp16" where it is faster."""
        return require_choice("gpu_precision_mode", value, "enforce_fp32", "preferred_fp16")

    @setting(0)
    def device_id(self, value: int) -> int:
        """Number of the GPU on this host."""
        return require_count("gpu_device_id", value)

    @setting("")
    def provider(self, value: str) -> str:
        """Provider of the backend, as "tensorrt"; "" for its default."""
        return require("gpu_provider", value, str)

    @property
    def rank_id(self) -> int:
        """This process among those that run one sliced model; 0 outside such a job."""
        return _launched_rank()

    @property
    def group_size(self) -> int:
        """Number of processes that run one sliced model; 1 outside such a job."""
        return wing("this_job")().world_size if is_launched() else 1

    def __str__(self) -> str:
        return (
            "device_type: DeviceType.kGPU,\n"
            f"precision_mode: {self.precision_mode},\n"
            f"device_id: {self.device_id},\n"
            f"rank_id: {self.rank_id},\n"
            f"group_size: {self.group_size}."
        )


class AscendSettings(Settings):
    """Settings of Ascend NPUs."""

    _called = "context.ascend"

    @setting("")
    def precision_mode(self, value: AscendPrecision) -> AscendPrecision | Literal[""]:
        """Type that operators compute in; "" until it is set: the model's own types.

        "enforce_fp32", "preferred_fp32", "enforce_fp16", "enforce_origin" or "preferred_optimal".
        """
        return require_choice(
            "ascend_precision_mode",
            value,
            "enforce_fp32",
            "preferred_fp32",
            "enforce_fp16",
            "enforce_origin",
            "preferred_optimal",
        )

    @setting(0)
    def device_id(self, value: int) -> int:
        """Number of the NPU on this host."""
        return require_count("ascend_device_id", value)

    @setting(_launched_rank)
    def rank_id(self, value: int) -> int:
        """This process among those that run one sliced model; as it was launched, until set."""
        return require_count("ascend_rank_id", value)

    @setting("")
    def provider(self, value: str) -> str:
        """Provider of the backend: "ge" for the Graph Engine; "" for its default."""
        return require("ascend_provider", value, str)

    def __str__(self) -> str:
        # The dots without line breaks are MindSpore Lite's own formatting.
        return (
            "device_type: DeviceType.kAscend,\n"
            f"precision_mode: {self.precision_mode},\n"
            f"device_id: {self.device_id}."
            f"provider: {self.provider}."
            f"rank_id: {self.rank_id}."
        )


class ParallelSettings(Settings):
    """Settings of a pool of workers that serve one model; Model does not read them."""

    _called = "context.parallel"

    @setting(0)
    def workers_num(self, value: int) -> int:
        """Workers that run the model at once; 0 fits them to the machine."""
        return require_count("workers_num", value, "Set parallel failed, ")

    @property
    def config_info(self) -> str:
        """Sections of options, which win over the file's. Reads as lines "section: key value".

        Set a dict {section: {key: value}}; it takes the place of what was set before.
        """
        sections: dict[str, dict[str, str]] = vars(self).get("config_info", {})
        return "\n".join(
            f"{section}: {key} {value}"
            for section, keys in sorted(sections.items())
            for key, value in sorted(keys.items())
        )

    @config_info.setter
    def config_info(self, value: dict[str, dict[str, str]]) -> None:
        from engine.config.sections import require_sections  # rare

        vars(self)["config_info"] = require_sections("config_info", value)

    @setting("")
    def config_path(self, value: str) -> str:
        """A file of such sections; "" for none. Setting "" changes nothing."""
        path = require("config_path", value, str)
        if path and not os.path.exists(path):
            raise ValueError(f"Set parallel failed, config_path does not exist! Got {path!r}")
        return path or self.config_path

    @setting([])
    def device_ids(self, value: list[int]) -> list[int]:
        """The devices to divide the workers among; [] takes the target's device_id."""
        device_ids = require_list("device_ids", value, int)
        if any(device_id < 0 for device_id in device_ids):
            raise ValueError(
                f"Set parallel failed, device_ids contain a negative number. Got {device_ids}"
            )
        return device_ids

    def __str__(self) -> str:
        return (
            f"workers num: {self.workers_num},\n"
            f"config info: {self.config_info},\n"
            f"config file: {self.config_path}."
        )


class Context(Settings):
    """Targets that a model may run on, in order, and the settings of each device type.

    A model reads its context when it is built; later changes do not reach it. Copying a context
    copies its settings too.
    """

    _called = "context"

    def __init__(self) -> None:
        self.cpu = CpuSettings()
        self.gpu = GpuSettings()
        self.ascend = AscendSettings()
        self.parallel = ParallelSettings()

    @setting(["cpu"])
    def target(self, value: list[str] | None) -> list[str]:
        """Device types ("cpu", "gpu", "ascend") or names of installed backends, in any case.

        "type:provider" chooses among several backends that serve one type. The first target is
        used; a later one only because it is listed here and an earlier one cannot be had, and
        `Model.placement` says so. ["auto"] stands for the backend that is measured to be the
        fastest for the model, and cpu where none is faster. [] and None stand for ["cpu"].
        Reading gives a copy, as set.
        """
        if len(value) == 0 if isinstance(value, Sized) else not value:
            return ["cpu"]
        target = require_list("target", value, str)
        for element in target:
            if element.lower() == "auto" and len(target) > 1:
                raise ValueError(
                    f"target 'auto' stands alone, but got {target}; it tries all installed "
                    "backends, and cpu runs what the chosen one cannot"
                )
            if element.lower() not in ("cpu", "gpu", "ascend", "auto"):
                _require_backend(element)
        return target

    @setting()
    def cpu(self, value: CpuSettings) -> CpuSettings:
        """Settings of the CPU. They may be changed before or after `target`, as may all others."""
        return require("cpu", value, CpuSettings)

    @setting()
    def gpu(self, value: GpuSettings) -> GpuSettings:
        """Settings of NVIDIA GPUs."""
        return require("gpu", value, GpuSettings)

    @setting()
    def ascend(self, value: AscendSettings) -> AscendSettings:
        """Settings of Ascend NPUs."""
        return require("ascend", value, AscendSettings)

    @setting()
    def parallel(self, value: ParallelSettings) -> ParallelSettings:
        """Settings of a pool of workers that serve one model."""
        return require("parallel", value, ParallelSettings)

    @setting("")
    def group_info_file(self, value: str) -> str:
        """A file that defines groups of ranks; "" for none."""
        return require("group_info_file", value, str)

    @setting(dict)
    def extensions(self, value: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
        """Extensions and observers that are on, by name with their options: docs/doors.md.

        {"prometheus": {"port": "9464"}, "trace": {}}. Those that the environment or the
        configuration switches on are on too. Reading gives a copy.
        """
        return {
            require("extensions' name", name, str): {
                require(f"{name}'s option", key, str): str(option)
                for key, option in require(f"options of {name}", options, dict).items()
            }
            for name, options in require("extensions", value, dict).items()
        }

    def __str__(self) -> str:
        return f"target: {self.target}."


def _require_backend(element: str) -> None:
    # Imported here: `import engine` must not cost a scan of what is installed.
    from engine.backends import installed, is_target
    from engine.backends.advice import hint_for
    from engine.backends.device_types import is_served

    if is_target(element) or is_served(element):
        return
    here = ", ".join(installed()) or "none"
    hint = hint_for(element)
    raise ValueError(
        f"target elements must be in ['cpu', 'gpu', 'ascend'], but got {element.lower()}. "
        f"Or the name of an installed backend (installed: {here})" + (f"; {hint}" if hint else "")
    )
