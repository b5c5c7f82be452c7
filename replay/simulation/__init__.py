"""Worlds whose truth is known."""
