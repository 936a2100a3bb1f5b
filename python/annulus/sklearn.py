"""Models of tables by scikit-learn's interface. scikit-learn itself is not needed, but its tools take these classes:
pipelines, cross-validation and searches over settings.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pandas

from .errors import AnnulusError
from .tables import Predictor, fit

#: The column that a table is given for the target. A column of the user's of this name is renamed.
TARGET = "annulus_target"


class _Estimator:
    """What a classifier and a regressor have in common."""

    _estimator_type: str

    def __init__(self, *, device: str = "auto", settings: dict[str, Any] | None = None) -> None:
        """
        Args:
            device: `auto`, `cpu`, `gpu` or `gpu:N`.
            settings: settings of the run, such as `{"rounds": 3000}`.
        """
        self.device = device
        self.settings = settings

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments of the constructor, as scikit-learn asks for them to make a copy."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> _Estimator:
        """Changes arguments of the constructor."""
        for name, value in params.items():
            if name not in self.get_params():
                raise ValueError(f"{type(self).__name__} has no parameter {name!r}: it has {', '.join(self.get_params())}")
            setattr(self, name, value)
        return self

    def fit(self, X: Any, y: Any) -> _Estimator:
        """Trains a model that predicts `y` from the columns of `X`, a data frame or an array, and waits for it.

        Part of the rows is held out to stop in time, and to judge the model.
        """
        rows = self._rows(X)
        values = np.asarray(y)
        if values.ndim == 2 and values.shape[1] == 1:
            values = values[:, 0]
        if values.shape != (len(rows),):
            raise ValueError(f"y has the shape {values.shape}, and X has {len(rows)} rows")
        rows[TARGET] = self._targets(values)
        self.n_features_in_ = rows.shape[1] - 1
        self.feature_names_in_ = np.array(rows.columns[:-1], object)
        self.predictor_: Predictor = fit(rows, TARGET, device=self.device, **self._settings())
        return self

    def _settings(self) -> dict[str, Any]:
        given = dict(self.settings or {})
        columns = {**dict(given.pop("columns", {})), TARGET: self._kind}
        return {**given, "columns": columns}

    _kind: str

    def _targets(self, values: np.ndarray) -> Any:
        raise NotImplementedError

    def _rows(self, X: Any) -> pandas.DataFrame:
        """The columns of a data frame or an array, each with a name of its own."""
        rows = X.copy() if isinstance(X, pandas.DataFrame) else pandas.DataFrame(np.asarray(X))
        rows.columns = [f"x{name}" if isinstance(name, int) or name == TARGET else str(name) for name in rows.columns]
        return rows.reset_index(drop=True)

    def _predicted(self, X: Any) -> pandas.DataFrame:
        if not hasattr(self, "predictor_"):
            raise AnnulusError(f"this {type(self).__name__} is not fitted yet: call fit(X, y) first")
        rows = self._rows(X)
        if rows.shape[1] != self.n_features_in_:
            raise ValueError(f"X has {rows.shape[1]} columns, and the model was fitted to {self.n_features_in_}")
        return self.predictor_.predict(rows).iloc[:, rows.shape[1] :]

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "predictor_")

    def __sklearn_tags__(self) -> Any:
        """Only scikit-learn asks for this."""
        from sklearn.utils import ClassifierTags, InputTags, RegressorTags, Tags, TargetTags

        is_classifier = self._estimator_type == "classifier"
        return Tags(
            estimator_type=self._estimator_type,
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags() if is_classifier else None,
            regressor_tags=None if is_classifier else RegressorTags(),
            input_tags=InputTags(allow_nan=True, string=True, categorical=True),
        )

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.get_params().items() if value not in ("auto", None))
        return f"{type(self).__name__}({given})"


class AnnulusClassifier(_Estimator):
    """A model of a table that tells classes apart, by scikit-learn's interface.

    ```python
    from sklearn.model_selection import cross_val_score

    cross_val_score(annulus.AnnulusClassifier(settings={"rounds": 500}), X, y)
    ```
    """

    _estimator_type = "classifier"
    _kind = "category"

    def _targets(self, values: np.ndarray) -> Any:
        self.classes_, codes = np.unique(values, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("y has one class only")
        return [f"class {code}" for code in codes]

    def predict(self, X: Any) -> np.ndarray:
        """The most likely class of each row."""
        chances = self.predict_proba(X)
        return self.classes_[chances.argmax(1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class, in the order of `classes_`."""
        made = self._predicted(X).iloc[:, 1:].to_numpy(float)
        # The program has the classes in its own order; one that only test rows had has no column.
        chances = np.zeros((len(made), len(self.classes_)))
        for at, name in enumerate(self.predictor_.classes):
            chances[:, int(str(name).removeprefix("class "))] = made[:, at]
        return chances

    def score(self, X: Any, y: Any) -> float:
        """The share of rows whose class is predicted."""
        return float(np.mean(self.predict(X) == np.asarray(y).reshape(-1)))


class AnnulusRegressor(_Estimator):
    """A model of a table that predicts a number, by scikit-learn's interface."""

    _estimator_type = "regressor"
    _kind = "number"

    def _targets(self, values: np.ndarray) -> Any:
        return values.astype(float)

    def predict(self, X: Any) -> np.ndarray:
        """The number of each row."""
        return self._predicted(X).iloc[:, 0].to_numpy(float)

    def score(self, X: Any, y: Any) -> float:
        """How much of the numbers' variance is predicted, R2: 1 is perfect, 0 is their mean."""
        values = np.asarray(y, float).reshape(-1)
        left = np.sum((values - self.predict(X)) ** 2)
        whole = np.sum((values - values.mean()) ** 2)
        return float(1 - left / whole) if whole > 0 else 0.0
