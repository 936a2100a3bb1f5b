"""`AnnulusClassifier` and `AnnulusRegressor` by scikit-learn's tools, and without scikit-learn."""

from __future__ import annotations

import subprocess
import sys
import unittest

try:
    import numpy as np
    import pandas
except ImportError as error:
    raise unittest.SkipTest(f"scikit-learn's interface needs {error.name}") from error

from running import OURS, WithProgram

import annulus

ROUNDS = {"rounds": 120}


def spots(rows: int = 240) -> tuple[np.ndarray, np.ndarray]:
    """Points around three centres, and which is whose."""
    draw = np.random.default_rng(3)
    kinds = np.arange(rows) % 3
    return np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 3.0]])[kinds] + draw.normal(0, 0.5, (rows, 2)), kinds


class Estimators(WithProgram):
    command, word = "predict", "FILE"

    def test_classes_keep_their_type_and_their_order(self) -> None:
        X, kinds = spots()
        names = np.array(["lily", "aster", "rose"], object)[kinds]
        model = annulus.AnnulusClassifier(device="cpu", settings=ROUNDS).fit(X, names)
        self.assertEqual(list(model.classes_), ["aster", "lily", "rose"])
        chances = model.predict_proba(X)
        self.assertEqual(chances.shape, (len(X), 3))
        np.testing.assert_allclose(chances.sum(1), 1, atol=1e-5)
        self.assertGreater(model.score(X, names), 0.9)
        self.assertGreater(np.mean(model.predict(X[::-1]) == names[::-1]), 0.9)
        with self.assertRaisesRegex(ValueError, "fitted to 2"):
            model.predict(X[:, :1])
        with self.assertRaisesRegex(annulus.AnnulusError, "call fit"):
            annulus.AnnulusClassifier().predict(X)

    def test_scikit_learns_tools_take_them(self) -> None:
        try:
            from sklearn.base import clone, is_classifier, is_regressor
            from sklearn.model_selection import cross_val_score
            from sklearn.pipeline import make_pipeline
            from sklearn.preprocessing import StandardScaler
        except ImportError as error:
            self.skipTest(f"this needs {error.name}")
        X, kinds = spots()
        model = annulus.AnnulusClassifier(device="cpu", settings=ROUNDS)
        other = clone(model).set_params(device="auto")
        self.assertEqual((other.settings, other.device, model.device), (ROUNDS, "auto", "cpu"))
        self.assertTrue(is_classifier(model) and is_regressor(annulus.AnnulusRegressor()))
        scores = cross_val_score(make_pipeline(StandardScaler(), model), X, kinds, cv=2)
        self.assertGreater(scores.min(), 0.85)
        with self.assertRaisesRegex(ValueError, "no parameter 'rate'"):
            model.set_params(rate=1)

    def test_numbers_of_a_data_frame(self) -> None:
        X, _ = spots()
        rows = pandas.DataFrame({"a": X[:, 0], "kind": np.where(X[:, 1] > 1, "high", "low")}, index=range(7, 7 + len(X)))
        y = 2 * rows["a"] + 3 * (rows["kind"] == "high")
        model = annulus.AnnulusRegressor(device="cpu", settings={"rounds": 300}).fit(rows, y)
        self.assertGreater(model.score(rows, y), 0.8)
        self.assertEqual(list(model.feature_names_in_), ["a", "kind"])

    def test_scikit_learn_is_not_needed(self) -> None:
        code = "import sys; sys.modules['sklearn'] = None; import annulus; print(annulus.AnnulusRegressor(device='cpu'))"
        done = subprocess.run([sys.executable, "-c", code], env=OURS, capture_output=True, text=True)
        self.assertEqual(done.stdout.strip(), "AnnulusRegressor(device='cpu')", done.stderr)


if __name__ == "__main__":
    unittest.main()
