"""``python -m benchmarks.claims NAME``: make the runs that are missing, then tables, checks and curves."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.claims.parsing import load
from benchmarks.claims.records import Records
from benchmarks.claims.report import write
from benchmarks.claims.runner import ZOO, Runner, plan
from benchmarks.claims.spec import SpecError

ROOT = Path(__file__).parents[2]


def main(args: Sequence[str] | None = None, root: Path = ROOT, command: Sequence[str] = ZOO) -> int:
    """Run and report.

    Args:
        args: the command line.
        root: the repository.
        command: what ``zoo`` is called as.

    Returns:
        The exit status: 0; 1 if a run failed; 2 for a claims file that makes no sense; 130 if interrupted.
    """
    options = _parser().parse_args(args)
    try:
        claims = load(options.name, root)
        runs = plan(claims, root, options.seeds, options.arms)
        failed = [] if options.report_only else Runner(claims, root, options.jobs, command).run(runs)
        print(write(claims, Records(root, claims.name)))
    except SpecError as error:
        print(f"claims: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("claims: interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    for run in failed:
        print(f"claims: failed: {run}, see {Records(root, claims.name).folder(run.key)}/log.txt", file=sys.stderr)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m benchmarks.claims", description=__doc__)
    parser.add_argument("name", help="claims file: benchmarks/claims/NAME.yaml")
    parser.add_argument("--seeds", type=_count, metavar="N", help="at most N seeds per arm")
    parser.add_argument("--jobs", type=_count, metavar="J", default=os.cpu_count() or 1, help="runs at the same time")
    parser.add_argument("--arms", type=lambda text: text.split(","), metavar="a,b", help="only these arms")
    parser.add_argument("--report-only", action="store_true", help="make no runs")
    return parser


def _count(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
