"""Run many experiments: sweeps, comparisons of methods and tuning, on one device or on a Ray cluster."""
