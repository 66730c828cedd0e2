"""The revision of the code, with git or without."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_CODE = ("engine", "blis_py", "benchmarks")
CHANGED = "-changed"
"""Suffix of a revision with uncommitted changes."""


def revision() -> str:
    """The commit of this checkout, with a mark if files have changed since; "" = unknown.

    Without git or a repository it comes from `$GPU_REVISION`, which takes precedence, or from a file
    `REVISION` beside the packages.
    """
    told = os.environ.get("GPU_REVISION", "").strip()
    return told or _checked_out() or _noted()


def _noted() -> str:
    try:
        return (ROOT / "REVISION").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _checked_out() -> str:
    """Commit of the repository that contains this package, not of an enclosing one."""
    top = _git("rev-parse", "--show-toplevel")
    if not top or Path(top).resolve() != ROOT:
        return ""
    commit = _git("rev-parse", "HEAD")
    changed = commit and _git("status", "--porcelain", "--untracked-files=no", "--", *_CODE)
    return commit + CHANGED if changed else commit


def _git(*arguments: str) -> str:
    """Output of git; empty without git or a repository."""
    try:
        done = subprocess.run(
            ("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
