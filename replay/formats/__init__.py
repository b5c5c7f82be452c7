"""Sources of logs: the Open Bandit Dataset and the bundled samples."""
