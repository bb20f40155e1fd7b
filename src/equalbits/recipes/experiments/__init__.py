"""Run many experiments: sweeps, comparisons of methods, tuning, on one device or on a Ray cluster."""
