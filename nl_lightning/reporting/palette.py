"""The colours of all pictures and pages: those of Okabe and Ito, which people with any colour vision tell apart.

Their yellow is left out, which is hard to see on white. An agent has the same colour everywhere. What is drawn beside
agents, such as the logging policy, is grey.
"""

from collections.abc import Sequence
from itertools import product

from nl_lightning.agents import AGENTS

__all__ = ["AGENT_COLOURS", "COLOURS", "DASHES", "GREY", "OTHERS", "OURS", "style_numbers"]

GREY = "#767676"

COLOURS = ("#000000", "#56B4E9", "#E69F00", "#0072B2", "#D55E00", "#009E73", "#CC79A7", GREY)
"""One for every agent that comes with the library, in their order; grey for Greedy, the control."""

AGENT_COLOURS: dict[str, str] = dict(zip(AGENTS, COLOURS, strict=False))

OURS, OTHERS = "#D55E00", ("#0072B2", "#009E73", GREY)
"""Where this library stands beside others."""

DASHES = ("-", (0, (6, 2)), (0, (1, 1.5)), (0, (6, 1.5, 1, 1.5)), (0, (10, 3)), (0, (3, 1)))
"""Line styles, for curves beyond the number of colours."""


def style_numbers(agents: Sequence[str]) -> list[tuple[int, int]]:
    """The places of every curve's colour and dashes, no two the same.

    The first curve of an agent has that agent's colour and a solid line, further ones what is free.
    """
    names = list(AGENT_COLOURS)
    found: dict[int, tuple[int, int]] = {}
    for place, agent in enumerate(agents):
        if agent in names and agent not in agents[:place]:
            found[place] = (names.index(agent), 0)
    free = (
        (colour, dash)
        for dash, colour in product(range(len(agents) + 1), range(len(COLOURS)))
        if (colour, dash) not in found.values()
    )
    return [found[place] if place in found else next(free) for place in range(len(agents))]
