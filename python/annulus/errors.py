"""What can go wrong, one class per step."""

from __future__ import annotations


class AnnulusError(Exception):
    """Any error of this package."""


class ExportError(AnnulusError):
    """The model or the samples cannot be written as a folder that Annulus trains."""


class CheckError(AnnulusError):
    """Annulus computes another loss or gradient than PyTorch."""


class ProgramError(AnnulusError):
    """The program `annulus` is missing, or it failed; the text holds what it said."""
