"""Reward models for the doubly robust value: what an arm would give, fitted on other events than it is used on.

Events are divided into folds by blocks of rows. The prediction for an event comes from a model that was fitted on the
other folds, on a bounded sample of the logged arms and their clicks.
"""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nl_lightning.core.errors import InputError
from nl_lightning.core.imports import import_callable

__all__ = ["FOLDS", "SAMPLE", "CrossFitted", "FitFunction", "logistic_regression", "make_fit"]

Floats = NDArray[np.float64]

FitFunction = Callable[[Floats, Floats], Callable[[Floats], Any]]
"""(x (N, d), clicks (N,)) -> a function from x (M, d) to probabilities (M,)"""

FOLDS = 3
FOLD_ROWS = 1024
"""Rows in a row that are in the same fold."""
SAMPLE = 60_000
"""Events that models are fitted on, at most."""
RIDGE = 1.0
NEWTON_STEPS = 25


def make_fit(model: Any) -> FitFunction | None:
    """The function that fits a model, given by its name, its import path or itself; None for ``none``.

    A model is a function that fits, or a classifier with ``fit`` and ``predict_proba``, as scikit-learn has them: its
    class, which is made without arguments, or an object, of which each fold gets a copy.
    """
    if isinstance(model, str) and model == "none":
        return None
    if model is None or (isinstance(model, str) and model == "logistic"):
        return logistic_regression
    if isinstance(model, str):
        if ":" not in model:
            raise InputError(
                "reward_model must be logistic, none, or the import path of a function or a classifier "
                f"(my_module:name); got {model!r}."
            )
        model = import_callable(model, "reward_model", "my_module:name")
    if callable(getattr(model, "fit", None)) and callable(getattr(model, "predict_proba", None)):
        return partial(_fit_classifier, model)
    if isinstance(model, type) or not callable(model):
        raise InputError(
            "reward_model must be a function (x, clicks) -> a function from x to probabilities, or a classifier with "
            f"fit and predict_proba; got {model!r:.100}."
        )
    return model  # type: ignore[no-any-return]


def _fit_classifier(model: Any, x: Floats, click: Floats) -> Callable[[Floats], Floats]:
    """A classifier of scikit-learn's kind as a function; without both clicks and misses, their smoothed rate."""
    clicked = click > 0
    if clicked.all() or not clicked.any():
        rate = (clicked.sum() + 0.5) / (len(click) + 1)
        return lambda new: np.full(len(new), rate)
    fitted = model() if isinstance(model, type) else deepcopy(model)
    fitted.fit(x, clicked.astype(np.int64))

    def predict(new: Floats) -> Floats:
        found = np.asarray(fitted.predict_proba(new), dtype=np.float64)
        # a column for misses, and one for clicks
        return found[:, 1] if found.ndim == 2 and found.shape[1] == 2 else found

    return predict


def logistic_regression(x: Floats, click: Floats) -> Callable[[Floats], Floats]:
    """A logistic regression with an intercept, by Newton's method; weights have a ridge of 1, the intercept none."""
    mean, spread = x.mean(0), x.std(0)
    spread = np.where(spread > 1e-12, spread, 1.0)
    z = np.concatenate([(x - mean) / spread, np.ones((len(x), 1))], axis=1)
    # half a click more and half a miss more: there may be none
    rate = (click.sum() + 0.5) / (len(click) + 1)
    theta = np.zeros(z.shape[1])
    theta[-1] = np.log(rate / (1 - rate))
    ridge = np.append(np.full(z.shape[1] - 1, RIDGE), 1e-6)
    loss = _penalised_loss(z, click, theta, ridge)
    for _ in range(NEWTON_STEPS):
        p = 1 / (1 + np.exp(-z @ theta))
        gradient = z.T @ (p - click) + ridge * theta
        hessian = (z * (p * (1 - p))[:, None]).T @ z + np.diag(ridge)
        step, size = np.linalg.solve(hessian, gradient), 1.0
        while size > 1e-3 and _penalised_loss(z, click, theta - size * step, ridge) > loss:
            size /= 2
        theta = theta - size * step
        before, loss = loss, _penalised_loss(z, click, theta, ridge)
        if before - loss <= 1e-9 * abs(loss):
            break
    weights, intercept = theta[:-1] / spread, theta[-1] - (theta[:-1] / spread) @ mean

    def predict(new: Floats) -> Floats:
        # sums over the features of each row alone: a product's last digits depend on the rows beside it
        return np.asarray(1 / (1 + np.exp(-((new * weights).sum(-1) + intercept))))

    return predict


def _penalised_loss(z: Floats, click: Floats, theta: Floats, ridge: Floats) -> float:
    score = z @ theta
    return float(np.logaddexp(0, score).sum() - click @ score + 0.5 * (ridge * theta**2).sum())


class CrossFitted:
    """Models of all folds, fitted on the sampled events.

    Args:
        fit: fits a model.
        x: (N, d), the logged arms.
        click: (N,)
        row: (N,), their rows.
    """

    def __init__(self, fit: FitFunction, x: Floats, click: Floats, row: NDArray[np.int64]) -> None:
        fold = _fold(row)
        self.models: list[Callable[[Floats], Any]] = []
        for number in range(FOLDS):
            other = fold != number
            # a log of a single block has no other fold: nothing is known, and nothing is predicted
            self.models.append(fit(x[other], click[other]) if other.any() else _nothing)

    def __call__(self, arms: Tensor, row: Tensor) -> Tensor:
        """(R, C, K): the predictions for arms (R, C, K, d) of events in these rows (R, C), in float64."""
        fold = _fold(row.cpu().numpy())
        found = np.zeros(arms.shape[:3])
        x = arms.double().cpu().numpy()
        for number, model in enumerate(self.models):
            here = fold == number
            if here.any():
                shown = x[here]
                found[here] = _checked(model(shown.reshape(-1, shown.shape[-1])), shown.shape[:2])
        return torch.from_numpy(found).to(arms.device)


def _fold(row: NDArray[np.int64]) -> NDArray[np.int64]:
    return row // FOLD_ROWS % FOLDS


def _nothing(x: Floats) -> Floats:
    return np.zeros(len(x))


def _checked(given: Any, shape: tuple[int, ...]) -> Floats:
    found = np.asarray(given, dtype=np.float64)
    if found.shape != (shape[0] * shape[1],) or not ((found >= 0) & (found <= 1)).all():
        raise InputError(
            f"reward_model must predict one probability in [0, 1] for each of {shape[0] * shape[1]} arms; got numbers "
            f"of shape {found.shape}" + (" outside it." if found.shape == (shape[0] * shape[1],) else ".")
        )
    return found.reshape(shape)
