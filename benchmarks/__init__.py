"""How fast Heliograph is on this machine: `make bench`, or `python -m benchmarks --quick --only publish`."""
