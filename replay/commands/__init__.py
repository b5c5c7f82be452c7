"""The commands of ``python -m replay``.

Each command is a module with its own name. The module's docstring is the description in the command's help,
``add_arguments(parser)`` declares the options, and ``run(options)`` does the work.
"""

COMMANDS = {
    "schema": "look at a table and write a first schema for it",
    "convert": "convert a table of clicks, or the Open Bandit Dataset, to a log",
    "simulate": "simulate a log whose true click rates are known",
    "info": "show what a log holds",
    "evaluate": "estimate what agents and other policies would have earned on a log",
    "power": "tell how many events a difference takes, and what a log can show",
}
"""Each command with its one-line help. The modules are imported only when their command is called."""
