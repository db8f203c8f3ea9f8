"""Call graph of a file's functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from engine.formats.mindir.decode import GraphProto


class Functions:
    """The functions of a file by name, and what each may call."""

    def __init__(self, functions: Mapping[str, GraphProto]) -> None:
        self._functions = functions
        self._reachable: dict[str, frozenset[str]] = {}

    def around(self, name: str, headers: Sequence[str]) -> frozenset[str]:
        """The functions that `name` calls and that call it; empty where it does not recur.

        headers: of loops under way; what is called through one of them does not count.
        """
        reached = self._reached(name, headers)
        if name not in reached:
            return frozenset()
        return frozenset(
            one_name for one_name in reached if name in self._reached(one_name, headers)
        )

    def _reached(self, name: str, headers: Sequence[str]) -> frozenset[str]:
        key = "\0".join((name, *headers))
        found = self._reachable.get(key)
        if found is None:
            seen: set[str] = set()
            todo = [name]
            while todo:
                for other in self._named(todo.pop()):
                    if other not in seen and other not in headers:
                        seen.add(other)
                        todo.append(other)
            found = self._reachable[key] = frozenset(seen)
        return found

    def _named(self, name: str) -> Iterator[str]:
        graph = self._functions.get(name)
        for node in graph.nodes if graph is not None else ():
            if node.op_type.startswith("REF::") and node.op_type[5:] in self._functions:
                yield node.op_type[5:]
            for value in node.inputs:
                if value in self._functions:
                    yield value
