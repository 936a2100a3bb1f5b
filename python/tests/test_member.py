"""PyTorch as a member of a run, beside members that compute with the program's own kernels."""

from __future__ import annotations

import collections
import re
import signal
import subprocess
import sys
import threading
import unittest
from pathlib import Path
from typing import Any

try:
    import safetensors  # noqa: F401
    import torch
except ImportError as error:
    raise unittest.SkipTest(f"PyTorch as a member needs {error.name}") from error

import taking_part
from running import LOCAL, OURS, Script, WithProgram
from torch import nn

import annulus
from annulus import membership, program

#: Rounds of two members before one of them is killed, and after it is back.
ROUNDS = 30


class TakingPart(Script):
    """A process that takes part with PyTorch."""

    def __init__(self, folder: Path) -> None:
        super().__init__(taking_part.__file__, str(folder), "2")
        #: The state after each round of two members.
        self.digests: dict[int, str] = {}

    def wait_for_rounds(self, count: int, members: int) -> None:
        """Waits for more rounds of this many members."""
        while count > 0:
            round_, digest, present = self.wait_for("round")
            if present == "2":
                self.digests[int(round_)] = digest
            count -= int(present) == members


class Copies(unittest.TestCase):
    """Of all kinds of tensors, by threads and without."""

    def setUp(self) -> None:
        torch.manual_seed(3)
        kept = membership.COPIED_AT_ONCE
        self.addCleanup(setattr, membership, "COPIED_AT_ONCE", kept)

    def test_all_numbers_arrive(self) -> None:
        for at_once, alone in ((1 << 24, False), (64, False), (64, True)):
            membership.COPIED_AT_ONCE = at_once
            sources = [
                torch.randn(37, 5),
                torch.randn(5, 37).t(),
                torch.randn(3),
                torch.randn(8, 4).double(),
                torch.tensor(2.5),
                torch.view_as_complex(torch.randn(6, 2)).conj().imag,
            ]
            pairs = [(torch.zeros(source.shape), source) for source in sources]
            membership._copy(pairs, alone)
            for target, source in pairs:
                self.assertTrue(torch.equal(target, source.float()), (at_once, alone, source.shape))

    def test_autograd_notices(self) -> None:
        weight = nn.Parameter(torch.ones(4))
        loss = (weight * weight).sum()
        with torch.no_grad():
            membership._copy([(weight, torch.zeros(4))])
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            loss.backward()

    def test_a_script_that_ends_in_a_share_leaves_in_good_order(self) -> None:
        """Once Python ends it starts no threads."""
        script = "import atexit, torch; from annulus import membership as m; m.COPIED_AT_ONCE = 8; a = torch.zeros(9)\n"
        script += "atexit.register(lambda: (m._copy([(a, torch.ones(9))], alone=True), print(a.sum().item())))"
        told = subprocess.run([sys.executable, "-c", script], env=OURS, capture_output=True, text=True, check=False)
        self.assertEqual((told.stdout.strip(), told.stderr), ("9.0", ""))


class Members(WithProgram):
    def setUp(self) -> None:
        super().setUp()
        torch.manual_seed(3)

    def taking_part(self) -> TakingPart:
        member = TakingPart(self.folder / "pytorch")
        self.addCleanup(member.end)
        return member

    def join(self, ticket: str) -> annulus.Run:
        """A member that computes with the program's own kernels."""
        run = annulus.join(ticket, device="cpu", out=self.folder / "ours", wait=False, **LOCAL)
        self.addCleanup(run.stop)
        return run

    def member(self, model: nn.Module, data: Any, **options: Any) -> annulus.Member:
        folders = {"to": self.folder / "model", "out": self.folder / "pytorch"}
        run = annulus.member(model, data, **{**folders, **LOCAL, **options})
        self.addCleanup(run.stop)
        return run

    def found(self, **options: Any) -> tuple[nn.Module, annulus.Member]:
        """A run of one member."""
        model = taking_part.classifier()
        return model, self.member(model, taking_part.data(), loss="cross_entropy", checked=False, **options)

    def train(self, model: nn.Module, run: annulus.Member, **options: Any) -> int:
        """The loop of a user; how many batches it had."""
        count = 0
        for inputs, targets in run.loader(**options):
            run.backward(nn.functional.cross_entropy(model(inputs), targets))
            count += 1
        return count

    def test_a_member_is_killed_and_comes_back_beside_one_of_ours(self) -> None:
        first = self.taking_part()
        ours = self.join(*first.wait_for("ticket"))
        # The state after each round of two members.
        theirs: dict[int, str] = {}
        events = ours.events()

        def note() -> None:
            for event in events:
                if event["event"] == "round" and len(event["members"]) == 2:
                    theirs[event["round"]] = event["digest"]

        threading.Thread(target=note, daemon=True).start()
        first.wait_for_rounds(ROUNDS, members=2)
        alone = (event for event in ours.events() if event["event"] == "round" and len(event["members"]) == 1)
        first.end()
        self.assertIsNotNone(next(alone, None))
        again = self.taking_part()
        again.wait_for_rounds(ROUNDS, members=2)
        # If the machine is so busy that one takes the other for dead, a round of one may be no round of the other.
        while len((both := first.digests | again.digests).keys() & theirs.keys()) < 2 * ROUNDS:
            again.wait_for_rounds(10, members=2)
        again.process.send_signal(signal.SIGINT)
        again.wait_for("loss")
        ours.stop()
        common = both.keys() & theirs.keys()
        self.assertEqual(*({round_: of[round_] for round_ in common} for of in (both, theirs)))
        for name in ("pytorch/run", "ours"):
            self.audit(self.folder / name)

    def test_the_program_ends_with_the_process_that_computes(self) -> None:
        member = self.taking_part()
        member.wait_for_rounds(3, members=1)
        member.end()
        import fcntl

        # The program holds the lock until it has left.
        with (self.folder / "pytorch/run/lock").open("rb+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
        self.audit(self.folder / "pytorch/run")

    def test_a_run_of_ours_is_joined_and_ends_with_one_model(self) -> None:
        model, data = taking_part.classifier(), taking_part.data()
        names = {"x": data[0], "labels": data[1]}
        ours = annulus.train(
            model,
            data,
            loss="cross_entropy",
            device="cpu",
            to=self.folder / "model",
            out=self.folder / "ours",
            **LOCAL,
            batch=32,
            rounds=200,
            min_peers=2,
            lr=5e-3,
        )
        self.addCleanup(ours.stop)
        own = taking_part.classifier()
        run = self.member(own, names, ticket=ours.ticket)
        shares = []
        for batch in run.loader(4, workers=2):
            shares.append(len(batch["labels"]))
            run.backward(nn.functional.cross_entropy(own(batch["x"]), batch["labels"]))
        self.assertTrue(run.is_over)
        self.assertIn(max(shares, default=0), range(1, 5))
        ours.load_into(model)
        for name, tensor in model.state_dict().items():
            self.assertTrue(torch.equal(tensor, own.state_dict()[name]), name)
        self.audit(self.folder / "pytorch")

    def test_frozen_parameters_come_from_the_founder(self) -> None:
        model = taking_part.classifier()
        model[0].weight.requires_grad_(False)
        before = model[0].weight.clone()
        founder = self.member(model, taking_part.data(), loss="cross_entropy", rounds=100_000, batch=8)
        own = taking_part.classifier()
        own[0].weight.requires_grad_(False)
        joined = self.member(own, taking_part.data(), ticket=founder.ticket, out=self.folder / "joined")
        self.assertTrue(torch.equal(own[0].weight, before))
        joined.stop()
        with self.assertRaisesRegex(annulus.ProgramError, "the run has no 0.weight"):
            self.member(taking_part.classifier(), taking_part.data(), ticket=founder.ticket, out=self.folder / "other")

    def test_the_loop_may_end_at_any_batch(self) -> None:
        model, run = self.found(rounds=100_000, batch=32)
        with run:
            for at, (inputs, targets) in enumerate(run.loader(8)):
                run.backward(nn.functional.cross_entropy(model(inputs), targets))
                if at == 9:
                    break
        self.assertTrue(run.is_over)
        self.assertIsInstance(run.watch(), annulus.Member)
        # The third round has two of its four batches, and the other samples are still to come.
        done = run.latest("round")
        assert done is not None
        self.assertEqual((done["round"], done["samples"]), (3, 16))
        self.audit(self.folder / "pytorch")
        with self.assertRaisesRegex(annulus.AnnulusError, "holds a run with batch=32 .*, not batch=16 "):
            self.found(rounds=100_000, batch=16)
        _, again = self.found(rounds=100_000, batch=32, checkpoint_every=7)
        again.stop()

    def test_a_finished_run_leaves_the_model_trained(self) -> None:
        model, run = self.found(rounds=300, batch=32, lr=1e-2)
        points, classes = taking_part.data()
        before = nn.functional.cross_entropy(model(points), classes).item()
        self.assertEqual(self.train(model, run), 300)
        after = nn.functional.cross_entropy(model.eval()(points), classes).item()
        self.assertLess(after, 0.5 * before)
        # The same folder once more tries the device out at most.
        again = taking_part.classifier()
        self.assertLess(self.train(again, self.member(again, (points, classes))), 10)
        self.assertTrue(torch.equal(again[0].weight, model[0].weight))

    def test_four_readers_give_each_sample_of_an_epoch_once(self) -> None:
        points, classes = (column[:320] for column in taking_part.data())
        model = taking_part.classifier()
        settings = {"batch": 32, "rounds": 30, "held_out": 0}
        run = self.member(model, (points, classes), loss="cross_entropy", checked=False, **settings)
        seen: collections.Counter[int] = collections.Counter()
        for inputs, targets in run.loader(5, workers=4):
            # Which samples these are, by their values. Those that try the device out are not the run's.
            numbers = (inputs[:, None] == points).all(2).int().argmax(1)
            self.assertTrue(torch.equal(points[numbers], inputs))
            if not run._is_trial:
                seen.update(numbers.tolist())
            run.backward(nn.functional.cross_entropy(model(inputs), targets))
        self.assertEqual(seen, collections.Counter({number: 3 for number in range(320)}))
        self.audit(self.folder / "pytorch")

    def test_a_paused_member_goes_on_with_the_same_process(self) -> None:
        model, run = self.found(rounds=100_000, batch=32)

        waiting = (event for event in run.events() if event["event"] == "waiting")
        unpausing = threading.Thread(target=lambda: next(waiting) and program.call(["unpause", run.folder]), daemon=True)
        after = 0
        with run:
            for inputs, targets in run.loader():
                run.backward(nn.functional.cross_entropy(model(inputs), targets))
                if not unpausing.ident:
                    program.call(["pause", run.folder])
                    unpausing.start()
                after += run.latest("waiting") is not None
                if after == 20:
                    break
        self.assertEqual(after, 20)
        self.audit(self.folder / "pytorch")

    def test_local_steps(self) -> None:
        model, run = self.found(rounds=100_000, batch=16, local_steps=4, lr=5e-3)
        points, classes = taking_part.data()
        before = nn.functional.cross_entropy(model(points), classes).item()
        with run:
            for at, (inputs, targets) in enumerate(run.loader(workers=2)):
                run.backward(nn.functional.cross_entropy(model(inputs), targets))
                if at == 200:
                    break
        run.load_into(model.eval(), wait=False)
        self.assertLess(nn.functional.cross_entropy(model(points), classes).item(), 0.7 * before)
        self.audit(self.folder / "pytorch")

    def test_mistakes_in_the_loop_are_told(self) -> None:
        model, run = self.found(rounds=100_000, batch=32)
        with run:
            with self.assertRaisesRegex(annulus.AnnulusError, "once for each batch"):
                run.backward(torch.zeros(()))
            with self.assertRaisesRegex(annulus.AnnulusError, "loop over run.loader"):
                run.watch()
            with self.assertRaisesRegex(annulus.AnnulusError, "once for each batch"):
                for _ in run.loader():
                    pass
            with self.assertRaisesRegex(annulus.AnnulusError, re.escape("it has the shape [32]")):
                for inputs, targets in run.loader():
                    run.backward(nn.functional.cross_entropy(model(inputs), targets, reduction="none"))

    def test_data_sets_that_do_not_fit_are_refused(self) -> None:
        class Stream(torch.utils.data.IterableDataset[Any]):
            def __iter__(self) -> Any:
                return iter(())

        with self.assertRaisesRegex(annulus.ExportError, "which member computes which samples"):
            self.member(taking_part.classifier(), Stream())
        _, run = self.found(rounds=100_000, batch=8)
        points, classes = taking_part.data()
        with self.assertRaisesRegex(annulus.ProgramError, "has 100 samples, and the run trains on 512"):
            short = points[:100], classes[:100]
            self.member(taking_part.classifier(), short, ticket=run.ticket, out=self.folder / "short")


if __name__ == "__main__":
    unittest.main()
