"""`annulus.train` as a whole: what its arguments come to in a run."""

from __future__ import annotations

import copy
import json
import unittest
from typing import Any

try:
    import safetensors  # noqa: F401
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError as error:
    raise unittest.SkipTest(f"training needs {error.name}") from error

from running import LOCAL, WithProgram

import annulus


class Train(WithProgram):
    command, word = "train", "--log-tickets"

    def setUp(self) -> None:
        super().setUp()
        torch.manual_seed(3)
        torch.set_num_threads(1)
        self.samples = torch.randn(40, 4), torch.randint(0, 3, (40,))
        self.others = torch.randn(10, 4), torch.randint(0, 3, (10,))

    def train(self, model: nn.Module, **options: Any) -> annulus.Run:
        to, out = self.folder / "model", self.folder / "run"
        given: dict[str, Any] = {"loss": "cross_entropy", "eval_dataset": self.others, "rounds": 20, "batch": 8, **options}
        run = annulus.train(model, self.samples, device="cpu", to=to, out=out, **LOCAL, **given)
        self.addCleanup(run.stop)
        return run

    def test_a_run_is_founded_as_its_arguments_say(self) -> None:
        model = nn.Linear(4, 3)
        run = self.train(model, decay="all", schedule="one-cycle", pct_start=0.25)
        run.load_into(model)
        done = run.latest("done") or {}
        self.assertTrue(done["held_out"])
        self.assertAlmostEqual(done["loss"], F.cross_entropy(model(self.others[0]), self.others[1]).item(), places=5)
        manifest = json.loads((run.folder / "manifest.json").read_text())
        self.assertEqual(manifest["samples"], 40)
        self.assertEqual(manifest["schedule"], {"one-cycle": {"total": 20, "rise": 0.25}})
        self.assertEqual([tensor["rule"] for tensor in manifest["layout"]["tensors"]], ["StepAndDecay", "StepAndDecay"])
        with self.assertRaisesRegex(annulus.ProgramError, r"holds another run.*annulus\.resume\('.*run'\)"):
            self.train(nn.Linear(4, 3), checked=False)

    def test_schedule_and_decay_are_pytorchs(self) -> None:
        model, steps = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3)), 8
        own = copy.deepcopy(model)
        settings = {"optimizer": "adamw", "lr": 0.05, "weight_decay": 0.3, "schedule": "one-cycle", "clip": "off"}
        self.train(model, decay="all", rounds=steps, batch=40, checked=False, **settings).load_into(model)
        optimizer = torch.optim.AdamW(own.parameters(), lr=0.05, weight_decay=0.3)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=steps, cycle_momentum=False)
        for step in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(own(self.samples[0]), self.samples[1]).backward()
            optimizer.step()
            if step + 1 < steps:
                scheduler.step()
        for (name, made), expected in zip(model.named_parameters(), own.parameters(), strict=True):
            torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-5, msg=name)

    def test_arguments_that_contradict_each_other(self) -> None:
        with self.assertRaisesRegex(annulus.AnnulusError, "leave held_out= out"):
            self.train(nn.Linear(4, 3), held_out=0.2)


if __name__ == "__main__":
    unittest.main()
