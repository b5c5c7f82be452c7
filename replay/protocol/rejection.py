"""Which events are accepted.

An event counts for an agent that picks the logged item, and for no other. Where item a was logged with probability
p(a), such a match is the more frequent the larger p(a) is; to undo that, an event is kept with probability c / p(a):

    P(logged a, kept) = p(a) c / p(a) = c    for every a,  c <= min p

so that what is kept looks as if it had been logged uniformly. A uniform log keeps everything.
"""

from typing import Literal

import torch
from torch import Tensor

from nl_lightning.core.errors import InputError
from nl_lightning.core.rng import Stream, row_numbers
from replay.logs.reader import Events, Group
from replay.logs.statistics import Contents

Rule = Literal["propensity", "match", "biased-match"]

RULES: dict[Rule, str] = {
    "propensity": "events are kept with probability c / propensity, which undoes the preferences of the logging policy",
    "match": "every event is kept; refused for a log that is not uniform",
    "biased-match": "every event is kept, whatever the log: the result is biased towards what the log preferred",
}
"""Each rule with its meaning."""


def check_rule(rule: Rule, floor: float | None, contents: Contents, log: str) -> float | None:
    """The constant c of a rule on a log; None where every event is kept."""
    if rule not in RULES:
        raise InputError(f"rejection must be one of {', '.join(RULES)}; got {rule!r}.")
    if floor is not None and not 0 < floor <= 1:
        raise InputError(f"propensity_floor must lie in (0, 1], got {floor!r}.")
    if rule == "match" and not contents.uniform:
        raise InputError(
            f"{log} was not logged uniformly (propensities {_span(contents)}), so that plain matches favour what it "
            "showed often. Take rejection: propensity, or ask for the bias by name: rejection: biased-match."
        )
    if rule != "propensity":
        return None
    missing = contents.missing.get("propensity_score", 0)
    if missing or contents.propensity_low is None:
        raise InputError(
            f"{log}: {missing} of {contents.rows} events have no propensity, which rejection: propensity needs. "
            "Convert the log with propensities, or ask for plain matches by name: rejection: biased-match."
        )
    return contents.propensity_low if floor is None else floor


def kept(events: Events, c: float | None, seed: int, group: Group) -> Tensor:
    """(N,): u < c / p for a uniform number u of each event. Where p < c, the event is kept for certain."""
    if c is None:
        return torch.ones(len(events.rows), dtype=torch.bool, device="cpu")
    if events.propensity.isnan().any():
        raise InputError(
            f"{group}, column propensity_score: a propensity is missing, which rejection: propensity needs."
        )
    uniform = row_numbers(events.rows, 1, seed, Stream.REJECTION).squeeze(1)
    return uniform < c / events.propensity


def floor_note(c: float | None, contents: Contents) -> str | None:
    """What is to be said of the constant c on a log: how much it keeps, and whom it does wrong."""
    low = contents.propensity_low
    if c is None or low is None or contents.uniform:
        return None
    if c > low:
        return (
            f"propensity_floor {c:g} is above the log's smallest propensity, {low:g}: events below it are kept less "
            "often than they should be, so that the result is biased towards what the log showed often."
        )
    share = c * contents.inverse_propensities / contents.rows
    return (
        f"The propensity correction keeps about {share:.2%} of the events, for the smallest propensity is {low:g}. A "
        "propensity_floor above it keeps more of them, and is biased towards what the log showed often."
    )


def _span(contents: Contents) -> str:
    if contents.propensity_low is None:
        return "are not recorded"
    missing = contents.missing.get("propensity_score", 0)
    return f"{contents.propensity_low:g} to {contents.propensity_high:g}" + (f", {missing} missing" if missing else "")
