"""What every layer may use: no algorithm and no Lightning."""
