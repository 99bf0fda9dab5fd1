"""One file a case: `VARIANTS`, `PEER`, `check`, `ours`, `peer`, and `flops` where a limit is known."""
