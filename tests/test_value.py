"""A value is what a frozen dataclass with slots is: each is compared with one of dataclasses."""

from __future__ import annotations

import copy
import inspect
import pickle
import pydoc
from collections.abc import Callable
from dataclasses import (
    MISSING,
    FrozenInstanceError,
    asdict,
    dataclass,
    field,
    fields,
    is_dataclass,
    replace,
)
from typing import Any, Generic, TypeVar

import pytest

from engine.value import value


@value
class Point:
    """A place."""

    x: int
    y: int = 2
    names: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return self.x + self.y


@value(kw_only=True)
class Named:
    """A place with a name."""

    name: str
    at: tuple[int, ...] = ()


@value(kw_only=True)
class Longer(Named):
    """One more field, in a slot of its own."""

    size: int = 3


@value(eq=False)
class Alone:
    """One that equals itself alone."""

    x: int


@value(order=True)
class Sorted:
    """Two that are compared by their fields, in order."""

    kind: str
    id: int = 0


def twin(cls: type[Any], **how: bool) -> type[Any]:
    """The same class by dataclasses: its own annotations, defaults and methods."""
    kept = {"__annotations__", "__doc__", "__module__", "total"}
    namespace = {name: thing for name, thing in vars(cls).items() if name in kept}
    for found in fields(cls):
        if found.name in cls.__annotations__:
            namespace[found.name] = field(
                default=found.default, default_factory=found.default_factory
            )
    made = type(cls.__name__, (), namespace)
    made.__qualname__ = cls.__qualname__
    return dataclass(made, frozen=True, slots=True, **how)  # type: ignore[call-overload]


PAIRS = [
    (Point, twin(Point), (1,), {}),
    (Point, twin(Point), (1, 5, {"a": 1}), {}),
    (Point, twin(Point), (), {"y": 4, "x": 3}),
    (Named, twin(Named, kw_only=True), (), {"name": "n"}),
    (Named, twin(Named, kw_only=True), (), {"at": (1, 2), "name": "n"}),
    (Alone, twin(Alone, eq=False), (1,), {}),
]


@pytest.mark.parametrize(("own", "standard", "given", "named"), PAIRS)
def test_a_value_is_made_shown_and_taken_apart_as_a_dataclass(
    own: Any, standard: Any, given: tuple[Any, ...], named: dict[str, Any]
) -> None:
    ours, theirs = own(*given, **named), standard(*given, **named)
    assert repr(ours) == repr(theirs)
    assert asdict(ours) == asdict(theirs)
    assert own.__match_args__ == standard.__match_args__
    assert own.__slots__ == standard.__slots__
    assert not hasattr(ours, "__dict__")
    parameters = inspect.signature(own).parameters
    assert list(parameters) == list(inspect.signature(standard).parameters)
    assert [found.kind for found in parameters.values()] == [
        found.kind for found in inspect.signature(standard).parameters.values()
    ]
    assert own.__init__.__annotations__ == standard.__init__.__annotations__


def test_a_field_that_is_not_to_be_shown_is_not() -> None:
    @value
    class Locked:
        name: str
        key: bytes = field(default=b"", repr=False)

    assert "secret" not in repr(Locked("n", b"secret"))
    assert Locked("n", b"secret") != Locked("n")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda own: own(),
        lambda own: own(1, 2, {}, 4),
        lambda own: own(1, z=3),
        lambda own: own(1, x=1),
    ],
)
def test_wrong_arguments_are_refused_as_by_a_dataclass(wrong: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError) as ours:
        wrong(Point)
    with pytest.raises(TypeError) as theirs:
        wrong(twin(Point))
    assert str(ours.value) == str(theirs.value)


def test_a_field_by_keyword_only_is_not_taken_by_place() -> None:
    with pytest.raises(TypeError, match="positional argument"):
        Named("n")  # type: ignore[misc]


def test_values_are_equal_where_their_fields_are_and_hash_alike() -> None:
    assert Named(name="n", at=(1,)) == Named(name="n", at=(1,))
    assert Named(name="n", at=(1,)) != Named(name="n", at=(2,))
    assert hash(Named(name="n")) == hash(Named(name="n")) == hash(twin(Named)("n"))
    assert Named(name="n") != twin(Named)("n")
    assert Named(name="n") != Longer(name="n")
    with pytest.raises(TypeError, match="unhashable"):
        hash(Point(1))  # it has a dict
    one = Alone(1)
    assert one == one
    assert one != Alone(1)
    assert len({one, Alone(1)}) == 2


def test_values_are_sorted_by_their_fields() -> None:
    values = [Sorted("b", 1), Sorted("a", 2), Sorted("b"), Sorted("a", 1)]
    assert [(v.kind, v.id) for v in sorted(values)] == [("a", 1), ("a", 2), ("b", 0), ("b", 1)]
    one, two = Sorted("a"), Sorted("b")  # type: ignore[misc]
    assert (one < two, one <= two, one > two, one >= two) == (True, True, False, False)
    assert (one < one, one <= one, one > one, one >= one) == (False, True, False, True)
    with pytest.raises(TypeError, match="not supported between instances"):
        one < Point(1)  # type: ignore[operator]  # noqa: B015
    with pytest.raises(TypeError, match="not supported between instances"):
        Point(1) < Point(2)  # type: ignore[operator]  # noqa: B015


def test_a_default_made_for_one_value_is_not_another_s() -> None:
    assert Point(1).names == {}
    assert Point(1).names is not Point(1).names


def test_a_value_cannot_be_changed() -> None:
    point = Point(1)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'x'"):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'other'"):
        point.other = 2  # type: ignore[attr-defined]
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'x'"):
        del point.x  # type: ignore[misc]
    assert point == Point(1)


@pytest.mark.parametrize(
    "through", [copy.copy, copy.deepcopy, lambda point: pickle.loads(pickle.dumps(point))]
)
def test_a_value_is_copied_and_pickled_whole(through: Callable[[Any], Any]) -> None:
    for original in (Point(1, 3, {"a": 4}), Longer(name="n", at=(1,), size=9)):
        again = through(original)
        assert again == original
        assert again is not original


def test_help_shows_a_value_and_how_it_is_made() -> None:
    Point(1)
    assert Point.__init__.__module__ == __name__
    text = pydoc.plain(pydoc.render_doc(Point))
    assert "A place." in text
    assert "y: int = 2" in text.replace("'", "")


@pytest.mark.parametrize(
    "asked",
    [
        is_dataclass,
        lambda cls: [found.name for found in fields(cls)] == ["size", "more", "last"],
        lambda cls: cls.__dataclass_params__.frozen,
        lambda cls: cls.__match_args__ == ("size", "more"),
        lambda cls: cls(1, last=3) == cls(1, last=3),
        lambda cls: hash(cls(1, last=3)) == hash((1, 7, 3)),
        lambda cls: asdict(cls(1, last=3)) == {"size": 1, "more": 7, "last": 3},
        lambda cls: replace(cls(1, last=3), last=4).last == 4,
        lambda cls: dataclass(frozen=True)(type("Heir", (cls,), {}))(1, 2, last=3).more == 2,
    ],
)
def test_whatever_is_asked_first_of_an_heir_finds_it_a_dataclass(
    asked: Callable[[Any], bool],
) -> None:
    @value
    class Base:
        size: int
        more: int = 2

    @value
    class Heir(Base):
        more: int = 7
        last: int = field(kw_only=True)

    assert asked(Heir)
    assert (Heir(1, last=3).more, Base(1).more) == (7, 2)
    assert [found.default for found in fields(Base)] == [MISSING, 2]


def test_an_heir_of_a_dataclass_takes_its_fields_too() -> None:
    @dataclass(frozen=True)
    class Base:
        size: int
        more: list[int] = field(default_factory=list)

    @value
    class Heir(Base):
        last: int = 0

    assert Heir(1) == Heir(1, [], 0)
    assert repr(Heir(1, last=2)).endswith("Heir(size=1, more=[], last=2)")


def test_replace_gives_another_value() -> None:
    point = Point(1, 2, {"a": 3})
    assert replace(point, y=7) == Point(1, 7, {"a": 3})
    assert point.y == 2
    assert replace(Longer(name="n"), at=(4,)) == Longer(name="n", at=(4,), size=3)
    assert Point(1, 2).total == 3


def test_classes_may_inherit_from_a_value() -> None:
    longer = Longer(name="n", size=4)
    assert (longer.name, longer.at, longer.size) == ("n", (), 4)
    assert isinstance(longer, Named)
    assert [found.name for found in fields(Longer)] == ["name", "at", "size"]
    with pytest.raises(FrozenInstanceError):
        longer.name = "m"  # type: ignore[misc]

    @dataclass(frozen=True)
    class Further(Named):
        more: int = 0

    assert Further(name="n", more=2).more == 2  # type: ignore[call-arg]

    class Plain(Named):
        def __init__(self) -> None:
            super().__init__(name="n")
            self.mine = 1

    plain = Plain()
    assert (plain.name, plain.mine) == ("n", 1)
    with pytest.raises(FrozenInstanceError):
        plain.name = "m"  # type: ignore[misc]


T = TypeVar("T")


@value
class Box(Generic[T]):
    """One of any type."""

    content: T


def test_a_generic_value_is_described_too() -> None:
    assert repr(Box(1)) == "Box(content=1)"
    assert Box(1) == Box[int](1) != Box(2)
    assert [found.name for found in fields(Box)] == ["content"]


def test_a_default_that_all_values_would_share_is_refused_where_the_class_is_made() -> None:
    with pytest.raises(ValueError, match="mutable default"):

        @value
        class Shared:
            names: list[str] = []  # noqa: RUF012


def test_a_class_keeps_what_it_says_of_itself() -> None:
    @value
    class Own:
        x: int
        y: int
        __match_args__ = ("y",)

    assert [found.name for found in fields(Own)] == ["x", "y"]
    assert Own.__match_args__ == ("y",)
