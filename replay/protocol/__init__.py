"""What an agent is shown and what counts: features, candidate sets, rejection."""
