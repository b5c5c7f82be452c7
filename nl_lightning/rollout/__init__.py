"""The round loop: deal, score, accept, update."""
