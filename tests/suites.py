"""Runs the suites one after another and closes with one line of counts.

    python -m tests.suites [--strict] [--lanes N] [SUITE...] [PYTEST OPTION...]

Each suite is a process of its own, so that one that leaves threads, mappings or a crash behind cannot touch the
next. With ``--strict`` (CI) a suite that skips a test, or executes none, fails. With ``--lanes`` several run beside
each other, many of them wait most of the time; what each says is shown when it has ended. There a few tests that fail
are tried once more: on a busy machine a time-out is no verdict. The summary says how many.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "build" / "test-reports"
SUITES = (
    "lint",
    "unit",
    "contract",
    "integration",
    "cluster",
    "metrics",
    "faults",
    "torture",
    "packaging",
    "helm",
    "browser",
)
# Run only when named: these need more than .venv.
BY_MAKE = {"vllm": "test-vllm-core", "image": "test-image", "pythons": "test-pythons"}
OPTIONS = {"pythons": "--short"}
FEW = 6  # tests that are tried a second time; when more fail, something is wrong
ALONE = ("unit", "contract")  # they look at the clock here and there, and have the machine for themselves
APART = ("gpu",)  # needs hardware that CI does not have
BIN = Path(sys.executable).parent
LINT = {
    "format": [str(BIN / "ruff"), "format", "--check", "."],
    "lint": [str(BIN / "ruff"), "check", "."],
    "types": [sys.executable, "-m", "mypy"],
    "import arrows": [str(BIN / "lint-imports"), "--no-cache"],
    "generated code": ["sh", "proto/generate.sh", "--check", sys.executable],
}


@dataclass
class Outcome:
    """What one suite did. ``problems`` are for people; any of them fails the suite."""

    suite: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    again: int = 0  # that passed when they were tried a second time
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


def run_lint(out: IO[str]) -> Outcome:
    outcome = Outcome("lint")
    for name, command in LINT.items():
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        print(f"lint: {name}: {'ok' if done.returncode == 0 else 'FAILED'}", flush=True, file=out)
        outcome.passed += done.returncode == 0
        if done.returncode:
            print(done.stdout + done.stderr, flush=True, file=out)
            outcome.failed += 1
            outcome.problems.append(f"{name}: {' '.join(command)}")
    return outcome


def run_pytest(suite: str, arguments: list[str], out: IO[str], again: bool = False) -> Outcome:
    """``again``: a few tests that fail are tried once more."""
    cache = ["-o", f"cache_dir={ROOT / 'build' / 'pytest-cache' / suite}"]
    outcome = _pytest(suite, [*arguments, *cache], out)
    if not again or not 0 < outcome.failed <= FEW:
        return outcome
    print(f"\n===== {suite}: what failed, once more =====", flush=True, file=out)
    second = _pytest(suite, [*arguments, *cache, "--last-failed", "--last-failed-no-failures=none"], out)
    if second.failed or second.problems or second.passed < outcome.failed:
        return outcome
    return Outcome(suite, outcome.passed + second.passed, 0, outcome.skipped, second.passed)


def _pytest(suite: str, arguments: list[str], out: IO[str]) -> Outcome:
    REPORTS.mkdir(parents=True, exist_ok=True)
    report = REPORTS / f"{suite}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", f"tests/{suite}", f"--junitxml={report}", "--durations=5", *arguments]
    return read_report(suite, report, call(command, out))


def run_make(suite: str, out: IO[str]) -> Outcome:
    REPORTS.mkdir(parents=True, exist_ok=True)
    report = REPORTS / f"{suite}.xml"
    report.unlink(missing_ok=True)
    command = ["make", "--no-print-directory", BY_MAKE[suite], f"ARGS={OPTIONS.get(suite, '')} --junitxml={report}"]
    return read_report(suite, report, call(command, out))


def call(command: list[str], out: IO[str]) -> int:
    """Runs a command; its exit status."""
    out.flush()
    return subprocess.run(command, cwd=ROOT, check=False, stdout=out, stderr=subprocess.STDOUT).returncode


def read_report(suite: str, report: Path, code: int) -> Outcome:
    """Counts from pytest's own report; a run that died before writing it has failed."""
    outcome = Outcome(suite)
    if not report.exists():
        outcome.failed, outcome.problems = 1, [f"pytest exited {code} without a report"]
        return outcome
    for run in ElementTree.parse(report).iter("testsuite"):
        counts = {name: int(run.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
        outcome.failed += counts["failures"] + counts["errors"]
        outcome.skipped += counts["skipped"]
        outcome.passed += counts["tests"] - counts["failures"] - counts["errors"] - counts["skipped"]
    if code not in (0, 5):
        outcome.problems.append(f"pytest exited {code}")
        outcome.failed = outcome.failed or 1
    return outcome


def forgotten() -> list[str]:
    """Folders of tests that no suite runs."""
    folders = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").rglob("test_*.py")}
    return sorted(folders - {*SUITES, *BY_MAKE, *APART})


def run(suite: str, arguments: list[str], strict: bool, out: IO[str], again: bool = False) -> Outcome:
    print(f"\n===== {suite} =====", flush=True, file=out)
    began = time.monotonic()
    if suite == "lint":
        outcome = run_lint(out)
    else:
        outcome = run_make(suite, out) if suite in BY_MAKE else run_pytest(suite, arguments, out, again)
        if suite in BY_MAKE and again and 0 < outcome.failed <= FEW:
            outcome = run_make(suite, out)
    outcome.seconds = time.monotonic() - began
    if outcome.passed + outcome.failed == 0:
        outcome.problems.append("executed no test")
    if strict and outcome.skipped:
        outcome.problems.append(f"skipped {outcome.skipped}")
    return outcome


def run_beside(suites: list[str], arguments: list[str], strict: bool, lanes: int) -> list[Outcome]:
    """Several at a time; what each printed comes in one piece."""

    def one(suite: str) -> Outcome:
        print(f"{suite} begins", flush=True)
        with tempfile.TemporaryFile("w+", errors="replace") as out:
            outcome = run(suite, arguments, strict, out, True)
            out.seek(0)
            print(out.read(), flush=True)
        return outcome

    alone = [run(suite, arguments, strict, sys.stdout, True) for suite in suites if suite in ALONE]
    with ThreadPoolExecutor(lanes) as pool:
        return alone + list(pool.map(one, (suite for suite in suites if suite not in ALONE)))


def summarise(outcomes: list[Outcome]) -> int:
    """Prints the closing lines; the exit status."""
    print("\n===== summary =====")
    for one in outcomes:
        state = "FAILED: " + "; ".join(one.problems) if one.problems or one.failed else "ok"
        counts = f"{one.passed} passed, {one.failed} failed, {one.skipped} skipped"
        state += f" ({one.again} at the second attempt)" if one.again else ""
        print(f"{one.suite:12} {counts:40} {one.seconds:7.1f} s  {state}")
    bad = [one for one in outcomes if one.problems or one.failed]
    passed, skipped = sum(one.passed for one in outcomes), sum(one.skipped for one in outcomes)
    failed = sum(max(one.failed, 1) if one in bad else 0 for one in outcomes)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if bad else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"none: {', '.join(SUITES)}")
    parser.add_argument("--strict", action="store_true", help="a skipped test fails")
    parser.add_argument("--lanes", type=int, default=1, choices=range(1, 9), metavar="N", help="suites at a time")
    options, arguments = parser.parse_known_args()
    known = (*SUITES, *BY_MAKE)
    unknown = [suite for suite in options.suites if suite not in known]
    if unknown:
        parser.error(f"no suite {unknown[0]!r}; there are {', '.join(known)}")
    if options.strict and forgotten():
        parser.error(f"tests/{forgotten()[0]} is in no suite")
    wanted = options.suites or list(SUITES)
    if options.lanes > 1:
        return summarise(run_beside(wanted, arguments, options.strict, options.lanes))
    return summarise([run(suite, arguments, options.strict, sys.stdout) for suite in wanted])


if __name__ == "__main__":
    sys.exit(main())
