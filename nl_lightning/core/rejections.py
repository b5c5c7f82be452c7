"""What became of the events of a log, in words."""

from collections.abc import Mapping

__all__ = ["fate_of_events"]

_WORDS = {
    "another arm chosen": "where it chose another arm",
    "not in the candidate set": "where the logged arm was not in the candidate set",
    "propensity correction": "by the propensity correction",
}


def fate_of_events(seen: float, accepted: float, rejected: Mapping[str, float]) -> str:
    """``"103 of 6,000 events accepted; rejected: 5,897 where it chose another arm"``, without what did not happen."""
    reasons = [f"{number:,.0f} {_WORDS.get(why, why)}" for why, number in rejected.items() if round(number)]
    return f"{accepted:,.0f} of {seen:,.0f} events accepted" + (f"; rejected: {', '.join(reasons)}" if reasons else "")
