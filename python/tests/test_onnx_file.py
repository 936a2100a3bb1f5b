"""The ONNX writer against the `onnx` package, and the comparison of gradients."""

from __future__ import annotations

import unittest

try:
    import numpy as np
    import onnx
    from onnx import numpy_helper
    from safetensors.numpy import load_file  # noqa: F401
except ImportError as error:
    raise unittest.SkipTest(f"the ONNX writer's tests need {error.name}") from error

from annulus.checking import compare
from annulus.graph import Graph
from annulus.onnx_file import External, Node, Value, model


class Writer(unittest.TestCase):
    def test_the_onnx_package_reads_what_was_written(self) -> None:
        attributes = {
            "whole": -3,
            "real": 0.25,
            "text": "grüße",
            "wholes": [1, -1, 2**62],
            "reals": [0.5, 2.0],
            "none": [],
            "tensor": np.arange(6, dtype=np.int64).reshape(2, 3),
            "truth": np.array([True, False]),
        }
        node = Node("Odd", ("x", "", "w"), ("y",), "a/Odd_1", "annulus", attributes)
        weight = External("w", 1, (2, 3), "weights.safetensors", 72, 24)
        values = [Value("x", 7, ("N", 16))], [Value("y", 1, ())]
        written = model([node], *values, [weight], {"b": "2\n3", "a": ""}, ("annulus", "1.2"))
        self.assertEqual(written, model([node], *values, [weight], {"a": "", "b": "2\n3"}, ("annulus", "1.2")))
        read = onnx.load_from_string(written)
        self.assertEqual((read.producer_name, read.producer_version, read.ir_version), ("annulus", "1.2", 11))
        self.assertEqual([(o.domain, o.version) for o in read.opset_import], [("", 23), ("annulus", 1)])
        self.assertEqual({p.key: p.value for p in read.metadata_props}, {"a": "", "b": "2\n3"})
        (made,) = read.graph.node
        self.assertEqual((made.op_type, made.domain, made.name), ("Odd", "annulus", "a/Odd_1"))
        self.assertEqual((list(made.input), list(made.output)), (["x", "", "w"], ["y"]))
        for attribute in made.attribute:
            value = onnx.helper.get_attribute_value(attribute)
            expected = attributes[attribute.name]
            if isinstance(expected, np.ndarray):
                np.testing.assert_array_equal(numpy_helper.to_array(value), expected)
            else:
                self.assertEqual(value.decode() if isinstance(value, bytes) else value, expected)
        self.assertEqual(len(made.attribute), len(attributes))
        (stored,) = read.graph.initializer
        place = {entry.key: entry.value for entry in stored.external_data}
        self.assertEqual(place, {"location": "weights.safetensors", "offset": "72", "length": "24"})
        self.assertEqual((stored.name, list(stored.dims), stored.data_location), ("w", [2, 3], 1))
        shape = read.graph.input[0].type.tensor_type.shape.dim
        self.assertEqual((shape[0].dim_param, shape[1].dim_value), ("N", 16))
        self.assertEqual(len(read.graph.output[0].type.tensor_type.shape.dim), 0)


class Graphs(unittest.TestCase):
    def test_equal_constants_are_one_and_needless_operations_are_left_out(self) -> None:
        graph = Graph()
        self.assertEqual(graph.constant(1.0), graph.constant(1.0))
        names = {graph.constant(value) for value in (1.0, 1, True, [1.0])}
        self.assertEqual(len(names), 4)
        used = graph.add("Relu", ["x"])
        graph.add("Tanh", [used])
        parts = graph.add_many("Split", [used, None], 2)
        self.assertEqual(len(set(parts)), 2)
        kinds = [node.kind for node in graph.needed_for([parts[1]])]
        self.assertEqual(kinds, ["Relu", "Split"])


class Comparison(unittest.TestCase):
    FACTS = {"loss": "2.0", "torch_error": "1e-7"}
    EXPECTED = {"a": np.array([3.0, 0.0], np.float32), "b": np.array([4.0], np.float32)}

    def test_distance_is_relative_to_the_whole_gradient(self) -> None:
        made = {**self.EXPECTED, "b": np.array([4.5], np.float32), "loss": np.array([2.0], np.float32)}
        measured = compare("cpu", made, self.EXPECTED, self.FACTS)
        self.assertAlmostEqual(measured.error, 0.1)
        self.assertEqual((measured.worst[0], measured.loss_error), ("b", 0.0))
        self.assertGreater(measured.error, measured.allowed)
        # A model for which torch's own float32 is as far off.
        self.assertLess(measured.error, compare("cpu", made, self.EXPECTED, {**self.FACTS, "torch_error": "0.05"}).allowed)

    def test_nan_does_not_pass(self) -> None:
        made = {**self.EXPECTED, "b": np.array([np.nan], np.float32), "loss": np.array([2.0], np.float32)}
        measured = compare("gpu:1", made, self.EXPECTED, self.FACTS)
        self.assertFalse(measured.error <= measured.allowed)


if __name__ == "__main__":
    unittest.main()
