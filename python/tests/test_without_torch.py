"""What needs neither torch nor NumPy: importing the package, finding the program, reading its log."""

from __future__ import annotations

import os
import pydoc
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

import annulus
from annulus import program
from annulus.run import KEPT_ROUNDS, curve, parse_event, progress, remember

ROOT = Path(__file__).parents[2]


class Package(unittest.TestCase):
    def test_importing_and_joining_need_the_standard_library_only(self) -> None:
        # -S hides all that is installed.
        code = "import annulus, sys; annulus.join; print([m for m in ('torch', 'numpy') if m in sys.modules])"
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
        done = subprocess.run([sys.executable, "-S", "-c", code], env=environment, capture_output=True, text=True)
        self.assertEqual(done.stdout.strip(), "[]", done.stderr)

    def test_the_version_is_the_programs(self) -> None:
        stated = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
        assert stated is not None
        self.assertEqual(annulus.__version__, stated[1])

    def test_all_names_exist_or_name_the_library_that_they_need(self) -> None:
        for name in annulus.__all__:
            try:
                getattr(annulus, name)
            except ImportError as error:
                self.assertIn(error.name, ("torch", "numpy", "safetensors", "pandas"))
        with self.assertRaises(AttributeError):
            annulus.no_such_name  # noqa: B018

    def test_dir_and_help_have_all_names_that_can_be_used(self) -> None:
        listed = set(dir(annulus))
        self.assertLessEqual({"join", "fit", "load", "Run"}, listed)
        for name in annulus.__all__:
            try:
                getattr(annulus, name)
            except ImportError:
                self.assertNotIn(name, listed)
            else:
                self.assertIn(name, listed)
        told = pydoc.plain(pydoc.render_doc(annulus))
        for name in listed & {"train", "member", "export", "check", "join", "AnnulusClassifier"}:
            self.assertRegex(told, rf"(?m)^\s+(class )?{name}\b")


class Program(unittest.TestCase):
    def setUp(self) -> None:
        before = dict(os.environ)
        self.addCleanup(lambda: (os.environ.clear(), os.environ.update(before)))

    def test_a_missing_program_is_an_error_that_says_what_to_do(self) -> None:
        with tempfile.TemporaryDirectory() as empty:
            os.environ.pop(program.VARIABLE, None)
            os.environ["PATH"] = empty
            with self.assertRaisesRegex(annulus.ProgramError, "install the wheel"):
                program.find([empty])

    def test_the_program_of_this_package_comes_before_others(self) -> None:
        with tempfile.TemporaryDirectory() as own, tempfile.TemporaryDirectory() as other:
            for folder in (own, other):
                Path(folder, "annulus").touch(mode=0o755)
            os.environ.pop(program.VARIABLE, None)
            os.environ["PATH"] = other
            self.assertEqual(program.find([own]), str(Path(own, "annulus")))
            self.assertEqual(program.find([]), str(Path(other, "annulus")))

    def test_a_program_that_cannot_run_or_fails_is_an_error_with_its_words(self) -> None:
        os.environ[program.VARIABLE] = "/nowhere/annulus"
        for start in (lambda: program.call(["doctor"]), lambda: annulus.join("annulus2x")):
            with self.assertRaisesRegex(annulus.ProgramError, "cannot run /nowhere/annulus"):
                start()
        # This one ends before it is ready.
        os.environ[program.VARIABLE] = sys.executable
        for start in (lambda: program.call(["no-such-file.py"]), lambda: annulus.join("annulus2x")):
            with self.assertRaisesRegex(annulus.ProgramError, "can't open file"):
                start()


class History(unittest.TestCase):
    def rows(self, count: int) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for number in range(1, count + 1):
            remember(rows, {"event": "round", "round": number, "loss": 1 / number, "samples": 8, "members": [{}]})
        return rows

    def test_rounds_have_the_scores_of_their_evaluations(self) -> None:
        rows = self.rows(3)
        remember(rows, {"event": "eval", "round": 2, "loss": 0.25, "metrics": {"accuracy": 0.5}})
        remember(rows, {"event": "ready"})
        self.assertEqual([row.get("accuracy") for row in rows], [None, 0.5, None])
        self.assertEqual((rows[1]["loss"], rows[1]["held_out_loss"], rows[1]["members"]), (0.5, 0.25, 1))

    def test_a_long_run_is_thinned_out(self) -> None:
        rows = self.rows(KEPT_ROUNDS + 10)
        self.assertLess(len(rows), KEPT_ROUNDS)
        self.assertEqual((rows[0]["round"], rows[-1]["round"]), (1, KEPT_ROUNDS + 10))

    def test_the_curve_goes_from_corner_to_corner_and_is_empty_at_first(self) -> None:
        self.assertEqual(curve(self.rows(1)), "")
        drawn = curve([{**row, "held_out_loss": float("nan")} for row in self.rows(4)])
        self.assertIn('points="4.0,4.0 ', drawn)
        self.assertIn("476.0,116.0", drawn)
        self.assertNotIn("nan", drawn)


class Log(unittest.TestCase):
    def test_lines_that_are_no_events_are_skipped(self) -> None:
        self.assertEqual(parse_event('{"time": "x", "event": "ready"}\n'), {"time": "x", "event": "ready"})
        for line in ("", "{", "3", "[]", '{"event": 4}', '{"time": "x"}'):
            self.assertIsNone(parse_event(line), line)

    def test_progress_tells_what_is_known(self) -> None:
        self.assertEqual(progress({}), "")
        ready = {"event": "ready", "target": 2000}
        row = {"round": 7, "counted": 500, "loss": 1.25, "members": [{}, {}], "seconds": 0.5, "samples": 64}
        self.assertEqual(progress({"ready": ready, "round": row}), "round 7, 25 %, loss 1.2500, 2 members, 128 samples/s")
        self.assertEqual(progress({"round": {**row, "loss": None, "members": [{}], "seconds": 0}}), "round 7, 1 member")
        done = {"round": 9, "finished": True, "loss": 0.5, "held_out": False, "metrics": {}}
        self.assertEqual(progress({"round": row, "done": done}), "finished, after round 9, loss 0.5")
        judged = {**done, "held_out": True, "metrics": {"accuracy": 0.75}}
        self.assertEqual(progress({"done": judged}), "finished, after round 9, held-out loss 0.5, accuracy 0.75")
        self.assertEqual(progress({"done": {**done, "finished": False, "loss": None}}), "left, after round 9")


if __name__ == "__main__":
    unittest.main()
