"""Reward models of the doubly robust value: a function, or a classifier as scikit-learn has them."""

from typing import Any

import numpy as np
import pytest
import torch

from nl_lightning.core.errors import InputError
from replay.protocol.reward_model import FOLD_ROWS, FOLDS, CrossFitted, logistic_regression, make_fit

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((4000, 3))
CLICK = (RANDOM.random(4000) < 1 / (1 + np.exp(2 - X[:, 0]))).astype(float)


def rate(x: np.ndarray, click: np.ndarray) -> Any:
    """A model of a user: the click rate."""
    mean = click.mean()
    return lambda new: np.full(len(new), mean)


class Rate:
    """The same as a classifier."""

    fits = 0

    def fit(self, x: np.ndarray, y: np.ndarray) -> "Rate":
        Rate.fits += 1
        self.mean = y.mean()
        return self

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        return np.tile([1 - self.mean, self.mean], (len(x), 1))


def fitted(model: Any) -> np.ndarray:
    fit = make_fit(model)
    assert fit is not None
    return np.asarray(fit(X, CLICK)(X[:50]))


@pytest.mark.parametrize("model", [rate, Rate, Rate(), f"{__name__}:rate", f"{__name__}:Rate"])
def test_a_model_is_a_function_or_a_classifier_by_itself_or_by_its_path(model: Any) -> None:
    assert fitted(model) == pytest.approx(np.full(50, CLICK.mean()), rel=1e-12)


def test_the_default_is_the_logistic_regression_of_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.linear_model")
    # the ridge of 1 is on standardised features, and counts nothing beside 4,000 events
    expected = fitted(sklearn.LogisticRegression(C=1.0))
    assert fitted(None) == pytest.approx(expected, rel=0.01)
    assert make_fit("logistic") is logistic_regression
    assert make_fit("none") is None
    assert fitted("sklearn.linear_model:LogisticRegression") == pytest.approx(expected)


def test_an_object_is_copied_and_fitted_anew_for_every_fold() -> None:
    given, before = Rate(), Rate.fits
    row = np.arange(4000)
    models = CrossFitted(make_fit(given), X, CLICK, row)  # type: ignore[arg-type]
    assert Rate.fits == before + FOLDS
    assert not hasattr(given, "mean")
    found = models(torch.from_numpy(X[None, :, None]), torch.from_numpy(row[None]))
    other = row // FOLD_ROWS % FOLDS != 0
    assert found[0, 0, 0].item() == pytest.approx(CLICK[other].mean())


def test_a_classifier_that_sees_no_click_is_not_asked() -> None:
    fit = make_fit("sklearn.linear_model:LogisticRegression")
    assert fit is not None
    assert fit(X, np.zeros(4000))(X[:2]).tolist() == [0.5 / 4001] * 2


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (3, "must be a function"),
        (dict, "must be a function"),
        ("forest", "must be logistic, none"),
        ("nowhere:at_all", "cannot be imported"),
    ],
)
def test_what_is_no_model_is_refused(model: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make_fit(model)
