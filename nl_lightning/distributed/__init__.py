"""Replicas over devices and nodes."""
