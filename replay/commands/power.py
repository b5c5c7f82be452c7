"""How many events it takes to tell two policies apart, and how small a difference a log can show.

Two policies are compared event by event, so the answer depends on how rare clicks are, on the propensities, and on how
often the policies agree. Without policies it is computed for two that choose one action an event, agree on a share of
the events (--agreement) and otherwise choose as the log did; policies that prefer what it rarely showed need more. With
two policies (or one, against the logging policy) it is measured on the log. The variance is that of the intervals of
python -m replay evaluate.

examples:
  python -m replay power --log data/mine
  python -m replay power --log data/mine --effect 5% --agreement 0.9
  python -m replay power --log data/mine --policy logged --policy my_module:my_policy
"""

import argparse

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from nl_lightning.core.arguments import program
from nl_lightning.core.errors import InputError
from nl_lightning.core.power import POWER, Spread, events_needed, smallest_difference
from nl_lightning.core.statistics import CLICK_LEVEL
from replay.evaluation.power import agreement_spread, check_share, relative_effect
from replay.formats.sample import bundled_log
from replay.logs.reader import Log

__all__ = ["add_arguments", "run"]

_AGREEMENT = 0.8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--log", help="directory of the log: a path or an address (default: the sample of obp)")
    parser.add_argument("--rows", help="rows to look at, like 5000: or 0:5000 (default: all)")
    parser.add_argument("--effect", default="10%", help="relative difference of the click rates, like 10%% or 0.1")
    parser.add_argument("--agreement", type=float, help="share of the events in which the two policies choose the same")
    parser.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="POLICY",
        help=f"policy or checkpoint as in {program('replay')} evaluate; given twice, or once against the logging "
        "policy",
    )
    parser.add_argument("--power", type=float, default=POWER, help="chance to see the difference")


def run(options: argparse.Namespace) -> None:
    effect = relative_effect(options.effect)
    check_share("--power", options.power)
    if options.power < 0.5:
        raise InputError(f"--power must be at least 0.5 and below 1; got {options.power:g}.")
    if options.policy and options.agreement is not None:
        raise InputError("--agreement is for policies that are not known; with --policy it is measured. Leave one out.")
    if len(options.policy) > 2 or len(set(options.policy)) < len(options.policy):
        raise InputError(f"--policy takes one policy or two different ones; got {', '.join(options.policy)}.")
    log = Log(options.log or bundled_log()).part(options.rows)
    counted = log.statistics
    if not counted.clicks:
        raise InputError(f"{log.path} has no click, so nothing is known of its click rate. Take a longer log.")
    if options.policy:
        spread, rate, who = _measured(log, options.policy)
    else:
        if log.missing_propensities:
            raise InputError(f"{log.path}: {log.missing_propensities:,} events have no propensity, which this needs.")
        agreement = _AGREEMENT if options.agreement is None else options.agreement
        inverse = counted.inverse_propensities / counted.rows
        spread, rate = agreement_spread(counted.ctr, inverse, agreement), counted.ctr
        who = f"two policies that agree on {agreement:.0%} of the events"
    seen = smallest_difference(counted.rows, spread, CLICK_LEVEL, options.power)
    needed = events_needed(effect * rate, spread, CLICK_LEVEL, options.power)
    table = Table(title=f"Telling {escape(who)} apart", title_justify="left", show_header=False)
    table.add_row("log", f"{counted.rows:,} events with {counted.clicks:,} clicks")
    table.add_row("click rate", f"{rate:.4%}")
    table.add_row("variance of an event", f"{spread.per_event:.4g}")
    table.add_row(f"events for a difference of {effect:.0%} ({effect * rate:.2g})", f"{needed:,.0f}")
    table.add_row("smallest difference that this log shows", f"{seen:.2g} ({seen / rate:.0%})")
    console = Console()
    console.print(table)
    console.print(f"At {CLICK_LEVEL:.0%} intervals and {options.power:.0%} power, for one comparison.", soft_wrap=True)


def _measured(log: Log, names: list[str]) -> tuple[Spread, float, str]:
    """The spread of two policies on the log, the baseline's click rate, and what they are called."""
    # only policies need torch
    from replay.evaluation.comparison import evaluate

    given = names if len(names) == 2 else ["logged", *names]
    if len(set(given)) < 2:
        raise InputError("--policy logged alone would be compared with itself. Give another policy.")
    result = evaluate(log, given)
    compared = result.to_dict().get("differences")
    if compared is None:
        raise InputError(f"These policies cannot be compared. {result.notes[-1]}")
    (row,) = [row for row in compared["rows"] if row["replica"] is None]
    if row["effect"] is None:
        raise InputError("These policies have no matched click, so nothing is known of how far they differ.")
    rate = next(p for p in result.policies if p["policy"] == compared["baseline"])["replicas"][0]["ips"]
    return Spread(row["per_event"], row["unmet"]), rate, f"{row['policy']} and {compared['baseline']}"
