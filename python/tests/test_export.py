"""What the exporter writes, what it refuses, and how a model gets its parameters back."""

from __future__ import annotations

import json
import tempfile
import unittest
import warnings
from pathlib import Path
from typing import Any

try:
    import numpy as np
    import onnx
    import torch
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file
except ImportError as error:
    raise unittest.SkipTest(f"exports need {error.name}") from error

import models
import torch.nn.functional as F
from torch import nn

import annulus
from annulus import exporter
from annulus.loading import load
from annulus.samples import refuse_random

FIXTURES = Path(__file__).parent / "fixtures"

#: The files that a run shares.
FILES = ("model.onnx", "weights.safetensors", "samples.safetensors")

#: The operations of some models, without constants.
KINDS = {
    "mlp": {"Linear": 2, "Gelu": 1, "Dropout": 1, "SoftmaxCrossEntropyLoss": 1, "Identity": 2},
    "cnn": {
        "Conv": 2,
        "Relu": 1,
        "MaxPool": 1,
        "Swish": 1,
        "GlobalAveragePool": 1,
        "Reshape": 1,
        "Linear": 1,
        "SoftmaxCrossEntropyLoss": 1,
        "Identity": 2,
    },
    "lstm": {
        "Gather": 1,
        "Transpose": 2,
        "Recurrent": 2,
        "Linear": 1,
        "Reshape": 2,
        "SoftmaxCrossEntropyLoss": 1,
        "Identity": 2,
    },
    "tabular": {
        "Cast": 1,
        "Gather": 4,
        "BatchNormalization": 2,
        "Linear": 2,
        "Concat": 1,
        "Relu": 1,
        "Dropout": 1,
        "Squeeze": 1,
        "Softplus": 1,
        "Mul": 1,
        "Sub": 1,
        "ReduceMean": 1,
        "Identity": 2,
    },
}


def kinds(folder: Path) -> dict[str, int]:
    counts: dict[str, int] = {}
    for node in onnx.load(folder / "model.onnx", load_external_data=False).graph.node:
        if node.op_type != "Constant":
            counts[node.op_type] = counts.get(node.op_type, 0) + 1
    return counts


def metadata(folder: Path) -> dict[str, str]:
    return {p.key: p.value for p in onnx.load(folder / "model.onnx", load_external_data=False).metadata_props}


class Scratch(unittest.TestCase):
    def setUp(self) -> None:
        warnings.simplefilter("ignore")
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)

    def export(self, model: nn.Module, *samples: torch.Tensor, loss: Any = "cross_entropy") -> Path:
        return annulus.export(model, samples, loss=loss, to=self.folder)

    def refused(self, text: str, model: nn.Module, *samples: torch.Tensor, loss: Any = "cross_entropy") -> str:
        with self.assertRaisesRegex(annulus.ExportError, text) as caught:
            self.export(model, *samples, loss=loss)
        return str(caught.exception)


class Files(Scratch):
    def test_layers_stay_whole(self) -> None:
        for name, expected in KINDS.items():
            with self.subTest(name):
                self.assertEqual(kinds(models.make(name).export(self.folder / name)), expected)

    def test_the_graph_of_the_fixture_is_that_of_the_model(self) -> None:
        folder = models.make("nanogpt").export(self.folder)
        self.assertEqual(kinds(folder), kinds(FIXTURES / "nanogpt"))
        self.assertEqual(metadata(folder)["annulus.trained"], metadata(FIXTURES / "nanogpt")["annulus.trained"])

    def test_equal_models_give_equal_bytes_and_models_are_left_as_they_were(self) -> None:
        case = models.make("tabular")
        case.model.eval()
        before = {name: value.clone() for name, value in case.model.state_dict().items()}
        contents = []
        for at in range(2):
            folder = case.export(self.folder / str(at))
            contents.append(
                [(folder / name).read_bytes() for name in ("model.onnx", "weights.safetensors", "samples.safetensors")]
            )
        self.assertEqual(*contents)
        self.assertFalse(any(module.training for module in case.model.modules()))
        for name, value in case.model.state_dict().items():
            self.assertTrue(torch.equal(value, before[name]), name)

    def test_names_shapes_and_values_are_the_state_dicts(self) -> None:
        case = models.make("lora")
        folder = case.export(self.folder)
        state, weights = case.model.state_dict(), load_file(folder / "weights.safetensors")
        trained = metadata(folder)["annulus.trained"].split("\n")
        self.assertEqual(trained, [n for n, p in case.model.named_parameters() if p.requires_grad])
        self.assertLess(set(trained), set(weights))
        for name, array in weights.items():
            if name in state:
                np.testing.assert_array_equal(array, state[name].numpy())
        # The embedding is tied to the head, and written once.
        self.assertEqual(sum("embed_tokens" in name or "lm_head" in name for name in weights), 1)
        self.assertEqual({len(array) for array in load_file(folder / "samples.safetensors").values()}, {4})

    def test_the_onnx_package_finds_the_weights(self) -> None:
        case = models.make("mlp")
        read = onnx.load(case.export(self.folder) / "model.onnx")
        for stored in read.graph.initializer:
            np.testing.assert_array_equal(onnx.numpy_helper.to_array(stored), case.model.state_dict()[stored.name].numpy())

    def test_names_that_clash_are_kept_apart(self) -> None:
        class Odd(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.loss, self.weight = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(4, 3))

            def forward(self, weight: torch.Tensor) -> torch.Tensor:
                return weight @ self.weight * self.loss

        told = metadata(self.export(Odd(), torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])))
        self.assertEqual((told["annulus.inputs"], told["annulus.loss"]), ("weight_\ntarget", "loss_"))
        self.assertEqual(set(load_file(self.folder / "samples.safetensors")), {"weight_", "target"})

    def test_halves_are_written_as_floats(self) -> None:
        self.export(nn.Linear(4, 3).to(torch.bfloat16), torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1]))
        self.assertEqual({a.dtype for a in load_file(self.folder / "weights.safetensors").values()}, {np.dtype(np.float32)})


class Samples(Scratch):
    def test_all_forms_give_the_same_file(self) -> None:
        x, y = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
        rows = [(a, int(b)) for a, b in zip(x, y, strict=True)]
        named = [{"input": a, "label": int(b)} for a, b in rows]
        model, files = nn.Linear(4, 3), []
        loader = torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True)
        forms = [(x, y), torch.utils.data.TensorDataset(x, y), rows, named, {"input": x, "label": y}, loader]
        for at, form in enumerate(forms):
            folder = annulus.export(model, dataset=form, loss="cross_entropy", to=self.folder / str(at))
            files.append({name: array.tolist() for name, array in load_file(folder / "samples.safetensors").items()})
        self.assertEqual(files[0], {"input": x.tolist(), "target": y.tolist()})
        self.assertTrue(all(sorted(map(str, file.values())) == sorted(map(str, files[0].values())) for file in files))

    def test_bytes_stay_bytes_in_the_file(self) -> None:
        pictures, model = torch.randint(0, 256, (6, 4), dtype=torch.uint8), nn.Sequential(nn.Linear(4, 3))
        model.forward = lambda input: model[0](input.float() / 255)
        self.export(model, pictures, torch.tensor([0, 1, 2, 0, 1, 2]))
        stored = load_file(self.folder / "samples.safetensors")["input"]
        self.assertEqual(stored.dtype, np.uint8)
        np.testing.assert_array_equal(stored, pictures.numpy())

    def write(self, model: nn.Module, dataset: Any, evaluate: Any = None, **options: Any) -> exporter.Exported:
        """Exports without the program."""
        given = {"loss": "cross_entropy", "target": None, "collate": None, **options}
        return exporter.write(model, None, to=self.folder, dataset=dataset, eval_dataset=evaluate, **given)

    def evaluated(self) -> str | None:
        with safe_open(self.folder / "samples.safetensors", "np") as file:
            return (file.metadata() or {}).get("evaluated")

    def test_samples_that_only_evaluate_come_last(self) -> None:
        x, y, model = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]), nn.Linear(4, 3)
        named = [{"label": y[:3], "input": x[:3]}, {"input": x[3:], "label": y[3:]}]
        rows = [[(a, b) for a, b in zip(x[part], y[part], strict=True)] for part in (slice(3), slice(3, 6))]
        for pair in (((x[:3], y[:3]), (x[3:], y[3:])), named, rows):
            made = self.write(model, *pair)
            np.testing.assert_array_equal(load_file(self.folder / "samples.safetensors")["input"], x.numpy())
            # Three are left to train on, and to check with.
            self.assertEqual((self.evaluated(), made.checked), ("3", 3))
        self.write(model, (x, y))
        self.assertEqual(self.evaluated(), None)

    def test_samples_that_evaluate_are_like_those_of_training(self) -> None:
        x, y, model = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]), nn.Linear(4, 3)
        for other, why in (
            ((x[:, :3], y), r"entry 0 of eval_dataset is float32 \[3\] for each sample, and float32 \[4\]"),
            ((x, y.float()), r"entry 1 of eval_dataset is float32 \[\] .* int64"),
            ((x,), "eval_dataset have 1 entries, and those of training 2 entries"),
            ({"input": x, "labels": y}, "eval_dataset have input, labels, and those of training 2 entries"),
        ):
            with self.assertRaisesRegex(annulus.ExportError, why):
                self.write(model, (x, y), other)

    def test_a_collating_function_pads_to_the_longest_of_both(self) -> None:
        rows = [(torch.ones(length, 4), length % 3) for length in (3, 5, 4, 7)]

        def collate(batch: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
            return nn.utils.rnn.pad_sequence([x for x, _ in batch], True), torch.tensor([y for _, y in batch])

        model = nn.Sequential(nn.Flatten(), nn.Linear(28, 3))
        self.write(model, rows[:3], rows[3:], collate=collate)
        self.assertEqual(load_file(self.folder / "samples.safetensors")["input"].shape, (4, 7, 4))
        self.assertEqual(self.evaluated(), "1")

    def test_samples_that_change_are_not_frozen_unasked(self) -> None:
        class Noisy(torch.utils.data.Dataset):
            def __len__(self) -> int:
                return 20

            def __getitem__(self, at: int) -> Any:
                # Each second sample, as by a flip.
                return (torch.full((4,), float(at)) + (at % 2) * torch.rand(4), at % 3)

        for form in (Noisy(), torch.utils.data.DataLoader(Noisy(), 4)):
            with self.assertRaisesRegex(annulus.ExportError, "sample 1 is another one.*annulus.member.*frozen_samples=True"):
                annulus.export(nn.Linear(4, 3), dataset=form, loss="cross_entropy", to=self.folder)
        # What is no number is left to the export to refuse.
        refuse_random([(torch.tensor([float("nan")]), 1.5, "a", object())] * 2)
        self.write(nn.Linear(4, 3), Noisy())

    def test_a_loss_of_several_targets_gets_them_by_name(self) -> None:
        x, age, sex = torch.randn(6, 4), torch.randn(6, 1), torch.tensor([0, 1, 0, 1, 1, 0])
        model = nn.Linear(4, 3)

        def loss(outputs: torch.Tensor, targets: dict[str, torch.Tensor]) -> torch.Tensor:
            return F.mse_loss(outputs[:, :1], targets["age"]) + F.cross_entropy(outputs[:, 1:], targets["sex"])

        data = {"input": x, "age": age, "sex": sex}
        self.write(model, data, loss=loss, target=["age", "sex"])
        with safe_open(self.folder / "reference.safetensors", "np") as file:
            told = float(file.metadata()["loss"])
        own = loss(model(x[:4]), {"age": age[:4], "sex": sex[:4]})
        self.assertAlmostEqual(told, own.item(), places=5)
        with self.assertRaisesRegex(annulus.ExportError, "takes one target"):
            self.write(model, data, target=["age", "sex"])
        with self.assertRaisesRegex(annulus.ExportError, "a name or several"):
            self.write(model, data, loss=loss, target=["age", "sax"])

    def test_the_file_says_which_parameters_decay_if_not_all_matrices_do(self) -> None:
        x, y = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
        model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 3), nn.Linear(3, 3))
        model[3].weight = model[2].weight
        matrices, every = ["0.weight", "2.weight"], [name for name, _ in model.named_parameters()]
        for decay, expected in (
            ("matrices", None),
            (matrices, None),
            # A tied one by its other name.
            (["0.weight", "3.weight"], None),
            ("all", every),
            (["0.weight", "0.bias"], ["0.weight", "0.bias"]),
            ([], []),
        ):
            self.write(model, (x, y), decay=decay)
            told = metadata(self.folder).get("annulus.decayed")
            self.assertEqual(None if told is None else told.split(), expected, decay)
        for wrong, why in (("none", '"matrices", "all"'), (["head"], "names head")):
            with self.assertRaisesRegex(annulus.ExportError, why):
                self.write(model, (x, y), decay=wrong)

    def test_padding_by_a_collating_function(self) -> None:
        rows = [{"input_ids": [1] * length, "labels": length % 3} for length in (3, 5, 4)]
        model = models.Recurrent(nn.GRU)
        model.forward = lambda input_ids: models.Recurrent.forward(model, input_ids)[:, -1]
        with self.assertRaisesRegex(annulus.ExportError, "pad them"):
            annulus.export(model, dataset=rows, loss="cross_entropy", to=self.folder)

        def collate(batch: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
            wide = max(len(row["input_ids"]) for row in batch)
            ids = [row["input_ids"] + [0] * (wide - len(row["input_ids"])) for row in batch]
            return {"input_ids": torch.tensor(ids), "labels": torch.tensor([row["labels"] for row in batch])}

        annulus.export(model, dataset=rows, loss="cross_entropy", collate=collate, to=self.folder)
        self.assertEqual(load_file(self.folder / "samples.safetensors")["input_ids"].shape, (3, 5))

    def test_what_cannot_be_numbered_is_refused(self) -> None:
        class Stream(torch.utils.data.IterableDataset):
            def __iter__(self) -> Any:
                yield torch.zeros(4), 1

        for form, text in ((Stream(), "by number"), ([], "empty"), ([3], "a sample is a tuple"), ([("a", 1)], "numbers")):
            with self.assertRaisesRegex(annulus.ExportError, text):
                annulus.export(nn.Linear(4, 3), dataset=form, loss="cross_entropy", to=self.folder)


class Losses(Scratch):
    """Each loss in the graph against PyTorch's, with the reference evaluator."""

    def same(self, loss: Any, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        import evaluate

        class Scale(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.factor = nn.Parameter(torch.tensor([1.5]))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * self.factor

        self.export(Scale(), outputs, targets, loss=loss)
        made = float(evaluate.evaluate(self.folder, len(outputs))[0])
        self.assertAlmostEqual(made, loss(outputs * 1.5, targets).item(), places=5)

    def test_of_classes(self) -> None:
        torch.manual_seed(1)
        rows, targets = torch.randn(6, 5), torch.tensor([0, 4, 2, -100, 1, 2])
        weights = torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0])
        for options in ({}, {"label_smoothing": 0.1}, {"weight": weights}, {"weight": weights, "ignore_index": 2}):
            with self.subTest(options):
                kept = targets if options.get("ignore_index") is None else targets.clamp_min(0)
                self.same(lambda o, t, options=options: F.cross_entropy(o, t, **options), rows, kept)
        images = torch.randn(3, 5, 2, 2)
        self.same(lambda o, t: F.cross_entropy(o, t, weight=weights), images, torch.randint(0, 5, (3, 2, 2)))
        self.same(lambda o, t: F.nll_loss(F.log_softmax(o, 1), t), rows, targets)
        self.same(F.cross_entropy, rows, torch.softmax(torch.randn(6, 5), 1))

    def test_of_numbers(self) -> None:
        torch.manual_seed(1)
        one, other = torch.randn(6, 3), torch.randn(6, 3)
        for loss in (F.mse_loss, F.l1_loss, F.huber_loss, F.smooth_l1_loss):
            self.same(loss, one, other)
        self.same(lambda o, t: F.huber_loss(o, t, delta=0.3), one, other)
        self.same(lambda o, t: F.smooth_l1_loss(o, t, beta=0.4), one, other)
        self.same(F.binary_cross_entropy_with_logits, one, (other > 0).float())
        weight = torch.tensor([1.0, 2.0, 3.0])
        self.same(lambda o, t: F.binary_cross_entropy_with_logits(o, t, pos_weight=weight), one, (other > 0).float())


class Refusals(Scratch):
    X, Y = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])

    def test_one_message_names_all_operations_and_their_modules(self) -> None:
        class Odd(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return torch.special.i0(torch.fft.fft(x).real)

        model = nn.Sequential(nn.Linear(6, 6), Odd(), nn.Sequential(nn.Linear(6, 3), Odd()), Odd())
        told = self.refused("cannot be trained", model, self.X, self.Y)
        self.assertIn("aten.fft_fft in 1, 2.1, 3", told)
        self.assertIn("aten.special_i0 in 1, 2.1, 3", told)

    def test_a_loss_that_is_no_mean(self) -> None:
        model, ones = nn.Linear(6, 3), torch.ones
        self.refused("mean over the samples", model, self.X, ones(4, 3), loss=lambda o, t: F.mse_loss(o, t, reduction="sum"))
        self.refused("size of the batch", model, self.X, ones(4, 3), loss=lambda o, t: F.mse_loss(o, t) * len(o))
        self.refused("samples is nan", model, self.X, torch.full((4,), -100))
        self.refused("one number", nn.Linear(6, 3), self.X, self.Y, loss=lambda o, t: F.cross_entropy(o, t, reduction="none"))
        self.refused("no loss 'mes'", nn.Linear(6, 3), self.X, self.Y, loss="mes")
        self.refused("returns no loss", nn.Linear(6, 3), self.X, loss=None)

    def test_outputs_that_would_broadcast_against_targets(self) -> None:
        self.refused("the targets are", nn.Linear(6, 3), self.X, torch.randn(4), loss="mse")
        self.export(nn.Linear(6, 1), self.X, torch.randn(4), loss="mse")

    def test_control_flow_that_depends_on_values(self) -> None:
        class Branch(nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return super().forward(x if x.sum() > 0 else -x)

        self.refused("a branch or a shape that depends on values: use torch.where", Branch(6, 3), self.X, self.Y)

    def test_a_buffer_that_training_changes_by_a_rule_of_its_own(self) -> None:
        class Moving(nn.Linear):
            def __init__(self) -> None:
                super().__init__(6, 3)
                self.register_buffer("mean", torch.zeros(6))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.mean.lerp_(x.mean(0), 0.1)
                return super().forward(x - self.mean)

        self.refused("lerp", Moving(), self.X, self.Y)

    def test_samples_that_do_not_fit_the_model(self) -> None:
        net, (X, Y) = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)), (self.X, self.Y)
        self.refused("2 inputs.*pass loss=", net, X, Y, loss=None)
        self.refused(r"fails on these samples in 1: .*float32 \[4, 7\]", nn.Sequential(nn.ReLU(), net[0]), torch.randn(4, 7), Y)
        self.refused("the targets are floats: pass targets.long", net, X, Y.float())
        self.refused("a target is 3, and the model returns 3 logits", net, X, torch.tensor([0, 1, 2, 3]))
        self.refused("pass an instance, loss=CrossEntropyLoss\\(\\)", net, X, Y, loss=nn.CrossEntropyLoss)
        self.refused("no values.*meta", net.to("meta"), X, Y)
        with self.assertRaisesRegex(annulus.ExportError, "samples have pixels, and the model's forward takes input"):
            annulus.export(nn.Linear(6, 3), {"pixels": X, "label": Y}, loss="cross_entropy", to=self.folder)

    def test_a_refusal_names_the_users_line_and_what_to_write_instead(self) -> None:
        class Masked(nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                kept = x[x > 0]  # the line
                return super().forward(x) + kept.sum()

        class Packed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.LSTM(6, 3, batch_first=True)

            def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
                packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)  # its line
                return self.layer(packed)[1][0][0]

        class Transformed(nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return super().forward(torch.fft.fft(x).real)  # another

        for model, samples, line, advice in (
            (Masked(6, 3), (self.X,), "kept = x", "torch.where"),
            (Packed(), (torch.randn(4, 5, 6), torch.tensor([5, 3, 2, 4])), "packed = ", "pad them, and mask the loss"),
            (Transformed(6, 3), (self.X,), "# another", "a column of the samples"),
        ):
            told = self.refused(r"test_export.py:\d+: ", model, *samples, self.Y)
            self.assertIn(line, told)
            self.assertIn(advice, told)


class Loading(Scratch):
    def test_a_model_gets_its_parameters_back(self) -> None:
        case = models.make("llama")
        case.export(self.folder)
        other = models.make("llama").model
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.zero_()
        trained = load_file(self.folder / "reference.safetensors")
        save_file(trained, self.folder / "trained.safetensors")
        load(self.folder / "trained.safetensors", other)
        for name, parameter in other.named_parameters():
            np.testing.assert_array_equal(parameter.detach().numpy(), trained[name])
        self.assertIs(other.lm_head.weight, other.model.embed_tokens.weight)

    def test_what_does_not_fit_is_named_and_changes_nothing(self) -> None:
        model = nn.Linear(3, 2)
        before = model.weight.detach().clone()
        file = self.folder / "trained.safetensors"
        save_file({"weight": np.zeros((2, 4), np.float32), "odd": np.zeros(1, np.float32)}, file)
        with self.assertRaises(annulus.AnnulusError) as caught:
            load(file, model)
        for text in ("the run has no bias", "the model has no odd", "weight is [2, 3] in the model and [2, 4] in the run"):
            self.assertIn(text, str(caught.exception))
        self.assertTrue(torch.equal(model.weight, before))

    def test_a_parameter_without_axes(self) -> None:
        model = nn.Module()
        model.scale = nn.Parameter(torch.tensor(1.0))
        save_file({"scale": np.array([2.5], np.float32)}, self.folder / "trained.safetensors")
        load(self.folder / "trained.safetensors", model)
        self.assertEqual(json.dumps(model.scale.item()), "2.5")


if __name__ == "__main__":
    unittest.main()
