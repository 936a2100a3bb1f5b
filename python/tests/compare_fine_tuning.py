"""Fine-tunes a text classifier by two peers on this machine, and by PyTorch alone with the same batches, and compares them.

    python tests/compare_fine_tuning.py MODEL reviews.csv --lora

A measurement, and no test: it takes minutes. MODEL is a folder or a name on the Hub; the table has the columns text and label.
Both ways begin with the same head, and take AdamW with a cosine to a tenth of the rate. Masks of dropout differ.
"""

from __future__ import annotations

import argparse
import copy
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import pandas
import torch
from running import LOCAL
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import annulus

WARMUP, FLOOR, DECAY = 10, 0.1, 0.01

Samples = dict[str, torch.Tensor]


def batches(count: int, given: argparse.Namespace, folder: Path) -> list[list[int]]:
    """The samples of each round of a run of this length and seed: what a member that trains a tiny model is given."""
    model, numbers = nn.Linear(1, 1), torch.arange(count)
    data = numbers[:, None] / count, torch.zeros(count, 1)
    settings = {"rounds": given.rounds, "batch": given.batch, "seed": given.seed, "held_out": 0}
    run = annulus.member(model, data, loss="mse", to=folder / "order", out=folder / "orders", **LOCAL, **settings)
    found = []
    for inputs, targets in run.loader():
        before = run.contributions
        run.backward(nn.functional.mse_loss(model(inputs), targets))
        if run.contributions > before:
            found.append((inputs[:, 0] * count).round().long().tolist())
    assert [len(batch) for batch in found] == [given.batch] * given.rounds
    return found


def by_peers(model: nn.Module, samples: Samples, given: argparse.Namespace, folder: Path) -> None:
    """Two peers train the model."""
    recipe = {"optimizer": "adamw", "lr": given.lr, "clip": 1, "schedule": "cosine", "warmup": WARMUP, "weight_decay": DECAY}
    length = {"rounds": given.rounds, "batch": given.batch, "seed": given.seed, "held_out": 0}
    together = {"min_peers": 2, "stand_aside": "off"}
    parts = {"device": "cpu", **LOCAL}
    run = annulus.train(model, samples, to=folder / "model", out=folder / "first", **parts, **recipe, **length, **together)
    other = annulus.join(run.ticket, out=folder / "second", wait=False, **parts)
    rounds = [event for event in run.events() if event["event"] == "round" and event["samples"]]
    alone = sum(len(event["members"]) < 2 for event in rounds)
    run.load_into(model)
    other.watch()
    ends = [peer.latest("done") or {} for peer in (run, other)]
    assert ends[0]["digest"] == ends[1]["digest"]
    print(f"two peers: {given.rounds} rounds, {alone} of them with one member only, equal digests")


def rate(step: int, given: argparse.Namespace) -> float:
    """The run's schedule; the first step is 0."""
    if step < WARMUP:
        return given.lr * (step + 1) / (WARMUP + 1)
    progress = (step - WARMUP) / (given.rounds - WARMUP)
    return given.lr * (FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * progress)))


def by_pytorch(model: nn.Module, samples: Samples, order: list[list[int]], given: argparse.Namespace) -> None:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decayed = [parameter for parameter in trained if parameter.dim() > 1]
    others = [parameter for parameter in trained if parameter.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=given.lr)
    model.train()
    for step, numbers in enumerate(order):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, given)
        optimizer.zero_grad()
        model(**{name: column[numbers] for name, column in samples.items()}).loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()


def accuracy(model: nn.Module, samples: Samples) -> float:
    right, count = 0, len(samples["labels"])
    model.eval()
    with torch.no_grad():
        for at in range(0, count, 64):
            part = {name: column[at : at + 64] for name, column in samples.items()}
            right += int((model(**part).logits.argmax(1) == part["labels"]).sum())
    return 100 * right / count


def main(given: argparse.Namespace) -> None:
    table = pandas.read_csv(given.table)
    labels = sorted(table["label"].unique().tolist())
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    read = tokenizer(table["text"].tolist(), padding="max_length", truncation=True, max_length=48, return_tensors="pt")
    columns = {**read, "labels": torch.tensor(table["label"].map(labels.index).tolist())}
    count = min(given.rounds * given.batch, len(table) - given.held_out)
    samples = {name: column[:count] for name, column in columns.items()}
    test = {name: column[-given.held_out :] for name, column in columns.items()}
    largest = 100 * int(torch.bincount(test["labels"]).max()) / given.held_out
    print(f"{count} texts to train on, {given.held_out} held out, of which the largest class is {largest:.1f} %")

    torch.manual_seed(given.seed)
    model: Any = AutoModelForSequenceClassification.from_pretrained(given.model, num_labels=len(labels))
    if given.lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(task_type="SEQ_CLS", r=8, lora_alpha=16))
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    print(f"{trained:,} trained parameters; untrained {accuracy(model, test):.2f} %")
    own = copy.deepcopy(model)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        began = time.monotonic()
        by_peers(model, samples, given, Path(scratch))
        print(f"two peers: {accuracy(model, test):.2f} %, {time.monotonic() - began:.0f} s")
        order = batches(count, given, Path(scratch))
    for seed in range(given.alone):
        again = copy.deepcopy(own)
        torch.manual_seed(seed)
        began = time.monotonic()
        by_pytorch(again, samples, order, given)
        print(f"PyTorch alone, dropout by seed {seed}: {accuracy(again, test):.2f} %, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    ask = argparse.ArgumentParser(description="Compare fine-tuning by two peers with fine-tuning by PyTorch alone.")
    ask.add_argument("model")
    ask.add_argument("table")
    ask.add_argument("--lora", action="store_true")
    ask.add_argument("--rounds", type=int, default=100)
    ask.add_argument("--batch", type=int, default=16)
    ask.add_argument("--held-out", type=int, default=2000)
    ask.add_argument("--lr", type=float, help="1e-4, or 2e-3 with --lora")
    ask.add_argument("--seed", type=int, default=1)
    ask.add_argument("--alone", type=int, default=2, help="how often PyTorch trains alone")
    options = ask.parse_args()
    options.lr = options.lr or (2e-3 if options.lora else 1e-4)
    main(options)
