"""ONNX Runtime's messages, in one line, with what they mean where that is known."""

from __future__ import annotations

import re
from itertools import islice

from engine.errors import EngineError, InputError, ModelError
from engine_cpu.runtime import ort

# Its words where a result has another shape than the buffer bound for it.
_BUFFER_REFUSED = ("output OrtValue provided", "OrtValue shape verification failed")


def translated(error: Exception) -> Exception:
    """Return the contract's exception for an exception of a run."""
    text = " ".join(str(error).split())
    if isinstance(error, EngineError):
        return error
    if isinstance(error, MemoryError):
        return ModelError("out of memory while running")
    if is_buffer_refused(text):
        return InputError(_unfit_buffer(text))
    return ModelError(f"onnxruntime: {without_signatures(text)}")


def is_buffer_refused(text: str) -> bool:
    """Return True for a bound output of another shape than the result."""
    return any(words in text for words in _BUFFER_REFUSED)


def _unfit_buffer(text: str) -> str:
    """Word the error for a bound output of another shape than the result."""
    match = re.search(r"for output '(.*?)' .*?has shape (\{.*?\}) but .*? is (\{.*?\})", text)
    if match is None:  # older ones name no output
        shapes = re.search(r"Current shape:(\{.*?\}) Requested shape:(\{.*?\})", text)
        if shapes is not None:
            given, result = (shape.strip("{}").replace(",", ", ") for shape in shapes.groups())
            return f"the result has shape [{result}], but the buffer given for it [{given}]"
        return f"a given output buffer does not fit the result: {' '.join(text.split())}"
    given, result = (shape.strip("{}").replace(",", ", ") for shape in match.group(2, 3))
    return (
        f"output {match[1]!r}: the result has shape [{result}], but the buffer given for it "
        f"[{given}]"
    )


def explained(text: str) -> str:
    """Return ONNX Runtime's reason for refusing a model, in one line."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : ", "", " ".join(text.split()))
    text = without_signatures(text)
    missing = re.search(
        r"(?:Could not find an implementation|Failed to find kernel) for (\w+)\((\d+)\)", text
    )
    if missing:
        return (
            f"operator {missing[1]!r} (version {missing[2]}) has no CPU kernel for these types "
            f"in onnxruntime {ort.__version__}: {text}"
        )
    name = unknown_operator(text)
    if name:
        domain, _, name = name.rpartition(":")
        where = f" of domain {domain!r}" if domain else ""
        return f"operator {name!r}{where} is unknown to onnxruntime {ort.__version__}: {text}"
    return text


def without_signatures(text: str) -> str:
    """Drop the places in ONNX Runtime's source that its messages name: file, line and function.

    The function comes with all types of its template, up to kilobytes of them.
    """
    kept, position = [], 0
    for place in islice(_PLACE.finditer(text), _PLACES):
        if place.start() >= position:
            kept.append(text[position : place.start()])
            position = _end_of_signature(text, place.end())
    return "".join([*kept, text[position:]])


_PLACE = re.compile(r"(?<![\w./\\:+-])[\w./\\:+-]{1,200}\.(?:cc|cpp|h|hpp|inc):\d+ ")
_PLACES = 8  # more are in no message, but perhaps in a name of the model
_PLAIN = re.compile(r"(?:operator(?:\(\)|\[\]|[<>=!+*/-]+)|[^()<>\[\]{}])*")
_BEHIND = re.compile(r"(?: const| mutable| noexcept| ?&&?)*(?: (?!const::)|$)")  # the parameters
_BRACKETS = re.compile(r"operator[<>()=-]+|->|[()<>\[\]{}]")
_CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}


def _end_of_signature(text: str, start: int) -> int:
    """Return where the message goes on behind the function at `start`; `start` where none is."""
    position = start
    while True:
        position = _PLAIN.match(text, position).end()  # type: ignore[union-attr]
        if text[position : position + 1] not in ("(", "<", "[", "{"):
            return start
        end = _closed(text, position)
        if end < 0:
            return start
        has_parameters = text[position] == "(" or text.startswith("<lambda", position)
        behind = _BEHIND.match(text, end) if has_parameters else None
        position = end
        if behind is not None:
            end = behind.end()
            types = _closed(text, end) if text.startswith("[with ", end) else end
            return len(text) if types < 0 else types + text.startswith(" ", types)


def _closed(text: str, start: int) -> int:
    """Return where the bracket at `start` is closed, behind it; -1 where it is not."""
    open_brackets: list[str] = []
    for match in _BRACKETS.finditer(text, start):
        bracket = match[0]
        if bracket in _CLOSING:
            open_brackets.append(_CLOSING[bracket])
        elif open_brackets and bracket == open_brackets[-1]:
            open_brackets.pop()
            if not open_brackets:
                return match.end()
    return -1


def unknown_operator(text: str) -> str:
    """Return the unknown operator that a message names, as "domain:name"; "" for none."""
    match = re.search(r"(?:Fatal error: )?([\w.]*:?[\w.]+)\(-1\) is not a registered", text)
    if match is None:
        match = re.search(r"No Op registered for (\w+)", text)
    return match[1] if match else ""


# Words of ONNX Runtime for a model that is in order and needs something that it has not. Whatever
# else it says is about a model that contradicts itself or breaks a rule of ONNX.
_LACKS = re.compile(
    r"not a registered|No Op registered|not implemented|NOT_IMPLEMENTED"
    r"|Could not find an implementation|Failed to find kernel"
    r"|[Uu]nsupported|(?:not|n't) support|not currently registered"
    r"|Unrecognized attribute"  # of a newer operator set
    r"|only \*guarantees\*"  # operator sets up to some version
    r"|Type Error: Type '|bound to different types"  # also in functions that it has inlined
    r"|Failed to construct locale"
)


def is_lack(text: str) -> bool:
    """Return True where ONNX Runtime refuses for want of something; False for a damaged model."""
    return _LACKS.search(text) is not None and "INVALID_PROTOBUF" not in text
