"""Call graph of a file's functions: finds those that form a loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from engine_mindir.messages import GraphProto


class Functions:
    """The functions of a file by name, and what each may call."""

    def __init__(self, functions: Mapping[str, GraphProto]) -> None:
        self._functions = functions
        self._callees: dict[str, list[str]] = {}
        # By the headers of the loops under way: the recursive component of each function.
        self._components: dict[tuple[str, ...], dict[str, frozenset[str]]] = {}

    def component_of(self, name: str, headers: Sequence[str]) -> frozenset[str]:
        """Return the strongly connected component of `name`; empty where it is not recursive.

        headers: of loops under way; what is called through one of them does not count.
        """
        components = self._components.setdefault(tuple(headers), {})
        if name not in components:
            self._explore(name, headers, components)
        return components[name]

    def _explore(
        self, root: str, headers: Sequence[str], components: dict[str, frozenset[str]]
    ) -> None:
        """Find the components of all functions that `root` reaches (Tarjan's algorithm)."""
        order: dict[str, int] = {root: 0}
        lowest: dict[str, int] = {root: 0}
        open_: list[str] = [root]  # visited, and not yet in a component
        path: list[tuple[str, Iterator[str]]] = [(root, self._called(root, headers))]
        while path:
            name, callees = path[-1]
            callee = next(callees, None)
            if callee is None:
                path.pop()
                if path:
                    caller = path[-1][0]
                    lowest[caller] = min(lowest[caller], lowest[name])
                if lowest[name] == order[name]:
                    component = [open_.pop()]
                    while component[-1] != name:
                        component.append(open_.pop())
                    members = frozenset(component)
                    alone = len(members) == 1 and name not in self._called(name, headers)
                    found = frozenset() if alone else members
                    components.update(dict.fromkeys(members, found))
            elif callee in components:
                continue
            elif callee in order:
                lowest[name] = min(lowest[name], order[callee])
            else:
                order[callee] = lowest[callee] = len(order)
                open_.append(callee)
                path.append((callee, self._called(callee, headers)))

    def _called(self, name: str, headers: Sequence[str]) -> Iterator[str]:
        callees = self._callees.get(name)
        if callees is None:
            callees = self._callees[name] = list(dict.fromkeys(self._named(name)))
        return (callee for callee in callees if callee not in headers)

    def _named(self, name: str) -> Iterator[str]:
        graph = self._functions.get(name)
        for node in graph.nodes if graph is not None else ():
            if node.op_type.startswith("REF::") and node.op_type[5:] in self._functions:
                yield node.op_type[5:]
            for value in node.inputs:
                if value in self._functions:
                    yield value
