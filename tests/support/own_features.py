"""Features as a user may write them, for the logs of tests/support/table_logs.py."""

from typing import Any

import numpy as np
import pandas as pd

PRICES = {"tea": 1.5, "coffee": 2.5, "milk": 3.5, "juice": 4.5, "water": 5.5}


def priced(frame: pd.DataFrame, actions: np.ndarray) -> np.ndarray:
    """(N, K, 3): age, price, and their product."""
    age = np.broadcast_to(frame["age"].fillna(40).to_numpy()[:, None] / 40 - 1, actions.shape)
    price = np.vectorize(PRICES.get)(actions) / 5
    return np.stack([age, price, age * price], axis=-1)


class Counting:
    """As ``priced``; counts its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, ...]] = []

    def __call__(self, frame: pd.DataFrame, actions: np.ndarray) -> Any:
        self.calls.append(actions.shape)
        return priced(frame, actions)


not_a_function = 3
