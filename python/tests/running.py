"""Tests with the real program, and with scripts that take part in a run as processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

import annulus
from annulus import program

#: The environment of a process that has this package.
OURS = {**os.environ, "PYTHONPATH": str(Path(annulus.__file__).parents[1])}


class WithProgram(unittest.TestCase):
    """Tests in a folder of their own, skipped without a program that has members by PyTorch."""

    def setUp(self) -> None:
        try:
            told = program.call(["join", "--help"])
        except annulus.ProgramError as error:
            self.skipTest(f"members need the program: {error}")
        if "--external" not in told:
            self.skipTest("members need a program of this version")
        scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)


class WithScripts(WithProgram):
    """Tests of a script, `script`, that is called with a folder and perhaps a ticket."""

    script: str

    def start(self, name: str, *ticket: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, self.script, str(self.folder / name), *ticket],
            stdout=subprocess.PIPE,
            text=True,
            env=OURS,
        )
        assert process.stdout is not None
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def read(self, process: subprocess.Popen[str], first: str) -> list[str]:
        """The words of the line that begins with this word."""
        assert process.stdout is not None
        words = next((line.split() for line in process.stdout if line.startswith(first)), None)
        assert words is not None, f"it ended without {first}"
        return words[1:]

    def audit(self, name: str) -> dict[str, Any]:
        report = json.loads(program.call(["inspect", self.folder / name / "run", "--json"]).splitlines()[-1])
        self.assertTrue(report["audit"]["sound"], report)
        return report
