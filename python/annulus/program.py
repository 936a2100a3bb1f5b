"""Finds and runs the program `annulus`, which the wheel brings along."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import warnings
from collections.abc import Sequence
from pathlib import Path

from .errors import ProgramError

#: Names a program to use in place of the wheel's.
VARIABLE = "ANNULUS_PROGRAM"

#: Names the program's folder for fetched data, and for notes of where data lies.
CACHE = "ANNULUS_CACHE"


def find(folders: Sequence[str] | None = None) -> str:
    """The program's path: what the variable names, else the one installed with this package, else the one on the PATH.

    `folders`: where this package's programs are installed, if not where Python says.
    """
    named = os.environ.get(VARIABLE)
    if named:
        return named
    if folders is None:
        schemes = (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user"))
        folders = [sysconfig.get_path("scripts", scheme) for scheme in schemes]
    program = shutil.which("annulus", path=os.pathsep.join(folders)) or shutil.which("annulus")
    if program is None:
        raise ProgramError(f"the program annulus is not installed: install the wheel, or set {VARIABLE} to its path")
    return program


def call(arguments: Sequence[str | os.PathLike[str]], *, warn: bool = False) -> str:
    """Runs the program to its end; what it prints.

    `warn`: whether its warnings become Python's.

    Raises:
        ProgramError: it failed. The text is what it said.
    """
    command = [find(), *(os.fspath(argument) for argument in arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    except OSError as error:
        raise ProgramError(f"cannot run {command[0]}: {error}") from error
    if done.returncode != 0:
        raise ProgramError(done.stderr.strip() or f"annulus {arguments[0]} ended with code {done.returncode}")
    for line in done.stderr.splitlines() if warn else ():
        if line.startswith("warning: "):
            warnings.warn(line.removeprefix("warning: "), stacklevel=3)
    return done.stdout


def peer_command(
    verb: str, *, device: str | None, listen: str | int, out: str | Path | None, options: Sequence[str]
) -> list[str]:
    """The beginning of a command for a peer that this package watches."""
    command = [verb, "--log-format", "json", "--log-tickets", "--listen", str(listen)]
    if device is not None:
        command += ["--device", device]
    if out is not None:
        command += ["--out", os.fspath(out)]
    return [*command, *options]
