"""Tests with the real program, and with scripts that take part in a run as processes of their own."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path
from typing import Any

import annulus
from annulus import program

#: The environment of a process that has this package.
OURS = {**os.environ, "PYTHONPATH": str(Path(annulus.__file__).parents[1])}

#: Everything stays on this machine.
LOCAL: dict[str, Any] = {"listen": "127.0.0.1:0", "options": ["--no-announce", "--no-port-mapping", "--no-page"]}

#: Contributions of a trainer before it leaves.
PART = 6

#: Seconds after which a test hangs. At the lowest priority on two cores with a load of 9, the slowest takes 132.
HANGS_SECONDS = 600


class WithProgram(unittest.TestCase):
    """Tests in a folder of their own, skipped without a program whose `command --help` has this word."""

    command, word = "join", "--external"

    def setUp(self) -> None:
        try:
            told = program.call([self.command, "--help"])
        except annulus.ProgramError as error:
            self.skipTest(f"this needs the program: {error}")
        if self.word not in told:
            self.skipTest(f"this needs a program that has {self.word}")
        if hasattr(signal, "SIGALRM"):
            # Tests wait for events without a limit of their own. This signal ends any wait that hangs.
            self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, self._fail))
            self.addCleanup(signal.alarm, 0)
            signal.alarm(HANGS_SECONDS)
        scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)

    def _fail(self, *_: object) -> None:
        self.fail(f"it hangs: it has not ended within {HANGS_SECONDS} s")

    def audit(self, folder: Path) -> dict[str, Any]:
        """What a run's folder tells, once that counts each sample once."""
        report = json.loads(program.call(["inspect", folder, "--json"]).splitlines()[-1])
        self.assertTrue(report["audit"]["sound"], report)
        return report


class Script:
    """A script of these tests in a process of its own, and the lines that it prints."""

    def __init__(self, script: str, *arguments: str) -> None:
        self.process = subprocess.Popen([sys.executable, script, *arguments], stdout=subprocess.PIPE, text=True, env=OURS)
        self._lines: queue.Queue[list[str]] = queue.Queue()
        # A script must not wait until a test reads what it prints.
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._lines.put(line.split() or [""])
        self._lines.put([])

    def wait_for(self, first: str) -> list[str]:
        """The other words of the next line that begins with this word."""
        while words := self._lines.get():
            if words[0] == first:
                return words[1:]
        raise AssertionError(f"the script ended without {first}")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class WithMembers(WithProgram):
    """Tests of trainers that take part in runs."""

    def script(self, script: str, *arguments: str) -> Script:
        started = Script(script, *arguments)
        self.addCleanup(started.end)
        return started

    def found_ours(self, model: Any, data: Any, **options: Any) -> annulus.Run:
        """A run without an end, whose founder computes with the program's own kernels and waits for a trainer.

        Members get samples by their speed. With so many in a round, a trainer that is fifty times slower still gets some.
        """
        settings = {"batch": 100, "rounds": 1_000_000, "min_peers": 2, **options}
        run = annulus.train(
            model, data, device="cpu", checked=False, to=self.folder / "exported", out=self.folder / "ours", **LOCAL, **settings
        )
        self.addCleanup(run.stop)
        return run

    def assert_did_its_part(self, run: annulus.Member | None, ours: annulus.Run) -> None:
        """Whether a trainer that has left contributed to a run, which has not ended, and got the state that its founder has."""
        assert run is not None
        self.assertTrue(run.is_over)
        self.assertFalse(ours.is_over)
        self.assertGreaterEqual(run.contributions, PART)
        ours.stop()
        name = (run.latest("ready") or {})["peer"]
        own, theirs = ({row["round"]: row for row in self.audit(of.folder)["table"]} for of in (run, ours))
        rounds = [
            round_
            for round_, row in own.items()
            if round_ in theirs and any(part["peer"] == name and part["weight"] for part in row["contributors"])
        ]
        self.assertTrue(rounds)
        self.assertEqual(*([of[round_]["digest"] for round_ in rounds] for of in (own, theirs)))
