"""The commands of ``python -m replay``."""
