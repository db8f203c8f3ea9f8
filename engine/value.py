"""The decorator of the contract's values: frozen dataclasses with slots that are quick to define.

`@value` stands for `@dataclass(frozen=True, slots=True)`, and what it makes is a dataclass:
`dataclasses.fields`, `replace` and `asdict` take it. Before Python 3.13 dataclasses compiles six
methods for each class, one by one: for the contract that is a third of what this package adds to
the start of a process. Here only `__init__` is compiled, once it is wanted: most classes have no
object in a process that loads and predicts. The other methods are the same for all, and what
dataclasses tells of a class it is asked for when somebody wants to know.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field
from typing import Any, TypeVar, dataclass_transform, overload

T = TypeVar("T")


@overload
def value(cls: type[T], /) -> type[T]: ...
@overload
def value(
    *, kw_only: bool = False, eq: bool = True, order: bool = False
) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(
    cls: type[T] | None = None,
    /,
    *,
    kw_only: bool = False,
    eq: bool = True,
    order: bool = False,
) -> Any:
    """Make a frozen dataclass with slots of a class.

    kw_only: its fields are passed by keyword only. eq: two are equal where all their fields are;
    else one equals itself alone. order: they are sorted by their fields.
    Of `field` it knows `default`, `default_factory`, `kw_only` and `repr`; every annotation in the
    body is a field.
    """
    methods = _COMMON | (_EQUALITY if eq else {}) | (_ORDER if order else {})
    if cls is None:
        return lambda cls: _made(cls, kw_only, methods)
    return _made(cls, kw_only, methods)


def _made(cls: type[Any], kw_only: bool, methods: Mapping[str, Any]) -> Any:
    definition, own = _Definition(cls, kw_only), cls.__annotations__
    inherited = {name for base in cls.__mro__[1:] for name in vars(base).get("__slots__", ())}
    slots = tuple(name for name in definition.parameters if name not in inherited)
    # All at once: to set a method of a class that is there already costs much more.
    namespace = {name: thing for name, thing in vars(cls).items() if name not in own}
    for name in ("__dict__", "__weakref__"):
        namespace.pop(name, None)
    init = _Init(definition.parameters)
    told = {name: _Told(definition, name) for name in _TOLD}
    namespace = {**methods, **told, **namespace, "__slots__": slots, "__init__": init}
    kind: Any = type(cls)
    made = kind(cls.__name__, cls.__bases__, namespace)
    made.__qualname__ = cls.__qualname__
    definition.of = init.of = made
    return made


class _Parameter:
    """One argument of `__init__`, as its field says."""

    __slots__ = ("annotation", "default", "factory", "kw_only")

    def __init__(self, annotation: Any, default: Any, factory: Any, kw_only: bool) -> None:
        self.annotation = annotation
        self.default = default
        self.factory = factory
        self.kw_only = kw_only


class _Definition:
    """The fields of a class, as they stand in its body, and those that it inherits."""

    __slots__ = ("_body", "_is_heir", "_kw_only", "of", "parameters")

    of: type[Any]

    def __init__(self, cls: type[Any], kw_only: bool) -> None:
        body, annotations = vars(cls), cls.__annotations__
        self.parameters: dict[str, _Parameter] = {}
        for base in reversed(cls.__mro__[1:]):
            self.parameters |= _parameters_of(base)
        self._is_heir = bool(self.parameters)
        for name, annotation in annotations.items():
            self.parameters[name] = _parameter(annotation, body.get(name, MISSING), kw_only)
        self._kw_only = kw_only
        self._body = {name: body[name] for name in annotations if name in body}
        # What makes a class generic is not among its bases.
        self._body |= {name: body[name] for name in ("__orig_bases__",) if name in body}
        self._body |= {"__annotations__": annotations, "__module__": cls.__module__}

    def describe(self) -> None:
        """Let dataclasses say of the class what it says of its own."""
        kind: Any = type(self.of)
        # Where a class has no docstring, dataclasses works out a signature for one: milliseconds.
        body = {**self._body, "__doc__": "Described, and forgotten."}
        twin = kind(self.of.__name__, self.of.__bases__, body)
        # Dataclasses inherit frozen=True or its absence, not a mixture. It compiles two methods.
        frozen, kw_only = self._is_heir, self._kw_only
        dataclass(twin, init=False, repr=False, eq=False, frozen=frozen, kw_only=kw_only)
        twin.__dataclass_params__.frozen = True
        for name in _TOLD:
            if isinstance(vars(self.of)[name], _Told):  # not one of its own
                setattr(self.of, name, vars(twin)[name])


class _Told:
    """Stands for what dataclasses tells of a class until that is first wanted."""

    __slots__ = ("_name", "definition")

    def __init__(self, definition: _Definition, name: str) -> None:
        self.definition = definition
        self._name = name

    def __get__(self, instance: Any, owner: type[Any]) -> Any:
        self.definition.describe()
        return getattr(owner if instance is None else instance, self._name)


_TOLD = ("__dataclass_fields__", "__dataclass_params__", "__match_args__") + (
    ("__replace__",) if sys.version_info >= (3, 13) else ()
)


def _parameters_of(base: type[Any]) -> Mapping[str, _Parameter]:
    told = vars(base).get("__dataclass_fields__", {})
    if isinstance(told, _Told):
        return told.definition.parameters
    return {name: _parameter(found.type, found, found.kw_only) for name, found in told.items()}


def _parameter(annotation: Any, given: Any, kw_only: bool) -> _Parameter:
    """Return what a field takes; `given` stands behind its name: a default, field(...), MISSING."""
    default = given.default if isinstance(given, Field) else given
    if type(default).__hash__ is None:
        raise ValueError(f"mutable default {default!r}; use field(default_factory=...)")
    if not isinstance(given, Field):
        return _Parameter(annotation, given, MISSING, kw_only)
    own = kw_only if given.kw_only is MISSING else given.kw_only
    return _Parameter(annotation, given.default, given.default_factory, own)


class _Init:
    """Stands for the `__init__` of a class until that is first wanted, which compiles it."""

    __slots__ = ("_parameters", "of")

    of: type[Any]

    def __init__(self, parameters: Mapping[str, _Parameter]) -> None:
        self._parameters = parameters

    def __get__(self, instance: Any, owner: type[Any]) -> Any:
        cls: Any = self.of  # not `owner`, which may be an heir
        cls.__init__ = init = _init(cls, self._parameters)
        return init.__get__(instance, owner)


def _init(cls: type[Any], own: Mapping[str, _Parameter]) -> Any:
    """Compile the `__init__` of a class; values are stored by its slots' own setters."""
    names: dict[str, Any] = {f"_set_{name}": getattr(cls, name).__set__ for name in own}
    names["_MISSING"] = MISSING
    parameters, by_keyword, body = ["self"], list[str](), list[str]()
    for name, found in own.items():
        parameter = given = name
        if found.default is not MISSING:
            names[f"_default_{name}"] = found.default
            parameter += f"=_default_{name}"
        elif found.factory is not MISSING:
            names[f"_make_{name}"] = found.factory
            parameter += "=_MISSING"
            given = f"_make_{name}() if {name} is _MISSING else {name}"
        (by_keyword if found.kw_only else parameters).append(parameter)
        body.append(f"_set_{name}(self, {given})")
    if by_keyword:
        parameters += ["*", *by_keyword]
    exec(f"def __init__({', '.join(parameters)}): {'; '.join(body)}", names)
    init = names["__init__"]
    init.__module__, init.__qualname__ = cls.__module__, f"{cls.__qualname__}.__init__"
    annotations = {name: found.annotation for name, found in own.items()}
    init.__annotations__ = {**annotations, "return": None}
    return init


def _contents(self: Any) -> tuple[Any, ...]:
    return tuple([getattr(self, name) for name in self.__dataclass_fields__])


def __repr__(self: Any) -> str:
    described = self.__dataclass_fields__.values()
    named = [f"{each.name}={getattr(self, each.name)!r}" for each in described if each.repr]
    return f"{type(self).__qualname__}({', '.join(named)})"


def __eq__(self: Any, other: object) -> bool:
    return _contents(self) == _contents(other) if _are_alike(self, other) else NotImplemented


def __hash__(self: Any) -> int:
    return hash(_contents(self))


def __setattr__(self: Any, name: str, new: object) -> None:
    _refuse("assign to", type(self), name)
    object.__setattr__(self, name, new)


def __delattr__(self: Any, name: str) -> None:
    _refuse("delete", type(self), name)
    object.__delattr__(self, name)


def _refuse(verb: str, cls: type[Any], name: str) -> None:
    # A class that inherits from a value without being one may have attributes of its own.
    if "__dataclass_fields__" in cls.__dict__ or name in cls.__dataclass_fields__:
        raise FrozenInstanceError(f"cannot {verb} field {name!r}")


def __getstate__(self: Any) -> tuple[Any, ...]:
    return _contents(self)


def __setstate__(self: Any, state: tuple[Any, ...]) -> None:
    for name, content in zip(self.__dataclass_fields__, state, strict=True):
        object.__setattr__(self, name, content)


def __lt__(self: Any, other: Any) -> bool:
    return _contents(self) < _contents(other) if _are_alike(self, other) else NotImplemented


def __le__(self: Any, other: Any) -> bool:
    return _contents(self) <= _contents(other) if _are_alike(self, other) else NotImplemented


def __gt__(self: Any, other: Any) -> bool:
    return _contents(self) > _contents(other) if _are_alike(self, other) else NotImplemented


def __ge__(self: Any, other: Any) -> bool:
    return _contents(self) >= _contents(other) if _are_alike(self, other) else NotImplemented


def _are_alike(one: object, other: object) -> bool:
    return one.__class__ is other.__class__


def _by_name(*functions: Callable[..., Any]) -> dict[str, Any]:
    return {function.__name__: function for function in functions}


_COMMON = _by_name(__repr__, __setattr__, __delattr__, __getstate__, __setstate__)
_EQUALITY = _by_name(__eq__, __hash__)
_ORDER = _by_name(__lt__, __le__, __gt__, __ge__)
