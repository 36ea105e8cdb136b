"""End-to-end tests, the demo and the benchmark: real mounts, real processes, real loaders."""
