"""A finite simulated world whose click rates are known exactly, because they are arrays."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit

from nl_lightning.core.errors import InputError
from nl_lightning.core.whole import check_whole
from replay.logs.layout import LOG_FILE
from replay.logs.obd import EVENTS, ITEMS, MOST_POSITIONS

__all__ = [
    "CHUNK",
    "FIRST_TIME",
    "ITEM_VALUES",
    "LATENT",
    "MOST_ENTRIES",
    "POLICIES",
    "TIME_STEP",
    "USER_VALUES",
    "Floats",
    "SimulatedWorld",
    "Whole",
    "inverse_cdf",
]


Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

POLICIES = ("uniform", "softmax")
USER_VALUES = (3, 5, 9, 9)
ITEM_VALUES = (4, 6, 5)
LATENT = 4
FIRST_TIME = np.datetime64("2019-11-24T00:00:00", "us").astype(np.int64)
TIME_STEP = 500_000  # microseconds between two events
CHUNK = 65_536  # events whose random numbers are drawn at once
MOST_ENTRIES = 20_000_000  # users x positions x items of the largest world: a few arrays of 160 MB

# Keys of the random streams. Changing these values, or those above, changes every simulated log.
_ITEMS, _USERS, _TRUTH, _POLICY, _EVENTS = range(5)


@dataclass(eq=False)
class SimulatedWorld:
    """Visitors, clicks and a logging policy, all drawn from ``seed``. Changing ``policy`` or ``ctr`` keeps the rest.

    A visitor has one of ``users`` profiles and sees one of ``positions`` positions, both drawn uniformly. A user u has
    categories and sparse affinities a(u, i); an item i has categories and a number. Every category has a latent
    vector: z(u, p) is the sum of those of the user and of position p = 1, 2, ..., b(i) the sum of those of the item;
    z' and b' are a second such pair.

        h(u, p, i) = z.b + cos(3 z'.b'),   standardised to mean 0 and standard deviation 1
        P(click | u, p, i) = mu(h + log(1 + a) / 2 - log(p) / 4 + c)

    The constant c gives the uniform policy the click rate ``ctr``. Everything that determines a click is logged, but
    no model linear in it is correct. The policy ``uniform`` shows every item with probability 1 / items. ``softmax``
    is a recommender that sees h with a normal error per item and category of the user, and does not see affinities:

        propensity(i | u, p) ~ exp(U / temperature),   U = (h + error) / sqrt 2

    With a low temperature some items are practically never shown.

    Attributes:
        user_codes: category of each user feature, (users, 4).
        item_codes: category of each item feature, (items, 3).
        item_number: the number of each item, (items,).
        affinity: a, (users, items).
        probability: P(click), (users, positions, items).
        propensity: of the logging policy, (users, positions, items).
    """

    items: int = 80
    users: int = 200
    positions: int = 3
    policy: str = "uniform"
    temperature: float = 1.0
    ctr: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        self._check()
        items = self._random(_ITEMS)
        self.item_codes = _codes(items, ITEM_VALUES, self.items)
        self.item_number = items.standard_normal(self.items)
        users = self._random(_USERS)
        self.user_codes = _codes(users, USER_VALUES, self.users)
        shape = (self.users, self.items)
        # One entry in 50, but about 5 per user if there are many items, because an event stores them all.
        liked = users.random(shape) < min(0.02, 5 / self.items)
        self.affinity: Floats = np.where(liked, users.integers(1, 7, shape), 0.0)
        h = self._h()
        self.probability: Floats = self._probability(h)
        self.propensity: Floats = self._propensity(h)
        # The last entry of a row is exactly 1, so that every uniform number in [0, 1) selects an item.
        cdf = self.propensity.cumsum(axis=-1)
        self._cdf: Floats = cdf / cdf[..., -1:]

    @classmethod
    def from_description(cls, log: dict[str, Any]) -> "SimulatedWorld":
        """Rebuild the world of a simulated log from its log.json."""
        if "world" not in log:
            raise InputError("This log does not describe a simulated world. Only simulated logs do.")
        try:
            world, stored = cls(**log["world"]["arguments"]), log["world"]["ctr"]
            agrees = all(abs(rate - stored[name]) < 1e-9 for name, rate in world.rates().items())
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise InputError(
                f"{LOG_FILE} does not describe a simulated world: {error}. Simulate the log again."
            ) from error
        if not agrees:
            raise InputError(
                f"{LOG_FILE}, world: the log was simulated by another version of replay or NumPy, in another world. "
                "Simulate it again."
            )
        return world

    def description(self) -> dict[str, Any]:
        """The arguments and the exact click rates as JSON, the input of ``from_description``."""
        return {"arguments": asdict(self), "ctr": self.rates()}

    def rates(self) -> dict[str, float]:
        """The exact click rates of the logging policy, the uniform policy and the best policy."""
        return {
            "logging": self.value(self.propensity),
            "uniform": float(self.probability.mean()),
            "best": float(self.probability.max(axis=-1).mean()),
        }

    def value(self, action_probability: Floats) -> float:
        """The exact click rate of a policy, given by its probabilities (users, positions, items)."""
        given = np.asarray(action_probability, dtype=np.float64)
        if given.shape != self.probability.shape:
            raise InputError(f"A policy must have the shape {self.probability.shape}, got {given.shape}.")
        if not ((given >= 0).all() and np.allclose(given.sum(axis=-1), 1, rtol=0, atol=1e-6)):
            raise InputError("A policy's probabilities must be at least 0 and sum to 1 over the items.")
        # V = mean over (u, p) of sum_i pi(i | u, p) P(click | u, p, i)
        return float((given * self.probability).sum(axis=-1).mean())

    def item_table(self) -> pa.Table:
        """The items, in the schema ITEMS."""
        categories = _categories("item", 1, ITEM_VALUES, self.item_codes)
        columns = [pa.array(np.arange(self.items)), pa.array(self.item_number), *categories]
        return pa.table(columns, names=ITEMS.names).cast(ITEMS)

    def profiles(self) -> list[tuple[str, ...]]:
        """The names of the categories of each user."""
        columns = _categories("user", 0, USER_VALUES, self.user_codes)
        return list(zip(*(column.to_pylist() for column in columns), strict=True))

    def draw(self, start: int, count: int) -> pa.Table:
        """Events start, ..., start + count - 1 in the schema EVENTS, independent of earlier draws.

        All policies of one seed meet the same visitors, who click on an item no matter which policy shows it.
        """
        user, position, for_item, for_click = self._numbers(start, count)
        item = inverse_cdf(self._cdf.reshape(-1, self.items), user * self.positions + position, for_item)
        shown = (user, position, item)
        columns = [
            pa.array(FIRST_TIME + TIME_STEP * np.arange(start, start + count)).cast(EVENTS.field("timestamp").type),
            pa.array(item.astype(np.int32)),
            pa.array((position + 1).astype(np.int8)),
            pa.array((for_click < self.probability[shown]).astype(np.int8)),
            pa.array(self.propensity[shown]),
            *_categories("user", 0, USER_VALUES, self.user_codes[user]),
            *self._affinities(user),
        ]
        return pa.table(columns, schema=EVENTS)

    def draw_context(self, start: int, count: int) -> tuple[Whole, Whole]:
        """User and position of the events that ``draw`` returns, both counted from 0 as in ``probability``."""
        return self._numbers(start, count)[:2]

    def _check(self) -> None:
        check_whole(2, items=self.items)
        check_whole(1, users=self.users, positions=self.positions)
        check_whole(0, seed=self.seed)
        entries = self.users * self.positions * self.items
        for usable, expected, got in (
            (self.positions <= MOST_POSITIONS, f"positions must be at most {MOST_POSITIONS}", self.positions),
            (entries <= MOST_ENTRIES, f"users x positions x items must be at most {MOST_ENTRIES:,}", f"{entries:,}"),
            (self.policy in POLICIES, f"policy must be one of {', '.join(POLICIES)}", repr(self.policy)),
            (0 < self.ctr < 0.9, "ctr must lie between 0 and 0.9", self.ctr),
            (0 < self.temperature < math.inf, "temperature must be finite and greater than 0", self.temperature),
        ):
            if not usable:
                raise InputError(f"{expected}; got {got}.")

    def _random(self, *key: int) -> np.random.Generator:
        # A spawn key, because SeedSequence([5]) equals SeedSequence([5, 0]).
        return np.random.default_rng(np.random.SeedSequence(int(self.seed), spawn_key=key))

    def _h(self) -> Floats:
        """h(u, p, i), standardised."""
        random = self._random(_TRUTH)
        user = _embedded(random, USER_VALUES, self.user_codes, 2 * LATENT)
        number = self.item_number[:, None] * random.standard_normal(2 * LATENT)
        b = (_embedded(random, ITEM_VALUES, self.item_codes, 2 * LATENT) + number) / math.sqrt(2)
        position = random.standard_normal((self.positions, 2 * LATENT)) / 2
        z = user[:, None] + position  # (users, positions, 2 LATENT)
        # h = z.b + cos(3 z'.b')
        linear = z[..., :LATENT] @ b[:, :LATENT].T / math.sqrt(LATENT)
        h = linear + np.cos(3 * z[..., LATENT:] @ b[:, LATENT:].T / math.sqrt(LATENT))
        return (h - h.mean()) / h.std()

    def _probability(self, h: Floats) -> Floats:
        place = np.log(np.arange(1, self.positions + 1))[:, None]
        f = h + np.log1p(self.affinity)[:, None] / 2 - place / 4
        # Solve mean mu(f + c) = ctr. c = logit(ctr) - f gives one entry the rate ctr, so c lies between these extremes.
        logit = math.log(self.ctr / (1 - self.ctr))
        bounds = logit - f.max() - 1, logit - f.min() + 1
        c = brentq(lambda c: expit(f + c).mean() - self.ctr, *bounds, xtol=1e-13)
        return expit(f + c)

    def _propensity(self, h: Floats) -> Floats:
        if self.policy == "uniform":
            return np.full(h.shape, 1 / self.items)
        error = _embedded(self._random(_POLICY), USER_VALUES, self.user_codes, self.items)
        utility = (h + error[:, None]) / math.sqrt(2)
        # propensity = exp(U / temperature) / sum; a temperature near 0 correctly gives exp(-inf) = 0
        with np.errstate(over="ignore"):
            weight = np.exp((utility - utility.max(axis=-1, keepdims=True)) / self.temperature)
        return weight / weight.sum(axis=-1, keepdims=True)

    def _numbers(self, start: int, count: int) -> tuple[Whole, Whole, Floats, Floats]:
        """User, position and two uniform numbers of each event, from the chunks that contain them."""
        check_whole(0, start=start, count=count)
        first, last = start // CHUNK, max(start, start + count - 1) // CHUNK
        chunks = []
        for chunk in range(first, last + 1):
            random = self._random(_EVENTS, chunk)
            context = random.integers(self.users, size=CHUNK), random.integers(self.positions, size=CHUNK)
            chunks.append((*context, random.random(CHUNK), random.random(CHUNK)))
        begin = start - first * CHUNK
        user, position, item, click = (np.concatenate(c)[begin : begin + count] for c in zip(*chunks, strict=True))
        return user, position, item, click

    def _affinities(self, user: Whole) -> tuple[pa.Array, pa.Array]:
        """The columns affinity_item and affinity: the nonzero affinities of each event's user."""
        owner, item = self.affinity.nonzero()  # by user, then by item
        lengths = np.bincount(owner, minlength=self.users)
        begins = lengths.cumsum() - lengths
        offsets = np.concatenate([[0], lengths[user].cumsum()])
        # Entry j of the column, in the list of event t, is entry begins[user_t] + j - offsets[t] of the sparse matrix.
        entry = np.repeat(begins[user] - offsets[:-1], lengths[user]) + np.arange(offsets[-1])
        values = item[entry].astype(np.int32), self.affinity[owner[entry], item[entry]].astype(np.float32)
        return tuple(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(v)) for v in values)


def _codes(random: np.random.Generator, sizes: tuple[int, ...], count: int) -> Whole:
    """A random category of each feature for ``count`` rows, (count, features)."""
    return np.stack([random.integers(size, size=count) for size in sizes], axis=1)


def _embedded(random: np.random.Generator, sizes: tuple[int, ...], codes: Whole, dim: int) -> Floats:
    """The sum of the random normal vectors of each row's categories, scaled to variance 1: (len(codes), dim)."""
    tables = [random.standard_normal((size, dim)) for size in sizes]
    return np.add.reduce([t[c] for t, c in zip(tables, codes.T, strict=True)]) / math.sqrt(len(sizes))


def _categories(kind: str, first: int, sizes: tuple[int, ...], codes: Whole) -> list[pa.Array]:
    """Dictionary columns. Category 3 of an item's feature 1 is named "item1-3"."""
    return [
        pa.DictionaryArray.from_arrays(pa.array(column.astype(np.int32)), [f"{kind}{number}-{v}" for v in range(size)])
        for number, (size, column) in enumerate(zip(sizes, codes.T, strict=True), first)
    ]


def inverse_cdf(cdf: Floats, row: Whole, uniform: Floats) -> Whole:
    """The first k with cdf[row, k] > uniform, by bisecting all intervals at once.

    One search over the rows joined into a single sorted array would lose digits. Here an item of probability 0 is
    never drawn.
    """
    low, high = np.zeros_like(row), np.full_like(row, cdf.shape[-1] - 1)
    for _ in range((cdf.shape[-1] - 1).bit_length()):
        middle = (low + high) // 2
        found = cdf[row, middle] > uniform
        low, high = np.where(found, low, middle + 1), np.where(found, middle, high)
    return low
