"""Call graph of a file's functions: finds those that form a loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from engine.formats.mindir.decode import GraphProto


class Functions:
    """The functions of a file by name, and what each may call."""

    def __init__(self, functions: Mapping[str, GraphProto]) -> None:
        self._functions = functions
        self._reachable: dict[str, frozenset[str]] = {}

    def component_of(self, name: str, headers: Sequence[str]) -> frozenset[str]:
        """Return the strongly connected component of `name`; empty where it is not recursive.

        headers: of loops under way; what is called through one of them does not count.
        """
        reached = self._reached(name, headers)
        if name not in reached:
            return frozenset()
        return frozenset(other for other in reached if name in self._reached(other, headers))

    def _reached(self, name: str, headers: Sequence[str]) -> frozenset[str]:
        key = "\0".join((name, *headers))
        reachable = self._reachable.get(key)
        if reachable is None:
            visited: set[str] = set()
            worklist = [name]
            while worklist:
                for other in self._named(worklist.pop()):
                    if other not in visited and other not in headers:
                        visited.add(other)
                        worklist.append(other)
            reachable = self._reachable[key] = frozenset(visited)
        return reachable

    def _named(self, name: str) -> Iterator[str]:
        graph = self._functions.get(name)
        for node in graph.nodes if graph is not None else ():
            if node.op_type.startswith("REF::") and node.op_type[5:] in self._functions:
                yield node.op_type[5:]
            for value in node.inputs:
                if value in self._functions:
                    yield value
