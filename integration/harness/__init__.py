"""What the demo, the benchmark and the tests share: a mounted daemon, and the program under test in new processes."""
