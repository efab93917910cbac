"""See `benchmarks.traces`."""

from benchmarks.traces import main

main()
