"""`annulus.fit` and `annulus.load`: from a table to a model that predicts one of its columns.

The program reads, divides, trains and predicts; this module hands it tables and brings the answers back. It needs no torch,
and pandas for data frames only.
"""

from __future__ import annotations

import functools
import io
import json
import os
import shutil
import struct
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from . import program
from .errors import AnnulusError
from .run import Run, setting, tell_how_to_join

if TYPE_CHECKING:
    import pandas

    Rows: TypeAlias = pandas.DataFrame | str | os.PathLike[str]

#: The model's file in the folder of a finished run.
MODEL = "model.safetensors"

#: Longest header of a safetensors file that is read.
HEADER_LIMIT = 100 << 20

#: A run that nobody else takes part in.
ALONE = ("--no-announce", "--no-port-mapping", "--no-page")


def fit(
    rows: Rows,
    target: str,
    *,
    device: str = "auto",
    listen: str | int | None = None,
    out: str | os.PathLike[str] | None = None,
    options: Sequence[str] = (),
    **settings: object,
) -> Predictor:
    """Trains a model that predicts a column of a table from the others, and waits for it.

    ```python
    model = annulus.fit(houses, target="price")
    print(model.scores)                              # on rows that training never saw
    model.predict(new_houses)                        # with a column price_predicted
    model.save("houses.safetensors")
    ```

    Args:
        rows: a pandas data frame, or the path of a CSV, TSV or Parquet file. A data frame's index is left out.
        target: the column to predict.
        device: `auto`, `cpu`, `gpu` or `gpu:N`.
        listen: the port, or `HOST:PORT`, by which other machines join; the ticket is printed. Without it, this machine
            trains alone.
        out: the run's folder, to keep it, and a data frame in it as data.tsv. Without it, only the model is kept.
        options: further options of `annulus train`.
        settings: settings of the run, such as `rounds=3000`, `time="10m"`, `columns={"zip": "category"}` or `bad_rows="skip"`.

    Raises:
        ProgramError: the table cannot be used. The message lists all rows that are wrong; line 2 is the first row.
        AnnulusError: the training was stopped before its end.
    """
    scratch = Path(tempfile.mkdtemp(prefix="annulus-"))
    clear = functools.partial(shutil.rmtree, scratch, ignore_errors=True)
    try:
        folder = scratch / "run" if out is None else Path(out)
        # Where a table lies that goes with this model is nothing to remember; one in a folder of the user's is kept there.
        remember = {} if out is not None or not _is_frame(rows) else {program.CACHE: os.fspath(scratch / "cache")}
        alone = listen is None
        where, options = ("127.0.0.1:0", [*ALONE, *options]) if listen is None else (listen, options)
        command = program.peer_command("train", device=device, listen=where, out=folder, options=options)
        data = os.fspath(_as_file(rows, scratch if out is None else folder))
        run = Run([*command, "--data", data, setting("target", target), *_settings(settings)], variables=remember)
        if not alone:
            tell_how_to_join(run)
        run.watch()
        done = run.latest("done") or {}
        if not done.get("finished"):
            raise AnnulusError(f"the training was stopped after round {done.get('round', 0)}, so there is no model yet")
        model = Predictor(folder / MODEL)
    except BaseException:
        clear()
        raise
    weakref.finalize(model, clear)
    return model


def load(file: str | os.PathLike[str]) -> Predictor:
    """Opens a model that `Predictor.save` or `annulus train` on a table wrote, or the folder of a finished run.

    Raises:
        AnnulusError: the file is no such model.
    """
    path = Path(file)
    return Predictor(path / MODEL if path.is_dir() else path)


class Predictor:
    """A model that predicts a column of a table."""

    def __init__(self, file: Path) -> None:
        self._file = file
        metadata = _metadata(file)
        try:
            (target,) = json.loads(metadata["schema"])["target"].values()
            #: The column that it predicts.
            self.target: str = target["name"]
            #: The classes, as the table has them; empty if it predicts a number.
            self.classes: list[Any] = _natural(target.get("classes", []))
            self._judged: dict[str, Any] = json.loads(metadata["test"])
            self._importance: list[dict[str, Any]] = json.loads(metadata.get("importance", "[]"))
        except (KeyError, TypeError, ValueError) as error:
            raise AnnulusError(f"{file} is not a model of a table: make one with annulus.fit") from error

    @property
    def scores(self) -> dict[str, float | None]:
        """How good it is on the test rows, by the metric's name: `accuracy`, `auc` and others of classes, `rmse`, `mae` and
        `r2` of numbers. None where these rows do not define the metric."""
        return {metric["name"]: metric["value"] for metric in self._judged["metrics"]}

    @property
    def baselines(self) -> dict[str, dict[str, float | None]]:
        """The same scores of two simpler models: one that always gives the same answer, and a linear one."""
        return {name: {metric["name"]: metric["value"] for metric in self._judged[name]} for name in ("constant", "linear")}

    def predict(self, rows: Rows) -> pandas.DataFrame:
        """The rows with the prediction behind each, in the column `TARGET_predicted`. For classes also a probability for each,
        in `TARGET_CLASS`.

        Args:
            rows: a data frame, or the path of a CSV, TSV or Parquet file. Columns may be in any order, and there may be more.

        Raises:
            ProgramError: a column is missing, or a cell cannot be read. The message lists all; line 2 is the first row.
        """
        pandas = _pandas()
        with tempfile.TemporaryDirectory() as scratch:
            data = _as_file(rows, Path(scratch))
            answers = program.call(["predict", self._file, data], warn=True)
        separator = "\t" if data.suffix.lower() == ".tsv" else max(",;\t|", key=answers.partition("\n")[0].count)
        read = functools.partial(pandas.read_csv, sep=separator)
        told = read(io.StringIO(answers), dtype=str, keep_default_na=False)
        own = told.shape[1] - 1 - len(self.classes)
        made = rows.copy() if isinstance(rows, pandas.DataFrame) else read(io.StringIO(answers), usecols=range(own))
        by_cell = {str(one): one for one in self.classes}
        for name in told.columns[own:]:
            cells = told[name]
            is_class = self.classes and name == told.columns[own]
            made[name] = [by_cell[cell] for cell in cells] if is_class else cells.astype(float).to_numpy()
        return made

    def predict_proba(self, rows: Rows) -> pandas.DataFrame:
        """The probability of each class, a column for each, in the order of `classes`.

        Raises:
            AnnulusError: the model predicts a number.
            ProgramError: as `predict`.
        """
        if not self.classes:
            raise AnnulusError(f"{self.target} is a number, which has no probability: use predict")
        made = self.predict(rows).iloc[:, -len(self.classes) :]
        made.columns = self.classes
        return made

    def evaluate(self, rows: Rows) -> dict[str, float | None]:
        """How good the model is on rows that also have the target, by the metric's name, as `scores`.

        Args:
            rows: as for `predict`, with the column that is predicted.

        Raises:
            ProgramError: a column is missing, or a cell cannot be read. The message lists all; line 2 is the first row.
        """
        with tempfile.TemporaryDirectory() as scratch:
            data = _as_file(rows, Path(scratch))
            scores: dict[str, float | None] = json.loads(
                program.call(["predict", self._file, data, "--score", "--json"], warn=True)
            )
        return scores

    @property
    def importance(self) -> dict[str, float]:
        """How much each column matters, the most important first: what the loss on the validation rows grows by when the
        column's cells are exchanged between rows. 1 is twice the loss."""
        return {one["column"]: one["share"] for one in self._importance}

    def save(self, file: str | os.PathLike[str]) -> None:
        """Writes the model as one file, which `annulus.load`, `annulus predict` and `annulus serve` take on any machine."""
        shutil.copyfile(self._file, file)

    def __repr__(self) -> str:
        scores = ", ".join(f"{name} {value:.4g}" for name, value in self.scores.items() if value is not None)
        return f"<annulus.Predictor of {self.target}: {scores}>"


def _as_file(rows: Rows, folder: Path) -> Path:
    """A table as a file that the program reads."""
    if isinstance(rows, (str, os.PathLike)):
        return Path(rows)
    pandas = _pandas()
    if not isinstance(rows, pandas.DataFrame):
        raise AnnulusError(f"give a pandas data frame or the path of a CSV file, not {type(rows).__name__}")
    # Tabs are told by the file's ending, so no name or cell can be taken for another separator.
    file = folder / "data.tsv"
    folder.mkdir(parents=True, exist_ok=True)
    rows.to_csv(file, sep="\t", index=False)
    return file


def _is_frame(rows: Rows) -> bool:
    return not isinstance(rows, (str, os.PathLike))


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise AnnulusError("data frames need pandas: pip install pandas, or use the command annulus predict") from error
    return pandas


def _settings(settings: dict[str, object]) -> list[str]:
    """Settings as the program reads them; a mapping sets one entry after the other."""
    pairs = []
    for name, value in settings.items():
        if isinstance(value, dict):
            pairs += _settings({f"{name}.{entry}": inner for entry, inner in value.items()})
        else:
            pairs.append(setting(name, json.dumps(list(value)) if isinstance(value, (list, tuple)) else value))
    return pairs


def _metadata(file: Path) -> dict[str, str]:
    """The texts in the header of a safetensors file."""
    try:
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            header = json.loads(opened.read(min(length, HEADER_LIMIT)))
        metadata: dict[str, str] = header.get("__metadata__", {})
        return metadata
    except OSError as error:
        raise AnnulusError(f"cannot read {file}: {error.strerror}") from error
    except (struct.error, ValueError, AttributeError) as error:
        raise AnnulusError(f"{file} is no safetensors file") from error


def _natural(classes: Sequence[str]) -> list[Any]:
    """Classes as pandas has them: numbers or booleans if all of their texts are such."""
    for read in (int, float, {"True": True, "False": False}.__getitem__):
        try:
            values = [read(text) for text in classes]
        except (KeyError, ValueError):
            continue
        if [str(value) for value in values] == list(classes):
            return values
    return list(classes)
