"""SessionOptions and RunOptions, as scripts fill them in.

Where onnxruntime is installed they are its own, which check what they are given; a SessionOptions
notes besides what it was told by calls, because the runtime's cannot be asked for it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

from engine.onnxruntime.genuine import native
from engine.onnxruntime.providers import TARGETS
from engine.types import CancelToken

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class _ExecutionMode(IntEnum):
    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class _ExecutionOrder(IntEnum):
    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class _GraphOptimizationLevel(IntEnum):
    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


ExecutionMode: Any = getattr(native, "ExecutionMode", _ExecutionMode)
"""The enumeration of onnxruntime: nodes one after the other, or in parallel."""
ExecutionOrder: Any = getattr(native, "ExecutionOrder", _ExecutionOrder)
"""The enumeration of onnxruntime: the order of nodes that are ready."""
GraphOptimizationLevel: Any = getattr(native, "GraphOptimizationLevel", _GraphOptimizationLevel)
"""The enumeration of onnxruntime: the rewrites that it may make."""


class _Fields:
    """The fields of onnxruntime's SessionOptions, where there is none."""

    __slots__ = (
        "enable_cpu_mem_arena",
        "enable_mem_pattern",
        "enable_mem_reuse",
        "enable_profiling",
        "execution_mode",
        "execution_order",
        "graph_optimization_level",
        "inter_op_num_threads",
        "intra_op_num_threads",
        "log_severity_level",
        "log_verbosity_level",
        "logid",
        "optimized_model_filepath",
        "profile_file_prefix",
        "use_deterministic_compute",
        "use_per_session_threads",
    )

    def __init__(self) -> None:
        self.enable_cpu_mem_arena = True
        self.enable_mem_pattern = True
        self.enable_mem_reuse = True
        self.enable_profiling = False
        self.execution_mode = ExecutionMode.ORT_SEQUENTIAL
        self.execution_order = ExecutionOrder.DEFAULT
        self.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
        self.inter_op_num_threads = 0
        self.intra_op_num_threads = 0
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.optimized_model_filepath = ""
        self.profile_file_prefix = "onnxruntime_profile_"
        self.use_deterministic_compute = False
        self.use_per_session_threads = True

    def get_session_config_entry(self, key: str) -> str:
        entries: dict[str, str] = self.noted.entries  # type: ignore[attr-defined]
        if key not in entries:
            raise RuntimeError(f"SessionOptions does not have configuration with key: {key}")
        return entries[key]

    def has_providers(self) -> bool:
        return bool(self.noted.providers)  # type: ignore[attr-defined]


class Noted:
    """Settings that a SessionOptions got by calls.

    sizes: of open axes, by their name. denoted: likewise, by their denotation. initializers: values
    that take the place of the file's. files: contents of files of external data. libraries: of
    custom operators. providers: in order, each with its options. cancel: ends a build.
    """

    def __init__(self) -> None:
        self.entries: dict[str, str] = {}
        self.sizes: dict[str, int] = {}
        self.denoted: dict[str, int] = {}
        self.initializers: dict[str, Any] = {}
        self.files: dict[str, bytes] = {}
        self.libraries: list[str] = []
        self.providers: list[tuple[str, dict[str, str]]] = []
        self.cancel = CancelToken()


_Base: Any = getattr(native, "SessionOptions", _Fields)


class SessionOptions(_Base):  # type: ignore[misc]
    """Settings of a session; see onnxruntime's own documentation for each."""

    __slots__ = ("noted",)  # a misspelt field is an AttributeError, as onnxruntime's

    def __init__(self) -> None:
        self.noted = Noted()
        super().__init__()

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Set one of onnxruntime's configuration entries."""
        _tell(super(), "add_session_config_entry", key, value)
        self.noted.entries[key] = value

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Fix the open axes of a name."""
        _tell(super(), "add_free_dimension_override_by_name", name, size)
        self.noted.sizes[name] = size

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Fix the open axes of a denotation."""
        _tell(super(), "add_free_dimension_override_by_denotation", denotation, size)
        self.noted.denoted[denotation] = size

    def add_initializer(self, name: str, value: Any) -> None:
        """Have an OrtValue take the place of an initializer of the file."""
        _tell(super(), "add_initializer", name, value)
        self.noted.initializers[name] = value

    def add_external_initializers(self, names: Sequence[str], values: Sequence[Any]) -> None:
        """Have OrtValues take the place of initializers whose data is not in the file."""
        _tell(super(), "add_external_initializers", names, values)
        self.noted.initializers.update(zip(names, values, strict=True))

    def add_external_initializers_from_files_in_memory(
        self, names: Sequence[str], contents: Sequence[Any], lengths: Sequence[int]
    ) -> None:
        """Give the contents of files of external data."""
        own = "add_external_initializers_from_files_in_memory"
        _tell(super(), own, names, contents, lengths)
        for name, content, length in zip(names, contents, lengths, strict=True):
            self.noted.files[name] = bytes(memoryview(content).cast("B")[:length])

    def register_custom_ops_library(self, path: str) -> None:
        """Take the operators of a shared library."""
        _tell(super(), "register_custom_ops_library", path)
        self.noted.libraries.append(str(path))

    def set_load_cancellation_flag(self, is_cancelled: bool) -> None:
        """End the making of a session with these options, in another thread."""
        _tell(super(), "set_load_cancellation_flag", is_cancelled)
        if is_cancelled:
            self.noted.cancel.cancel()
        elif self.noted.cancel.cancelled:
            self.noted.cancel = CancelToken()

    def add_provider(self, name: str, options: Mapping[str, str] | None = None) -> None:
        """Add an execution provider, behind those that were added before."""
        given = {str(key): str(value) for key, value in (options or {}).items()}
        if name not in TARGETS:
            _tell(super(), "add_provider", name, given)
        self.noted.providers.append((name, given))

    def has_providers(self) -> bool:
        """Return whether providers were added."""
        return bool(self.noted.providers) or bool(super().has_providers())


def _tell(runtime: Any, method: str, *arguments: Any) -> None:
    """Call a method of the runtime's class, which refuses what is wrong, where it has it."""
    found = getattr(runtime, method, None)
    if found is not None:
        found(*arguments)


class _RunOptions:
    """onnxruntime's RunOptions, where there is none."""

    def __init__(self) -> None:
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.only_execute_path_to_fetches = False
        self.terminate = False
        self._entries: dict[str, str] = {}

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Set one of onnxruntime's entries of a run."""
        self._entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """Return what an entry was set to."""
        if key not in self._entries:
            raise RuntimeError(f"RunOptions does not have configuration with key: {key}")
        return self._entries[key]


RunOptions: Any = getattr(native, "RunOptions", _RunOptions)
"""The class of onnxruntime: the settings of one run."""


def noted_of(options: Any) -> Noted:
    """Return what options were told by calls; nothing is known of the runtime's own."""
    return getattr(options, "noted", None) or Noted()
