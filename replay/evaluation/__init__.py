"""Off-policy evaluation of frozen agents: estimators, shards of a log, processes."""
