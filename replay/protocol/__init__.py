"""What an agent is shown of a log and what counts: features, candidate sets, rejection sampling."""
