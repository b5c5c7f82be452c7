"""Simulated worlds, whose true click rates are known."""
