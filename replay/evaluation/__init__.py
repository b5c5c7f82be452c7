"""What a frozen policy would have earned: estimators, shards, processes."""
