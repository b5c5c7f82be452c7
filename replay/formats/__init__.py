"""Sources of logs: tables of one's own, the Open Bandit Dataset and the bundled samples."""
