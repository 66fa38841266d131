"""Speed, measured: `make bench` runs everything here and rewrites docs/benchmarks.md."""
