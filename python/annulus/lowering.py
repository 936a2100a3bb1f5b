"""Turns PyTorch's training graph into ONNX operations, one ATen operation after the other.

`torch.export` records a forward pass in training mode as a graph of ATen operations. This module walks over it. The rules
in the modules for arithmetic, layout, layers and losses say which ONNX operations replace each of them.

Where no rule exists, PyTorch's own decomposition takes its place. Three kinds of values need care:

- *Learned* values depend on trained parameters, so a gradient flows through them.
- *Static* values depend on nothing but constants, such as positions and masks. They are also computed here, with PyTorch.
  Where no rule exists, or where a part of a tensor is written in place, the graph gets the result as a constant.
- *Derived* values are integers and booleans that follow from floats. The program has them as floats on the device.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx

from .decompose import decomposed
from .draws import draw
from .graph import ANNULUS, Graph

#: What a value is called in the graph; a list if an operation returns several.
Name = str | list[Any] | None
Rule = Callable[["Lowering", "Call"], Name]


class Rules(dict[str, Rule]):
    """Rules by the name of an ATen operation, without overload and the trailing underscore of in-place variants."""

    def __call__(self, *names: str) -> Callable[[Rule], Rule]:
        """Registers a function as the rule for some operations."""

        def register(function: Rule) -> Rule:
            self.update(dict.fromkeys(names, function))
            return function

        return register


#: Largest static value that a graph holds as a constant, in elements. A guess: 4 MB of float32.
MAX_CONSTANT = 1 << 20

#: Operations whose result shares memory with their first argument.
VIEWS = frozenset(
    "alias detach expand flatten movedim permute select slice split split_with_sizes chunk squeeze swapaxes t transpose "
    "unbind unflatten unsqueeze view view_as".split()
)

#: Those that divide a tensor into parts which have no element in common.
APART = frozenset("split split_with_sizes chunk unsafe_chunk unsafe_split unbind".split())

#: Operations that only check something, or that say how PyTorch computes.
SKIPPED = frozenset(
    "_assert_async _assert_scalar _assert_tensor_metadata sym_constrain_range sym_constrain_range_for_size".split()
)

#: Operations that read nothing of a tensor but its shape and type.
FILLING = {"new_zeros": 0, "zeros_like": 0, "new_ones": 1, "ones_like": 1, "new_full": None, "full_like": None}

#: Where this package lies.
HERE = os.path.dirname(__file__)

#: Beyond the end of every axis.
END = 2**62

#: Operations whose result is drawn or undefined.
RANDOM = frozenset("bernoulli dropout empty empty_like feature_dropout new_empty rand".split())


class Unsupported(Exception):
    """An operation, or one of its arguments, cannot be expressed. The text says which and why."""


class Refused(Unsupported):
    """An operation that PyTorch's decomposition would express wrongly."""


@dataclass
class Problem:
    """Where an operation is used that cannot be expressed."""

    modules: set[str]
    #: The first of the user's lines that use it.
    source: str


class Call:
    """One ATen operation with its arguments by the names of PyTorch's schema."""

    def __init__(self, node: fx.Node) -> None:
        self.node = node
        target = node.target
        is_aten = isinstance(target, torch._ops.OpOverload)
        # Arithmetic on sizes has Python's own operators.
        name = f"sym_{getattr(target, '__name__', target)}"
        if is_aten:
            name = str(target).removeprefix("aten.").replace("prims.", "prims_").split(".")[0]
        elif target is draw:
            name = "draw"
        self.in_place = name.endswith("_") and not name.startswith("__")
        self.name = name.rstrip("_") if self.in_place else name
        self._arguments: dict[str, Any] = {}
        if is_aten:
            for at, argument in enumerate(target._schema.arguments):
                default = argument.default_value if argument.has_default_value() else None
                given = node.args[at] if at < len(node.args) else node.kwargs.get(argument.name, default)
                self._arguments[argument.name] = given

    def __getitem__(self, name: str) -> Any:
        return self._arguments[name]

    def get(self, name: str, default: Any = None) -> Any:
        """An argument that not all overloads have."""
        return self._arguments.get(name, default)

    @property
    def result(self) -> Any:
        """The shape and type of the result, as a fake tensor."""
        return self.node.meta["val"]


def fake(value: Any) -> Any:
    """The shape and type of an argument; numbers stay as they are."""
    return value.meta["val"] if isinstance(value, fx.Node) else value


def element(dtype: torch.dtype) -> type:
    """The graph's type for a PyTorch type. It has three: float32, int64 and bool."""
    if dtype.is_floating_point:
        return np.float32
    return np.bool_ if dtype == torch.bool else np.int64


def element_of(value: Any) -> type:
    """The graph's type of a tensor or a number."""
    value = fake(value)
    if isinstance(value, torch.Tensor):
        return element(value.dtype)
    if isinstance(value, bool):
        return np.bool_
    return np.float32 if isinstance(value, float) else np.int64


class Lowering:
    """A walk over one exported graph."""

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        self.rules = rules
        self.graph = Graph()
        #: New values of buffers that training changes: the buffer's name, and the value's name.
        self.updates: dict[str, str] = {}
        #: Unsupported operations with the reason, and where they are used.
        self.problems: dict[str, Problem] = {}
        #: The problems of a decomposition while one is tried.
        self._tried: list[str] | None = None
        self._names: dict[fx.Node, Name] = {}
        self._static: dict[fx.Node, Any] = {}
        self._learned: set[fx.Node] = set()
        self._derived: set[fx.Node] = set()
        self._path: str = ""

    def bind(self, node: fx.Node, name: str, *, learned: bool, static: torch.Tensor | None = None) -> None:
        """Names an input of the graph. `static`: its value, if it never changes."""
        self._names[node] = name
        if learned:
            self._learned.add(node)
        if static is not None:
            # In-place operations must not reach the model's own buffer.
            self._static[node] = static.detach().clone()

    def run(self, graph: fx.Graph, root: torch.nn.Module, *, outputs: bool = True) -> list[Name]:
        """Adds all operations; the names of the outputs, if they are wanted. Inputs must be bound."""
        made: list[Name] = []
        for node in graph.nodes:
            path = _module_path(node)
            self._path = self._path if path is None else path
            self.graph.path = self._path
            if node.meta.get("stack_trace"):
                self.graph.source = source_line(node)
            if node.op == "output" and outputs:
                made = [self.read(value) for value in node.args[0] if value is not None]
            elif node.op == "get_attr":
                value = getattr(root, node.target)
                if isinstance(value, torch.Tensor):
                    self._static[node] = value.detach().clone()
            elif node.op == "call_function":
                self._call(node, root)
        return made

    # For rules: reading arguments.

    def read(self, value: Any) -> Any:
        """The name of an argument: a tensor, a number, or nothing."""
        if value is None:
            return None
        if not isinstance(value, fx.Node):
            return self.graph.constant(value)
        if value in self._names:
            name = self._names[value]
            if isinstance(name, Missing) and name:
                raise Unsupported(name)
            return name
        constant = self._static[value]
        if not isinstance(constant, torch.Tensor):
            return self.graph.constant(constant)
        if constant.numel() > MAX_CONSTANT:
            raise Unsupported(f"a constant of {constant.numel()} elements")
        kept = constant.to(torch.float32) if constant.is_floating_point() else constant
        self._names[value] = self.graph.constant(kept.cpu().numpy(), element(constant.dtype))
        return self._names[value]

    def read_as(self, value: Any, wanted: type) -> str:
        """The name of an argument, converted to one of the graph's types."""
        if not isinstance(value, fx.Node):
            return self.graph.constant(value, wanted)
        name = self.read(value)
        return name if element_of(value) == wanted else self.cast(name, wanted)

    def cast(self, name: str, wanted: type) -> str:
        """Converts a value to one of the graph's types."""
        numbers = {np.float32: 1, np.int64: 7, np.bool_: 9}
        return self.graph.add("Cast", [name], to=numbers[wanted])

    def dims(self, sizes: Iterable[Any]) -> str:
        """A shape as a tensor, of numbers and of sizes that follow from the batch."""
        sizes = list(sizes)
        if all(isinstance(size, int) for size in sizes):
            return self.graph.constant(sizes, np.int64)
        parts = [self.vector(size) for size in sizes]
        return self.graph.add("Concat", parts, axis=0)

    def vector(self, number: Any) -> str:
        """A number as a tensor with one element."""
        if isinstance(number, int):
            return self.graph.constant([number], np.int64)
        return self.graph.add("Reshape", [self.read(number), self.graph.constant([1], np.int64)])

    def size(self, tensor: str, axis: int) -> str:
        """The length of an axis, as a tensor with one element."""
        return self.graph.add("Shape", [tensor], start=axis, end=axis + 1)

    def sliced(self, value: str, axis: int, start: Any, end: Any, step: int = 1) -> str:
        """A range of an axis."""
        places = [self.vector(number) for number in (start, end, axis, step)]
        return self.graph.add("Slice", [value, *places])

    def sizes_like(self, name: str, sizes: Iterable[Any]) -> str:
        """A shape as a tensor, where the first axis of a value stands for the size of the batch."""
        parts = [self.graph.constant([size], np.int64) if isinstance(size, int) else self.size(name, 0) for size in sizes]
        return parts[0] if len(parts) == 1 else self.graph.add("Concat", parts, axis=0)

    def static(self, value: Any) -> Any:
        """The value of a static argument; None if it is not static."""
        return self._static.get(value) if isinstance(value, fx.Node) else value

    def is_learned(self, value: Any) -> bool:
        """Whether a gradient flows through this value."""
        return value in self._learned

    def is_derived(self, value: Any) -> bool:
        """Whether these integers or booleans follow from floats."""
        return value in self._derived

    # One operation.

    def _call(self, node: fx.Node, root: torch.nn.Module) -> None:
        if node.target is operator.getitem:
            self._item(node)
            return
        if getattr(node.target, "__name__", "").startswith("return_types_"):
            # The results as one tuple, or one by one.
            results = node.args if isinstance(node.args[0], fx.Node) else node.args[0]
            self._names[node] = [self.read(value) for value in results]
            self._learned.update([node] if any(value in self._learned for value in results) else [])
            return
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            self._region(node, root)
            return
        call = Call(node)
        if call.name in SKIPPED or call.name.startswith("_assert"):
            return
        inputs = list(node.all_input_nodes)
        learned = any(value in self._learned for value in inputs)
        if learned and _has_gradient(node) and call.name != "detach":
            self._learned.add(node)
        if not _has_gradient(node) and any(self._is_of_floats(value) for value in inputs):
            self._derived.add(node)
        static = self._compute(call, inputs)
        if static and not _has_gradient(node) and any(_has_gradient(value) for value in inputs):
            # A mask that is kept as floats: the program has masks on the host, and floats on the device.
            return
        changed = node.args[0] if call.in_place and isinstance(node.args[0], fx.Node) else None
        if changed is not None and changed.op == "placeholder" and not node.users and len(changed.users) == 1:
            # A counter of steps, which nothing reads.
            return
        if static and changed is not None:
            # The tensor and all that share its memory are read anew.
            return
        try:
            name = self._by_rule(call) if static else self._apply(call)
            if changed is not None:
                self._write(changed, name, node, learned)
        except Unsupported as problem:
            if static:
                return
            self._report(f"aten.{call.name}", problem)
            name = self._placeholder(node)
        self._names[node] = name

    def _apply(self, call: Call) -> Name:
        try:
            return self._by_rule(call)
        except Refused:
            raise
        except Unsupported as problem:
            graph = decomposed(call.node, self.rules)
            if graph is None:
                raise
            return self._inline(call.node, graph, problem)

    def _by_rule(self, call: Call) -> Name:
        if call.name not in self.rules:
            raise Unsupported("")
        return self.rules[call.name](self, call)

    def _inline(self, node: fx.Node, made: fx.GraphModule, problem: Unsupported) -> Name:
        """The operations of a decomposition in place of the node."""
        outer, self._tried = self._tried, []
        self._give(made.graph, node.all_input_nodes)
        self.run(made.graph, made, outputs=False)
        failed, self._tried = self._tried, outer
        if failed:
            raise problem
        result = next(n for n in reversed(made.graph.nodes) if n.op == "output").args[0]
        if isinstance(result, (list, tuple)):
            return [self.read(value) for value in result]
        return self.read(result)

    def _give(self, graph: fx.Graph, values: Iterable[Any]) -> None:
        """Binds the inputs of an inner graph to values of the outer one."""
        for placeholder, value in zip((n for n in graph.nodes if n.op == "placeholder"), values, strict=False):
            if value in self._names:
                self._names[placeholder] = self._names[value]
            if value in self._static:
                self._static[placeholder] = self._static[value]
            for kind in (self._learned, self._derived):
                if value in kind:
                    kind.add(placeholder)

    def _is_of_floats(self, value: fx.Node) -> bool:
        return value in self._derived or (_has_gradient(value) and value not in self._static)

    def _compute(self, call: Call, inputs: list[fx.Node]) -> bool:
        """Computes a static value with PyTorch; whether that was possible."""
        node = call.node
        if call.name in FILLING and all(isinstance(size, int) for size in call.result.shape):
            fill = FILLING[call.name] if FILLING[call.name] is not None else call["fill_value"]
            if not isinstance(fill, fx.Node):
                self._static[node] = torch.full(call.result.shape, fill, dtype=call.result.dtype)
                return True
        known = all(value in self._static for value in inputs)
        if not known or call.name in RANDOM or not isinstance(node.target, (torch._ops.OpOverload)):
            return False
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda value: self._static[value])
        with torch.no_grad():
            self._static[node] = node.target(*args, **kwargs)
        changed = self._static[node]
        if call.in_place and isinstance(changed, torch.Tensor):
            storage = changed.untyped_storage().data_ptr()
            for other, value in self._static.items():
                if isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() == storage:
                    self._names.pop(other, None)
        return True

    def _write(self, changed: fx.Node, name: Any, by: fx.Node, learned: bool) -> None:
        """An in-place operation has given a tensor a new value. If the tensor is a part of another, so has that."""
        while True:
            if changed.op == "placeholder":
                raise Unsupported(f"changes the buffer `{self._names[changed]}`")
            self._names[changed] = name
            self._static.pop(changed, None)
            if learned:
                self._learned.add(changed)
            if not _is_view(changed):
                return
            source, call = changed.args[0], Call(changed)
            if changed.target is operator.getitem and Call(source).name in APART:
                whole = source.args[0]
                later = [reader for reader in whole.users if reader is not source and by < reader]
                if later or _is_view(whole):
                    raise Unsupported("writes a part of a tensor in place")
                return
            others = [user for user in source.users if user is not changed and user < by and _is_view(user)]
            if any(by < reader for other in others for reader in other.users):
                raise Unsupported("writes a tensor in place of which another part is read later")
            if any(by < reader for reader in source.users) or _is_view(source):
                name = self._with_part(call, self.read(source), name)
                changed = source
            else:
                return

    def _with_part(self, view: Call, whole: str, part: str) -> str:
        """A tensor of which one range of an axis is replaced."""
        if view.name not in ("slice", "select") or view.get("step", 1) != 1:
            raise Unsupported("writes a part of a tensor in place")
        axis = view["dim"] % fake(view["self"]).dim()
        if view.name == "select":
            return self.with_entry(whole, fake(view["self"]), axis, view["index"], part)
        return self.with_range(whole, fake(view["self"]), axis, view["start"], view["end"], part)

    def with_entry(self, whole: str, like: torch.Tensor, axis: int, index: Any, part: str) -> str:
        """A tensor of this shape of which one entry of an axis is replaced."""
        part = self.graph.add("Unsqueeze", [part, self.vector(axis)])
        return self.with_range(whole, like, axis, index, index + 1 or END, part)

    def with_range(self, whole: str, like: torch.Tensor, axis: int, start: Any, end: Any, part: str) -> str:
        """A tensor of this shape of which one range of an axis is replaced."""
        start, end = 0 if start is None else start, END if end is None else end
        if not isinstance(start, int) or not isinstance(end, int):
            raise Unsupported("writes a range that follows from the batch")
        size = like.shape[axis]
        if isinstance(size, int):
            start, end, _ = slice(start, end).indices(size)
            end = END if end == size else end
        parts = [] if start == 0 else [self.sliced(whole, axis, 0, start)]
        parts += [part] if end >= END else [part, self.sliced(whole, axis, end, END)]
        return self.graph.add("Concat", parts, axis=axis) if len(parts) > 1 else part

    def _item(self, node: fx.Node) -> None:
        source, at = node.args
        if source in self._learned and _has_gradient(node):
            self._learned.add(node)
        if self._is_of_floats(source) and not _has_gradient(node):
            self._derived.add(node)
        if source in self._static:
            self._static[node] = self._static[source][at]
        names = self._names.get(source)
        if names is not None:
            self._names[node] = names[at]

    def _region(self, node: fx.Node, root: torch.nn.Module) -> None:
        """A region with gradients off, or with another precision: its operations, in place."""
        kind = str(node.target)
        at = next((i for i, value in enumerate(node.args) if _is_graph(value, root)), None)
        if at is None or kind not in ("wrap_with_set_grad_enabled", "wrap_with_autocast"):
            self._report(kind, Unsupported(""))
            self._names[node] = self._placeholder(node)
            return
        inner = getattr(root, node.args[at].target)
        values = node.args[at + 1 :]
        self._give(inner.graph, values)
        outputs = self.run(inner.graph, inner)
        results = next(n for n in reversed(inner.graph.nodes) if n.op == "output").args[0]
        learned = [result in self._learned for result in results]
        if kind == "wrap_with_set_grad_enabled" and not node.args[0]:
            pairs = zip(outputs, learned, strict=True)
            outputs = [self.graph.add("Detach", [name], domain=ANNULUS) if own else name for name, own in pairs]
        elif any(learned):
            self._learned.add(node)
        if any(result in self._derived for result in results):
            self._derived.add(node)
        self._names[node] = outputs

    def _placeholder(self, node: fx.Node) -> Name:
        """Stands for what could not be expressed, so that the walk finds all further problems."""
        value = node.meta.get("val")
        return [Missing() for _ in value] if isinstance(value, (list, tuple)) else Missing()

    def _report(self, name: str, problem: Unsupported) -> None:
        reason = f"{name} ({problem})" if str(problem) else name
        if self._tried is not None:
            self._tried.append(reason)
            return
        found = self.problems.setdefault(reason, Problem(set(), self.graph.source))
        found.modules.add(self._path or ("the model itself" if self.graph.source else "the loss"))


class Missing(str):
    """The name of a value that could not be expressed: the reason, or nothing if it is reported already."""


def source_line(node: fx.Node) -> str:
    """The line of Python that an operation comes from: the innermost one outside of installed packages, if there is one."""
    frames = re.findall(r'File "([^"]+)", line (\d+), in [^\n]+\n\s*([^\n]+)', node.meta.get("stack_trace") or "")
    frames = [frame for frame in frames if not frame[0].startswith(HERE)]
    own = [frame for frame in frames if f"{os.sep}site-packages{os.sep}" not in frame[0]]
    if not frames:
        return ""
    file, line, code = (own or frames)[-1]
    return f"{file}:{line}: {code.strip()}"


def _has_gradient(node: fx.Node) -> bool:
    value = node.meta.get("val")
    values = value if isinstance(value, (list, tuple)) else [value]
    return any(isinstance(v, torch.Tensor) and v.dtype.is_floating_point for v in values)


def _is_view(node: fx.Node) -> bool:
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], fx.Node):
        return False
    if node.target is operator.getitem:
        return Call(node.args[0]).name in VIEWS | APART
    return Call(node).name in VIEWS


def _is_graph(value: Any, root: torch.nn.Module) -> bool:
    return isinstance(value, fx.Node) and value.op == "get_attr" and isinstance(getattr(root, value.target), fx.GraphModule)


def _module_path(node: fx.Node) -> str | None:
    """The innermost module that an operation belongs to, as in the model's `named_modules()`."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [entry[0] for entry in stack.values() if not entry[0].startswith("_empty_nn_module_stack")]
    return paths[-1].removeprefix("model").removeprefix(".") if paths else None
