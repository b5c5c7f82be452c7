"""The paper's experiments: its figures and its table, in one command."""
