"""What all layers stand on: checks, the environment, types, units, logging, counters. It imports no other layer."""
