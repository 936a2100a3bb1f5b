"""Fine-tuning a pretrained transformer, whole and by LoRA: what is trained, sent and kept, and how it comes back."""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

try:
    import pandas
    import peft
    import torch
    import transformers
    from safetensors import safe_open
except ImportError as error:
    raise unittest.SkipTest(f"fine-tuning needs {error.name}") from error

from running import LOCAL, WithProgram

import annulus
from annulus import program

EXAMPLE = Path(__file__).parents[1] / "examples/fine_tune.py"

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "tea", "soup", "cake", "was", "the", "rice"]


def pretrained(folder: Path) -> None:
    """A tiny encoder, as a folder that `from_pretrained` reads."""
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(3)
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=16,
    )
    transformers.BertForSequenceClassification(config).save_pretrained(folder)


def table(file: Path) -> None:
    """Texts whose label is a word in them."""
    rows = []
    for at in range(400):
        label, food = ("good", "bad")[at % 2], ("tea", "soup", "cake", "rice")[at // 2 % 4]
        rows.append({"text": f"the {food} was {label}" if at % 3 else f"{label} {food}", "label": label})
    pandas.DataFrame(rows).to_csv(file, index=False)


class FineTuning(WithProgram):
    command, word = "train", "--log-tickets"

    def setUp(self) -> None:
        super().setUp()
        pretrained(self.folder / "base")
        table(self.folder / "texts.csv")

    def base(self) -> Any:
        return transformers.AutoModelForSequenceClassification.from_pretrained(self.folder / "base", num_labels=2)

    def tune(self, *options: str) -> str:
        """Runs the example to its end; what it printed."""
        given = [str(self.folder / "base"), str(self.folder / "texts.csv"), *options, "--tokens", "8"]
        given += ["--listen", "127.0.0.1:0", "--to", str(self.folder / "tuned"), "epochs=10", "lr=5e-3"]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), mock.patch.object(sys, "argv", [str(EXAMPLE), *given]):
            runpy.run_path(str(EXAMPLE), run_name="__main__")
        return printed.getvalue()

    def accuracy(self, model: Any) -> float:
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.folder / "base")
        texts = ["the cake was good", "bad rice", "good soup", "the tea was bad"]
        with torch.no_grad():
            made = model.eval()(**tokenizer(texts, padding="max_length", max_length=8, return_tensors="pt"))
        # Labels in alphabetical order: bad, good.
        return float((made.logits.argmax(1) == torch.tensor([1, 0, 1, 0])).float().mean())

    def test_a_whole_model_is_saved_as_transformers_reads_it(self) -> None:
        self.assertIn("'accuracy': 1.0", self.tune())
        tuned = transformers.AutoModelForSequenceClassification.from_pretrained(self.folder / "tuned")
        self.assertEqual(self.accuracy(tuned), 1.0)

    def test_an_adapter_is_saved_as_peft_reads_it(self) -> None:
        self.assertIn("'accuracy': 1.0", self.tune("--lora"))
        self.assertEqual(self.accuracy(peft.PeftModel.from_pretrained(self.base(), self.folder / "tuned")), 1.0)

    def test_two_peers_exchange_and_keep_the_adapter_alone(self) -> None:
        model = peft.get_peft_model(self.base(), peft.LoraConfig(task_type="SEQ_CLS", r=2))
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        trained = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
        count, whole = sum(trained.values()), sum(p.numel() for p in model.parameters())
        self.assertLess(10 * count, whole)
        draw = torch.Generator().manual_seed(1)
        samples = {"input_ids": torch.randint(5, 13, (64, 8), generator=draw)}
        samples["labels"] = samples["input_ids"][:, 0] % 2
        run = annulus.train(
            model,
            samples,
            device="cpu",
            to=self.folder / "exported",
            out=self.folder / "run",
            **LOCAL,
            **{"rounds": 30, "batch": 8, "min_peers": 2, "codec": "f32"},
        )
        self.addCleanup(run.stop)
        events = run.events()
        other = annulus.join(run.ticket, device="cpu", out=self.folder / "other", wait=False, **LOCAL)
        self.addCleanup(other.stop)
        self.assertEqual((run.latest("ready") or {})["parameters"], count)
        together = [event for event in events if event["event"] == "round" and event["samples"]]
        run.watch()
        other.watch()
        self.assertEqual((run.latest("done") or {})["digest"], (other.latest("done") or {})["digest"])
        self.assertGreaterEqual(len(together), 30)
        self.assertEqual({len(event["members"]) for event in together}, {2})
        # Each sends half of the gradient and half of the sum, and headers: not the frozen parameters. It sends more only in a
        # round that has to begin again.
        sent = sorted(event["bytes_sent"] for event in together)
        self.assertLess(sent[len(sent) // 2], 4 * count + 8192)
        self.assertGreater(4 * whole, 2 * (4 * count + 8192))
        for folder in (run.folder, other.folder):
            states = [file for file in folder.rglob("*.safetensors") if file.is_file()]
            self.assertTrue(states)
            for file in states:
                # Parameters and two moments.
                self.assertLess(file.stat().st_size, 3 * 4 * count + 32768, file)
        run.load_into(model)
        for name, tensor in model.state_dict().items():
            self.assertEqual(torch.equal(tensor, before[name]), name not in trained, name)
        program.call(["export", run.folder, self.folder / "adapter.safetensors"])
        with safe_open(self.folder / "adapter.safetensors", "pt") as file:
            self.assertEqual(set(file.keys()), set(trained))


if __name__ == "__main__":
    unittest.main()
