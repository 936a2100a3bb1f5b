"""Fine-tunes a pretrained text classifier on a table of texts and labels, on all machines that join.

    python fine_tune.py MODEL reviews.csv --lora     # prints a ticket; MODEL is a folder or a name on the Hub
    annulus join annulus2...                         # on other machines, which need no torch

With --lora, peft trains small adapters and the rest stays as it is. Needs transformers, pandas, and peft for --lora.
"""

from __future__ import annotations

import argparse

import pandas
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import annulus

ask = argparse.ArgumentParser(description="Fine-tune a text classifier.")
ask.add_argument("model", help="a folder, or a name on the Hub")
ask.add_argument("table", help="CSV file with the columns text and label")
ask.add_argument("--lora", action="store_true", help="train adapters only")
ask.add_argument("--tokens", type=int, default=48, help="longest text")
ask.add_argument("--listen", default="4433", help="port by which others join")
ask.add_argument("--to", default="fine-tuned", help="folder for the model or the adapter")
ask.add_argument("settings", nargs="*", help="settings of the run, such as epochs=3")
given = ask.parse_intermixed_args()

table = pandas.read_csv(given.table)
labels = sorted(table["label"].unique().tolist())
tokenizer = AutoTokenizer.from_pretrained(given.model)
model = AutoModelForSequenceClassification.from_pretrained(given.model, num_labels=len(labels))
if given.lora:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(model, LoraConfig(task_type="SEQ_CLS", r=8, lora_alpha=16))

texts = tokenizer(table["text"].tolist(), padding="max_length", truncation=True, max_length=given.tokens, return_tensors="np")
samples = {**texts, "labels": table["label"].map(labels.index).to_numpy()}
recipe = {"epochs": 2, "batch": 16, "optimizer": "adamw", "lr": 2e-3 if given.lora else 1e-4, "clip": 1}
recipe |= {"schedule": "cosine", "warmup": 10, **dict(pair.split("=", 1) for pair in given.settings)}
run = annulus.train(model, samples, listen=given.listen, to=f"{given.to}/exported", out=f"{given.to}/run", **recipe)

run.load_into(model)
model.save_pretrained(given.to)
done = run.latest("done") or {}
print(f"saved in {given.to}; on the texts that were held out:", done.get("metrics"))
