"""Writes ONNX files without the `onnx` package: only what an exported model needs.

An ONNX file is one protobuf message. The field numbers are those of `onnx.proto3` in the ONNX repository.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

Attribute = int | float | str | Sequence[int] | Sequence[float] | np.ndarray

#: The newest operations of `ai.onnx` that a file uses.
OPSET = 23
#: The version of the file format that belongs to this opset.
IR_VERSION = 11

#: ONNX's numbers of element types.
FLOAT, INT64, BOOL = 1, 7, 9
ELEMENT_TYPES = {"float32": FLOAT, "int64": INT64, "bool": BOOL}


@dataclass(frozen=True)
class Node:
    """One operation. An absent optional input is an empty name."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    name: str
    domain: str = ""
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True)
class Value:
    """An input or output of the graph. A dimension is a number, or a name if it varies."""

    name: str
    element: int
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class External:
    """An initializer whose bytes lie in another file of the same folder."""

    name: str
    element: int
    shape: tuple[int, ...]
    file: str
    offset: int
    length: int


def model(
    nodes: Iterable[Node],
    inputs: Iterable[Value],
    outputs: Iterable[Value],
    weights: Iterable[External],
    metadata: Mapping[str, str],
    producer: tuple[str, str],
) -> bytes:
    """The bytes of a file. Equal arguments give equal bytes."""
    graph = b"".join(
        [
            *(_bytes(1, _node(node)) for node in nodes),
            _text(2, "model"),
            *(_bytes(5, _external(tensor)) for tensor in weights),
            *(_bytes(11, _value(value)) for value in inputs),
            *(_bytes(12, _value(value)) for value in outputs),
        ]
    )
    opsets = [("", OPSET), ("annulus", 1)]
    return b"".join(
        [
            _int(1, IR_VERSION),
            _text(2, producer[0]),
            _text(3, producer[1]),
            _bytes(7, graph),
            *(_bytes(8, _text(1, domain) + _int(2, version)) for domain, version in opsets),
            *(_bytes(14, _text(1, key) + _text(2, text)) for key, text in sorted(metadata.items())),
        ]
    )


def _node(node: Node) -> bytes:
    return b"".join(
        [
            *(_text(1, name) for name in node.inputs),
            *(_text(2, name) for name in node.outputs),
            _text(3, node.name),
            _text(4, node.kind),
            *(_bytes(5, _attribute(name, value)) for name, value in sorted(node.attributes.items())),
            _text(7, node.domain) if node.domain else b"",
        ]
    )


def _attribute(name: str, value: Attribute) -> bytes:
    if isinstance(value, np.ndarray):
        kind, body = 4, _bytes(5, _tensor(value))
    elif isinstance(value, str):
        kind, body = 3, _text(4, value)
    elif isinstance(value, int):
        kind, body = 2, _int(3, value)
    elif isinstance(value, float):
        kind, body = 1, _float(2, value)
    elif any(isinstance(item, float) for item in value):
        kind, body = 6, b"".join(_float(7, float(item)) for item in value)
    else:
        kind, body = 7, b"".join(_int(8, int(item)) for item in value)
    return _text(1, name) + body + _int(20, kind)


def _tensor(array: np.ndarray) -> bytes:
    head = b"".join(_int(1, size) for size in array.shape) + _int(2, ELEMENT_TYPES[array.dtype.name])
    return head + _bytes(9, np.ascontiguousarray(array).tobytes())


def _external(tensor: External) -> bytes:
    place = [("location", tensor.file), ("offset", str(tensor.offset)), ("length", str(tensor.length))]
    return b"".join(
        [
            *(_int(1, size) for size in tensor.shape),
            _int(2, tensor.element),
            _text(8, tensor.name),
            *(_bytes(13, _text(1, key) + _text(2, text)) for key, text in place),
            _int(14, 1),
        ]
    )


def _value(value: Value) -> bytes:
    sizes = (_int(1, size) if isinstance(size, int) else _text(2, size) for size in value.shape)
    shape = b"".join(_bytes(1, size) for size in sizes)
    return _text(1, value.name) + _bytes(2, _bytes(1, _int(1, value.element) + _bytes(2, shape)))


def _varint(number: int) -> bytes:
    # Negative numbers are written as their 64-bit two's complement.
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _int(field_number: int, value: int) -> bytes:
    return _varint(field_number << 3) + _varint(value)


def _float(field_number: int, value: float) -> bytes:
    return _varint(field_number << 3 | 5) + struct.pack("<f", value)


def _bytes(field_number: int, value: bytes) -> bytes:
    return _varint(field_number << 3 | 2) + _varint(len(value)) + value


def _text(field_number: int, value: str) -> bytes:
    return _bytes(field_number, value.encode())
