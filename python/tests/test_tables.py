"""`annulus.fit` and `annulus.load`: from a table to predictions, by the program."""

from __future__ import annotations

import os
import random
import re
import tempfile
import unittest
import unittest.mock
import warnings
from pathlib import Path
from typing import Any

from running import WithProgram

import annulus
from annulus import program, tables

try:
    import pandas
except ImportError:
    pandas = None

DOCS = Path(__file__).parents[2] / "docs/tables.md"


def flowers(rows: int = 240) -> Any:
    """Three kinds of flowers, told apart by two of three numbers; and a tab and quotes, which files must survive."""
    draw = random.Random(5)
    kinds = ["lily", 'red "rose"', "tall\ttulip"]
    made = []
    for at in range(rows):
        kind = at % 3
        made.append(
            {
                "petal": kind + draw.gauss(0, 0.2),
                "stem": 10 - 2 * kind + draw.gauss(0, 0.5),
                "soil": draw.choice(["wet", "dry; stony"]),
                "kind": kinds[kind],
            }
        )
    return pandas.DataFrame(made, index=range(1000, 1000 + rows))


class Tables(WithProgram):
    command, word = "predict", "FILE"

    def setUp(self) -> None:
        if pandas is None:
            self.skipTest("data frames need pandas")
        super().setUp()

    def test_classes_are_predicted_behind_the_rows(self) -> None:
        rows = flowers()
        model = annulus.fit(rows, target="kind", device="cpu", rounds=150)
        self.assertEqual(model.target, "kind")
        self.assertEqual(set(model.classes), set(rows["kind"]))
        self.assertGreater(model.scores["accuracy"] or 0, 0.9)
        self.assertLess(model.baselines["constant"]["accuracy"] or 0, 0.5)
        asked = rows.drop(columns="kind").iloc[::-1]
        answers = model.predict(asked)
        self.assertTrue(answers[asked.columns].equals(asked))
        self.assertGreater((answers["kind_predicted"] == rows["kind"].iloc[::-1]).mean(), 0.9)
        shares = answers[[f"kind_{one}" for one in model.classes]]
        self.assertLess((shares.sum(axis=1) - 1).abs().max(), 1e-5)
        self.assertIn("Predictor of kind: accuracy", repr(model))

    def test_a_saved_model_predicts_the_same(self) -> None:
        rows = flowers()
        model = annulus.fit(rows, target="petal", device="cpu", rounds=50, out=self.folder / "run")
        self.assertEqual(model.classes, [])
        self.assertIn("rmse", model.scores)
        model.save(self.folder / "flowers.safetensors")
        first = model.predict(rows)
        self.assertEqual(first.columns[-1], "petal_predicted")
        for place in ("flowers.safetensors", "run"):
            self.assertTrue(annulus.load(self.folder / place).predict(rows).equals(first))

    def test_a_file_is_as_good_as_a_data_frame(self) -> None:
        rows = flowers()
        rows.to_csv(self.folder / "flowers.csv", index=False, sep=";")
        model = annulus.fit(self.folder / "flowers.csv", target="kind", device="cpu", rounds=50)
        answers = model.predict(self.folder / "flowers.csv")
        self.assertEqual(list(answers.columns[:4]), list(rows.columns))
        self.assertEqual(list(answers["kind_predicted"]), list(model.predict(rows)["kind_predicted"]))

    def test_classes_have_the_type_of_the_table(self) -> None:
        rows = flowers()
        rows["kind"] = rows["petal"] > 1
        model = annulus.fit(rows, target="kind", device="cpu", rounds=100, columns={"soil": "ignore"})
        self.assertEqual(model.classes, [False, True])
        self.assertGreater((model.predict(rows)["kind_predicted"] == rows["kind"]).mean(), 0.9)

    def test_errors_have_the_programs_words(self) -> None:
        rows = flowers()
        with self.assertRaisesRegex(annulus.ProgramError, "colour"):
            annulus.fit(rows, target="colour")
        rows.loc[1003, "kind"] = None
        with self.assertRaisesRegex(annulus.ProgramError, "line 5: the target kind is empty"):
            annulus.fit(rows, target="kind")
        model = annulus.fit(rows, target="kind", device="cpu", rounds=20, bad_rows="skip")
        with self.assertRaisesRegex(annulus.ProgramError, "petal"):
            model.predict(rows.drop(columns="petal"))
        with self.assertRaisesRegex(annulus.AnnulusError, "not list"):
            model.predict([1, 2])

    def test_a_model_tells_how_good_it_is_and_which_columns_matter(self) -> None:
        rows = flowers()
        rows["kind"] = (rows["petal"] > 1).map({True: "large", False: "small"})
        model = annulus.fit(rows, target="kind", device="cpu", rounds=100)
        made = model.predict_proba(rows)
        self.assertEqual((list(made.columns), len(made)), (["large", "small"], len(rows)))
        scores = model.evaluate(rows)
        said = model.predict(rows)["kind_predicted"] == rows["kind"]
        self.assertAlmostEqual(scores["accuracy"] or 0, said.mean())
        self.assertLess(model.importance["soil"], model.importance["petal"])
        with self.assertRaisesRegex(annulus.ProgramError, "lacks the column kind"):
            model.evaluate(rows.drop(columns="kind"))
        numbers = annulus.fit(flowers(), target="petal", device="cpu", rounds=20)
        with self.assertRaisesRegex(annulus.AnnulusError, "which has no probability"):
            numbers.predict_proba(rows)

    def test_values_that_training_never_saw_are_a_warning_and_other_spellings_are_none(self) -> None:
        rows = flowers()
        rows["soil"] = rows["soil"] == "wet"
        model = annulus.fit(rows, target="kind", device="cpu", rounds=20)
        first = model.predict(rows)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for spelled in (lambda wet: str(wet).upper(), lambda wet: float(wet)):
                answers = model.predict(rows.assign(soil=rows["soil"].map(spelled)))
                self.assertTrue(answers["kind_predicted"].equals(first["kind_predicted"]))
        with self.assertWarnsRegex(UserWarning, "column soil: 240 of the values, such as \"sand\""):
            model.predict(rows.assign(soil="sand"))

    def test_a_data_frame_breaks_no_earlier_run_and_is_kept_with_its_own(self) -> None:
        rows = flowers()
        rows.to_csv(self.folder / "flowers.tsv", index=False, sep="\t")
        cache = {program.CACHE: os.fspath(self.folder / "cache")}
        with unittest.mock.patch.dict(os.environ, cache):
            first = self.folder / "first"
            annulus.fit(self.folder / "flowers.tsv", target="kind", device="cpu", rounds=20, out=first)
            annulus.fit(rows, target="kind", device="cpu", rounds=20)
            second = self.folder / "second"
            annulus.fit(rows, target="kind", device="cpu", rounds=20, out=second)
            self.assertTrue((second / "data.tsv").is_file())
            for run in (first, second):
                for verb in ("eval", "export"):
                    more = [self.folder / f"{run.name}.safetensors"] if verb == "export" else []
                    program.call([verb, run, *more])
            (second / "data.tsv").unlink()
            program.call(["eval", first])

    def test_the_lines_of_the_documentation_run(self) -> None:
        block = re.search(r"```python\n(import annulus, pandas.*?)```", DOCS.read_text(), re.DOTALL)
        assert block is not None
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.folder)
        flowers().rename(columns={"kind": "class"}).to_csv("iris.csv", index=False)
        names: dict[str, Any] = {}
        exec(block[1], names)
        self.assertGreater(names["model"].scores["accuracy"], 0.9)
        self.assertIn("class_predicted", names["answers"].columns)


class Files(unittest.TestCase):
    def test_other_files_are_told_apart(self) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch, "model.safetensors")
            with self.assertRaisesRegex(annulus.AnnulusError, "cannot read"):
                annulus.load(file)
            file.write_bytes(b"short")
            with self.assertRaisesRegex(annulus.AnnulusError, "no safetensors file"):
                annulus.load(file)
            file.write_bytes((2).to_bytes(8, "little") + b"{}")
            with self.assertRaisesRegex(annulus.AnnulusError, "not a model of a table"):
                annulus.load(file)

    def test_classes_are_numbers_only_if_all_of_them_are_written_so(self) -> None:
        self.assertEqual(tables._natural(["0", "1"]), [0, 1])
        self.assertEqual(tables._natural(["0.5", "1.0"]), [0.5, 1.0])
        self.assertEqual(tables._natural(["False", "True"]), [False, True])
        self.assertEqual(tables._natural(["01", "1"]), ["01", "1"])
        self.assertEqual(tables._natural(["1", "two"]), ["1", "two"])

    def test_settings_may_have_entries_and_lists(self) -> None:
        told = tables._settings({"rounds": 3, "columns": {"zip": "category"}, "missing": ["", "?"]})
        self.assertEqual(told, ["rounds=3", "columns.zip=category", 'missing=["", "?"]'])


if __name__ == "__main__":
    unittest.main()
