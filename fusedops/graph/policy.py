"""May a site that could be replaced be replaced? Correctness is settled before this is asked."""

from __future__ import annotations

from fusedops import config


def refusal() -> str | None:
    """Why the active settings leave this site alone, or None."""
    if config.active().fuse == "never":
        return 'config: fuse="never"'
    return None
