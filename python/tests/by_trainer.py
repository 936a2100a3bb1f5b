"""Founds a run of two members with a Hugging Face `Trainer`: `by_trainer.py FOLDER`.

It prints the ticket, and at the end what `train_to_the_end` returns.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from running import LOCAL
from transformers import BertConfig, BertForSequenceClassification, TrainerCallback, TrainingArguments

from annulus.hf import AnnulusTrainer

ROUNDS, BATCH, SAMPLES = 60, 16, 128


def classifier() -> Any:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    return BertForSequenceClassification(BertConfig(vocab_size=40, max_position_embeddings=8, **sizes))


def texts(count: int, seed: int) -> list[dict[str, Any]]:
    """Texts of different lengths, as a tokenizer makes them, with a column that the model does not take."""
    draw = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        ids = torch.randint(4, 40, (int(torch.randint(4, 8, (), generator=draw)),), generator=draw)
        rows.append({"input_ids": ids.tolist(), "label": int(ids[0] % 2), "text": "left out"})
    return rows


def pad(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    width = max(len(row["input_ids"]) for row in rows)
    padded = [row["input_ids"] + [0] * (width - len(row["input_ids"])) for row in rows]
    ids = torch.tensor(padded)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor([row["label"] for row in rows])}


def trainer(folder: Path, annulus: dict[str, Any], **options: Any) -> AnnulusTrainer:
    """A script's trainer."""
    torch.set_num_threads(1)
    arguments: dict[str, Any] = {
        "max_steps": ROUNDS,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": BATCH // 4,
        "learning_rate": 5e-3,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 5,
        "logging_steps": 10,
        "eval_strategy": "steps",
        "eval_steps": 30,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        **options,
    }

    def accuracy(made: Any) -> dict[str, float]:
        return {"accuracy": float((made.predictions.argmax(1) == made.label_ids).mean())}

    return AnnulusTrainer(
        classifier(),
        TrainingArguments(str(folder / "trainer"), **arguments),
        data_collator=pad,
        train_dataset=texts(SAMPLES, 1),
        eval_dataset=texts(64, 2),
        compute_metrics=accuracy,
        annulus={"to": folder / "model", "out": folder / "run", **LOCAL, **annulus},
    )


class _Tell(TrainerCallback):
    """Prints the ticket once there is a run."""

    def __init__(self, of: AnnulusTrainer) -> None:
        self._of = of

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        assert self._of.run is not None
        print("ticket", self._of.run.ticket, flush=True)


def train_to_the_end(folder: Path, ticket: str | None = None) -> list[str]:
    """Takes part in a run of two members. Each begins with weights of its own: only the founder's count.

    Returns the digest, the trainer's step, the accuracy on its evaluation set, the sum of the absolute parameters, and the
    number of contributions.
    """
    torch.manual_seed(1 if ticket is None else 2)
    own = trainer(folder, {"min_peers": 2} if ticket is None else {"ticket": ticket})
    if ticket is None:
        own.add_callback(_Tell(own))
    own.train()
    assert own.run is not None
    done = own.run.latest("done") or {}
    total = sum(float(parameter.detach().double().abs().sum()) for parameter in own.model.parameters())
    score = own.evaluate()["eval_accuracy"]
    return [str(each) for each in (done["digest"], own.state.global_step, score, total, own.run.contributions)]


if __name__ == "__main__":
    print("end", *train_to_the_end(Path(sys.argv[1])), flush=True)
