"""Collects the operations of an ONNX graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .onnx_file import Attribute, Node

#: The domain of operations that ONNX does not have.
ANNULUS = "annulus"


class Graph:
    """Operations in the order in which they run. Each value has one name, which no other value has."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        #: The path of the module whose operations are added; part of their names.
        self.path = ""
        #: The line of the user's code that the operations come from.
        self.source = ""
        #: That line by the operations' names.
        self.sources: dict[str, str] = {}

    def add(
        self,
        kind: str,
        inputs: Sequence[str | None],
        /,
        *,
        domain: str = "",
        **attributes: Attribute,
    ) -> str:
        """Adds an operation with one output, and returns the output's name."""
        return self.add_many(kind, inputs, 1, domain=domain, **attributes)[0]

    def add_many(
        self,
        kind: str,
        inputs: Sequence[str | None],
        outputs: int,
        /,
        *,
        domain: str = "",
        **attributes: Attribute,
    ) -> list[str]:
        """Adds an operation with several outputs."""
        name = self._name(kind)
        names = [name if at == 0 else f"{name}.{at}" for at in range(outputs)]
        filled = [value or "" for value in inputs]
        while filled and not filled[-1]:
            filled.pop()
        self._nodes.append(Node(kind, tuple(filled), tuple(names), name, domain, attributes))
        self.sources[name] = self.source
        return names

    def constant(self, value: object, dtype: type | None = None) -> str:
        """The name of a constant: float32, int64 or bool. Equal constants share one name."""
        array = np.asarray(value, dtype=dtype)
        if dtype is None and array.dtype != np.bool_:
            array = array.astype(np.float32 if np.issubdtype(array.dtype, np.floating) else np.int64)
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self._constants:
            name = self._name("Constant")
            self._constants[key] = name
            self._nodes.append(Node("Constant", (), (name,), name, attributes={"value": array}))
        return self._constants[key]

    def output(self, value: str, name: str) -> None:
        """Makes a value an output of the graph, under a name of its own."""
        self._nodes.append(Node("Identity", (value,), (name,), name))

    def needed_for(self, outputs: Sequence[str]) -> list[Node]:
        """The operations that these values follow from."""
        needed, kept = set(outputs), []
        for node in reversed(self._nodes):
            # Running statistics are outputs that no later operation reads.
            if needed.intersection(node.outputs):
                needed.update(node.inputs)
                kept.append(node)
        return kept[::-1]

    def _name(self, kind: str) -> str:
        return f"{self.path}/{kind}_{len(self._nodes)}"
