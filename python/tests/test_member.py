"""PyTorch as a member of a run, beside members that compute with the program's own kernels."""

from __future__ import annotations

import collections
import contextlib
import copy
import io
import math
import re
import signal
import subprocess
import sys
import threading
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

try:
    import safetensors  # noqa: F401
    import torch
except ImportError as error:
    raise unittest.SkipTest(f"PyTorch as a member needs {error.name}") from error

import taking_part
from running import LOCAL, OURS, Script, WithProgram
from torch import nn

import annulus
from annulus import feeding, loading, membership, program

#: Rounds of two members before one of them is killed, and after it is back.
ROUNDS = 30


class TakingPart(Script):
    """A process that takes part with PyTorch."""

    def __init__(self, folder: Path, *arguments: str, workers: int = 2) -> None:
        super().__init__(taking_part.__file__, str(folder), str(workers), *arguments)
        #: The state after each round of two members.
        self.digests: dict[int, str] = {}

    def wait_for_rounds(self, count: int, members: int) -> None:
        """Waits for more rounds of this many members."""
        while count > 0:
            round_, digest, present = self.wait_for("round")
            if present == "2":
                self.digests[int(round_)] = digest
            count -= int(present) == members

    def leave(self) -> float:
        """Has it leave, and notes its last rounds; the loss of its model."""
        self.process.send_signal(signal.SIGINT)
        while (words := self._lines.get())[0] != "loss":
            if words[0] == "round" and words[3] == "2":
                self.digests[int(words[1])] = words[2]
        return float(words[1])


class Points(torch.utils.data.IterableDataset[Any]):
    """A stream of 500 points that tell their numbers."""

    def __iter__(self) -> Any:
        return ((torch.tensor([float(number), 0.5]), torch.tensor(number % 2)) for number in range(500))


class Cuts(unittest.TestCase):
    def test_batches_are_even_and_one_sample_is_doubled_where_it_may_not_be_alone(self) -> None:
        for size, doubles, count, expected in (
            (8, False, 9, [(4, [0, 1, 2, 3]), (5, [4, 5, 6, 7, 8])]),
            (None, True, 3, [(3, [0, 1, 2])]),
            (2, True, 3, [(1, [0, 0]), (2, [1, 2])]),
            (2, False, 1, [(1, [0])]),
        ):
            self.assertEqual(feeding.Cut(size, doubles).batches(list(range(count))), expected)


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

    def taking_part(self, name: str = "pytorch", *arguments: str, workers: int = 2) -> TakingPart:
        member = TakingPart(self.folder / name, *arguments, workers=workers)
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
        model, data = taking_part.classifier(norm=True), taking_part.data()
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
        own = taking_part.classifier(norm=True)
        run = self.member(own, names, ticket=ours.ticket)
        shares = []
        for batch in run.loader(4, workers=2):
            shares.append(len(batch["labels"]))
            run.backward(nn.functional.cross_entropy(own(batch["x"]), batch["labels"]))
        self.assertTrue(run.is_over)
        self.assertIn(max(shares, default=0), range(1, 5))
        ours.load_into(model)
        self.assertFalse(torch.equal(own[1].running_mean, torch.zeros(32)))
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                self.assertTrue(torch.equal(tensor, own.state_dict()[name]), name)
        self.audit(self.folder / "pytorch")

    def test_running_statistics_move_as_those_of_an_export_do(self) -> None:
        start, data = taking_part.classifier(0.0, norm=True), taking_part.data()
        # One step on all samples at once.
        settings = {"batch": 512, "rounds": 1, "held_out": 0, "lr": 0.1, "optimizer": "sgd"}
        theirs, ours = copy.deepcopy(start), copy.deepcopy(start)
        run = self.member(theirs, data, loss="cross_entropy", checked=False, **settings)
        self.train(theirs, run)
        other = {"to": self.folder / "model", "out": self.folder / "ours", "device": "cpu"}
        annulus.train(ours, data, loss="cross_entropy", checked=False, **other, **LOCAL, **settings).load_into(ours)
        plain = copy.deepcopy(start)
        plain(data[0])
        for name in ("running_mean", "running_var"):
            of_theirs, of_ours, of_plain = (getattr(model[1], name) for model in (theirs, ours, plain))
            self.assertFalse(torch.allclose(of_plain, getattr(start[1], name), rtol=0.01))
            torch.testing.assert_close(of_theirs, of_ours, rtol=2e-6, atol=2e-6)
            torch.testing.assert_close(of_theirs, of_plain, rtol=2e-6, atol=2e-6)
        torch.testing.assert_close(theirs[0].weight, ours[0].weight, rtol=1e-4, atol=1e-5)

    def test_each_batch_moves_running_statistics_from_the_shared_ones(self) -> None:
        start, data = taking_part.classifier(0.0, norm=True), taking_part.data()
        theirs = copy.deepcopy(start)
        run = self.member(theirs, data, loss="cross_entropy", checked=False, batch=512, rounds=1, held_out=0)
        means = []
        for inputs, targets in run.loader(200):
            self.assertTrue(torch.equal(theirs[1].running_mean, start[1].running_mean))
            means += [start[0](inputs).mean(0)] * len(inputs)
            run.backward(nn.functional.cross_entropy(theirs(inputs), targets))
        # PyTorch's momentum is 0.1. What tries the device out comes first.
        expected = 0.1 * torch.stack(means[-512:]).mean(0)
        torch.testing.assert_close(theirs[1].running_mean, expected, rtol=1e-5, atol=1e-6)

    def test_a_model_that_cannot_be_exported_is_trained_and_survives_a_kill(self) -> None:
        first = self.taking_part("first", "kind=unexported", workers=0)
        (ticket,) = first.wait_for("ticket")
        second = self.taking_part("second", "kind=unexported", ticket, workers=0)
        first.wait_for_rounds(ROUNDS, members=2)
        first.end()
        second.wait_for_rounds(5, members=1)
        again = self.taking_part("first", "kind=unexported", workers=0)
        again.wait_for_rounds(ROUNDS, members=2)
        for member in (again, second):
            self.assertTrue(math.isfinite(member.leave()))
        theirs = first.digests | again.digests
        common = theirs.keys() & second.digests.keys()
        self.assertGreater(len(common), ROUNDS)
        self.assertEqual(*({round_: of[round_] for round_ in common} for of in (theirs, second.digests)))
        file, model = self.folder / "model.safetensors", taking_part.Unexported()
        for name in ("first/run", "second/run"):
            self.audit(self.folder / name)
            program.call(["export", self.folder / name, file])
            loading.load(file, model.eval())
            points, classes = taking_part.data()
            self.assertLess(nn.functional.cross_entropy(model(points), classes).item(), 0.65)

    def test_an_interrupt_leaves_no_difference_in_a_buffer(self) -> None:
        mean, place = torch.ones(3), torch.zeros(3)
        following = membership._Following([(mean, place, 0.1)])
        mean.mul_(2)
        with mock.patch("torch._foreach_mul_", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
            following.add(4)
        self.assertEqual(mean.tolist(), [2, 2, 2])
        following.add(4)
        self.assertEqual((mean.tolist(), following.sums()[0][1].tolist()), ([1, 1, 1], [40, 40, 40]))

    def test_a_run_without_an_export_is_no_run_for_the_program_alone(self) -> None:
        told = io.StringIO()
        model = taking_part.Unexported()
        with contextlib.redirect_stderr(told):
            run = self.member(model, taking_part.data(), loss="cross_entropy", rounds=40, batch=64)
        self.assertRegex(
            told.getvalue(), "without an export, so all members need PyTorch.* says: .*aten.lerp.*\n.*annulus.member"
        )
        how = re.escape("annulus.member(model, dataset, ticket=...)")
        with self.assertRaisesRegex(annulus.ProgramError, how):
            annulus.join(run.ticket, out=self.folder / "joined", wait=False, **LOCAL)
        with self.assertRaisesRegex(annulus.ProgramError, how):
            program.call(["train", "--task", "pytorch", "--data", self.folder / "model", "--out", self.folder / "alone"])
        self.train(model, run)
        again = run.load_into(taking_part.Unexported())
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                self.assertTrue(torch.equal(tensor, again.state_dict()[name]), name)
        self.assertFalse(torch.equal(again.mean, torch.zeros(32)))
        for command, why in (
            (["export", run.folder, self.folder / "model.onnx"], "no ONNX file"),
            (["sample", run.folder], "writes nothing"),
            (["predict", run.folder, "rows.csv"], "predicts nothing"),
            (["replay", run.folder], how),
        ):
            with self.assertRaisesRegex(annulus.ProgramError, why):
                program.call(command)
        self.audit(run.folder)

    def test_founding_without_an_export_is_refused_where_no_run_can_train(self) -> None:
        class Pairs(nn.Linear):
            def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
                return nn.functional.cross_entropy(super().forward(one) @ super().forward(other).T, torch.arange(len(one)))

        data = torch.randn(16, 2), torch.randn(16, 2)
        with self.assertRaisesRegex(
            annulus.ExportError, "must be a mean over the samples, each of which has a loss of its own"
        ):
            self.member(Pairs(2, 4), data)
        norm = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4, momentum=None))
        with self.assertRaisesRegex(annulus.ExportError, "1 has momentum=None"):
            self.member(norm, taking_part.data(), loss="cross_entropy")
        with self.assertRaisesRegex(annulus.ExportError, "aten.lerp"):
            self.member(taking_part.Unexported(), taking_part.data(), loss="cross_entropy", export=True)
        with self.assertRaisesRegex(annulus.AnnulusError, "leave held_out out"):
            self.member(taking_part.classifier(), taking_part.data(), loss="cross_entropy", export=False, held_out=0.1)
        # The exporter tells more of a mistake.
        with self.assertRaisesRegex(annulus.ExportError, "the model fails on these samples in 0"):
            self.member(taking_part.classifier(), (torch.randn(8, 3), torch.zeros(8).long()), loss="cross_entropy")

    def test_a_stream_gives_its_next_samples(self) -> None:
        with self.assertRaisesRegex(annulus.AnnulusError, "Pass samples="):
            self.member(taking_part.classifier(), Points(), loss="cross_entropy")
        with self.assertRaisesRegex(annulus.AnnulusError, "leave it out"):
            self.member(taking_part.classifier(), taking_part.data(), loss="cross_entropy", samples=512)
        model = taking_part.classifier()
        run = self.member(model, Points(), loss="cross_entropy", samples=320, rounds=30, batch=32)
        seen: list[int] = []
        for inputs, targets in run.loader(12):
            self.assertLessEqual(len(inputs), 12)
            if not run._is_trial:
                seen += inputs[:, 0].tolist()
            run.backward(nn.functional.cross_entropy(model(inputs), targets))
        # In its own order, those that tried the device out among them, and from the beginning after its end.
        self.assertEqual(seen, [number % 500 for number in range(960)])
        self.audit(run.folder)

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
        with self.assertRaisesRegex(annulus.ExportError, "samples by number, or to be an IterableDataset"):
            self.member(taking_part.classifier(), iter(()))
        _, run = self.found(rounds=100_000, batch=8)
        points, classes = taking_part.data()
        with self.assertRaisesRegex(annulus.ProgramError, "has 100 samples, and the run trains on 512"):
            short = points[:100], classes[:100]
            self.member(taking_part.classifier(), short, ticket=run.ticket, out=self.folder / "short")


if __name__ == "__main__":
    unittest.main()
