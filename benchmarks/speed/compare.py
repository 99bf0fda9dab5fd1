"""What became slower or faster: ``python -m benchmarks.speed.compare OLD.json NEW.json``; exits with 1 if anything became worse."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

TOLERANCE = 0.05


def changes(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, float]]:
    """Figures of rows that both have and that differ by more than ``TOLERANCE``, with new over old.

    Ratios to the peer are compared rather than seconds, which differ between machines; a case without a peer has only those.
    """
    before = {(row["variant"], row["threads"]): row for row in old["rows"]}
    found = []
    for row in new["rows"]:
        if (past := before.get((row["variant"], row["threads"]))) is None:
            continue
        for name in ("ratio", "memory") if "ratio" in row else ("cpu", "peak"):
            values = [one[name] if "ratio" in row else one["ours"][name] for one in (past, row)]
            if abs(values[1] / values[0] - 1) > TOLERANCE:
                found.append((f"{row['variant']}, {row['threads']} threads: {name}", values[1] / values[0]))
    return found


def main(old: str, new: str) -> int:
    found = changes(*(json.loads(Path(path).read_text()) for path in (old, new)))
    for name, change in found:
        print(f"{name} x {change:.2f}")
    return int(any(change > 1 for _, change in found))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
