"""The errors that users see.

    EngineError
    ├── BackendError               a target cannot be had
    │   ├── BackendNotInstalled    no entry point of that name
    │   ├── BackendIncompatible    speaks another version of the contract
    │   └── BackendUnavailable     plugin found, but broken, disabled or without a device
    ├── ModelError                 the model cannot be read, loaded or compiled
    │   ├── ModelNotFound          no file at the path of a model or of its configuration
    │   ├── CompiledFormError      a compiled form cannot be used: the core compiles anew
    │   └── RequestRefused         a request has ended every worker process that ran it
    ├── ModelStateError            unbuilt, built twice, closed, forked
    ├── InputError                 inputs or outputs do not fit the model
    ├── SettingError               a setting of a model that is built is wrong
    ├── DeadlineExceeded           a predict was stopped at its deadline
    ├── ExtensionError             an extension that was switched on is not installed or fails
    ├── Cancelled                  a compile or a request was cancelled by its owner
    ├── QueueFull                  a bounded queue refused a request
    ├── SharingError               weights cannot be lent or borrowed by a handle
    │   └── SharingRefused         the master does not lend its weights to this process
    └── CommunicatorError          a collective failed or timed out: which ranks

Each class also inherits the builtin exception that scripts written for MindSpore Lite catch, so
`except RuntimeError` keeps working. Messages start in lower case unless they quote MindSpore
Lite's own text, say what was expected and what came, and name the next step; the facts in them
are attributes too.
"""

from __future__ import annotations

import errno

_HEAD, _TAIL = 6000, 1000


def shortened(text: str) -> str:
    """Return a message without the middle of what it quotes, where that is longer than a page."""
    if len(text) <= _HEAD + _TAIL:
        return text
    left_out = len(text) - _HEAD - _TAIL
    return f"{text[:_HEAD]} ... ({left_out:,} characters) ... {text[-_TAIL:]}"


class EngineError(Exception):
    """The base of every error that this package raises on purpose.

    As text it has a page at most: what came, which it quotes, may be a whole file.
    """

    def __str__(self) -> str:
        return shortened(Exception.__str__(self))  # not OSError's or KeyError's


class BackendError(EngineError, RuntimeError):
    """A target or backend cannot be had.

    name: the backend or target that was asked for.
    """

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class BackendNotInstalled(BackendError):
    """No installed distribution offers the backend. `installed` holds the names that there are."""

    def __init__(self, message: str, name: str = "", installed: tuple[str, ...] = ()) -> None:
        super().__init__(message, name)
        self.installed = installed


class BackendIncompatible(BackendError):
    """The installed plugin speaks another version of the contract than this core."""


class BackendUnavailable(BackendError):
    """The plugin is installed, but broken, disabled, or finds no device."""


class ModelError(EngineError, RuntimeError, ValueError):
    """A model cannot be read, loaded or compiled, or fails on its data.

    path: its file ("" for bytes). at_fault: the backend whose predict raised what the contract
    does not name; "" where the model or its data are to blame.
    """

    def __init__(self, message: str, path: str = "", at_fault: str = "") -> None:
        super().__init__(message)
        self.path = path
        self.at_fault = at_fault


class ModelNotFound(ModelError, FileNotFoundError):
    """There is no file at the path of a model, or of its configuration: `path`, or `filename`."""

    __str__ = EngineError.__str__  # not OSError's, which would say the path again

    def __init__(self, message: str, path: str = "", at_fault: str = "") -> None:
        super().__init__(message, path, at_fault)
        self.errno = errno.ENOENT
        self.filename = path


class CompiledFormError(ModelError):
    """A compiled form is damaged, or made for another version or device than was recorded.

    For backends: raised out of engine_load or engine_compile where `ModelSource.compiled` is set.
    The core then loads the model without it; users do not see this error.
    """


class RequestRefused(ModelError):
    """A request has ended every worker process that ran it, and is not tried again."""


class ModelStateError(EngineError, RuntimeError):
    """The call does not fit the model's life: not built yet, built twice, closed, or forked."""


class InputError(EngineError, RuntimeError, ValueError):
    """Inputs, outputs or shapes do not fit the model. `name` is the input's or output's name."""

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class SettingError(EngineError, RuntimeError, ValueError):
    """A setting with which a model is to be built is wrong: of its configuration or its context."""


class DeadlineExceeded(EngineError, RuntimeError, TimeoutError):
    """A call was stopped at its deadline; what it ran on stays usable.

    timeout_s: how long its caller had given it, None where that is not known.
    """

    def __init__(self, message: str, timeout_s: float | None = None) -> None:
        super().__init__(message)
        self.timeout_s = timeout_s


class ExtensionError(EngineError, RuntimeError):
    """An extension that the user has switched on is not installed, or fails. `name`: its name."""

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class Cancelled(EngineError, RuntimeError):
    """Long work was cancelled through its token."""


class QueueFull(EngineError, RuntimeError):
    """A bounded queue refused a request; try again later."""


class SharingError(EngineError, RuntimeError, ValueError):
    """Weights cannot be lent or borrowed by a handle: the settings, the master or the model."""


class SharingRefused(SharingError, PermissionError):
    """The master does not lend its weights to this process."""


class CommunicatorError(EngineError, RuntimeError):
    """A collective failed or timed out.

    ranks: the ones that did not arrive, if known, by their numbers in the job (as in
    `CommunicatorOptions.ranks`). timed_out: the time given for it has passed.
    """

    def __init__(
        self, message: str, ranks: tuple[int, ...] = (), *, timed_out: bool = False
    ) -> None:
        super().__init__(message)
        self.ranks = ranks
        self.timed_out = timed_out


def one_line(error: BaseException) -> str:
    """Any exception as one line, for a message of ours: "KeyError: 'x'"."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
