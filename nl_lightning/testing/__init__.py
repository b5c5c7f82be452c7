"""Conformance suites: run them on a class of your own, as our own classes do.

    from nl_lightning.testing import check_agent, check_design, check_environment, check_exploration

    def test_my_agent():
        check_agent(MyAgent)

Each raises an AssertionError that says which promise is broken.
"""

from nl_lightning.testing.agents import check_agent
from nl_lightning.testing.designs import check_design
from nl_lightning.testing.environments import check_environment
from nl_lightning.testing.exploration import check_exploration

__all__ = ["check_agent", "check_design", "check_environment", "check_exploration"]
