"""Where logs come from: the Open Bandit Dataset, the bundled samples."""
