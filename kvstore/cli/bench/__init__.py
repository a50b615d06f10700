"""Benchmarks of ``kvstore bench``: each makes a :class:`kvstore.cli.bench.report.Report`."""
