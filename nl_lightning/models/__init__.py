"""Reward models over R replicas, and TrainNN."""
