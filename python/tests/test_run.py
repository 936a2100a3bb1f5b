"""A peer as a child process, with a stock task: start, events, progress, leaving, joining."""

from __future__ import annotations

import unittest

from running import WithProgram

import annulus
from annulus.run import Run

#: Everything stays on this machine, and one thread computes.
LOCAL = ["--device", "cpu", "--listen", "127.0.0.1:0", "--no-announce", "--no-port-mapping"]


class Peer(WithProgram):
    command, word = "train", "--log-tickets"

    def start(self, *settings: str) -> Run:
        command = ["train", "--log-format", "json", "--log-tickets", *LOCAL, "--out", str(self.folder / "run")]
        run = Run([*command, "--task", "digits", "train=512", "test=64", *settings])
        self.addCleanup(run.stop)
        return run

    def test_a_run_is_followed_to_its_end(self) -> None:
        run = self.start("rounds=20", "batch=32")
        self.assertTrue(run.ticket.startswith("annulus"))
        self.assertEqual(run.folder.resolve(), (self.folder / "run").resolve())
        rounds = [event["round"] for event in run.events() if event["event"] == "round"]
        self.assertEqual(rounds, sorted(rounds))
        self.assertTrue(run.watch().is_over)
        done = run.latest("done")
        assert done is not None
        self.assertTrue(done["finished"])
        self.assertIn("finished, after round 20", repr(run))
        history = run.history()
        rows = history if isinstance(history, list) else history.to_dict("records")
        self.assertEqual([row["round"] for row in rows], list(range(1, 21)))
        self.assertTrue(all(row["loss"] > 0 and row["samples"] == 32 for row in rows))
        self.assertIn("<polyline", run._repr_html_())
        self.assertIn("finished, after round 20", run._repr_html_())

    def test_leaving_saves_and_is_no_failure(self) -> None:
        with self.start("rounds=1000000", "batch=32") as run:
            for event in run.events():
                if event["event"] == "round":
                    break
        self.assertTrue(run.is_over)
        self.assertTrue(any(run.folder.iterdir()))
        self.assertIn("left, after round", repr(run.watch()))
        run.stop()

    def test_a_run_goes_on_from_its_folder_and_a_loop_over_events_may_end_it(self) -> None:
        def train_on(run: Run) -> int:
            for event in run.events():
                if event["event"] == "eval" and event["round"] >= 5 + first:
                    break
            run.stop()
            return (run.latest("done") or {})["round"]

        first = 0
        first = train_on(self.start("rounds=1000000", "batch=32", "eval_every=5"))
        again = annulus.resume(self.folder / "run", options=LOCAL[4:], eval_every=5)
        self.addCleanup(again.stop)
        self.assertTrue(again.ticket)
        self.assertGreater(train_on(again), first)
        with self.assertRaisesRegex(annulus.ProgramError, "no_run"):
            annulus.resume(self.folder / "no_run", options=LOCAL[4:])

    def test_another_peer_joins_by_the_ticket(self) -> None:
        run = self.start("rounds=1000000", "batch=32", "stand_aside=off")
        members = (len(event["members"]) for event in run.events() if event["event"] == "round")
        other = annulus.join(
            run.ticket, device="cpu", listen="127.0.0.1:0", out=self.folder / "other", wait=False, options=LOCAL[4:]
        )
        with other:
            self.assertEqual(next(count for count in members if count == 2), 2)
        run.stop()

    def test_a_setting_that_does_not_exist_is_an_error_with_the_programs_words(self) -> None:
        with self.assertRaisesRegex(annulus.ProgramError, "no_such_setting"):
            self.start("no_such_setting=1")

    def test_a_ticket_that_is_none(self) -> None:
        with self.assertRaises(annulus.ProgramError):
            annulus.join("annulus2nonsense", options=LOCAL[4:], out=self.folder / "other")


if __name__ == "__main__":
    unittest.main()
