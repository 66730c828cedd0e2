"""The revision of the code, with git or without."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_CODE = ("engine", "blis_py", "benchmarks")
_SOURCES = (".py", ".cu", ".cuh")
_DIGITS = 12
CHANGED = "-changed"
"""At the end of a commit: files were changed since."""
TREE = "tree:"
"""Before the hash of the sources, which is a part of every revision: equal ones are of the same code."""


def revision() -> str:
    """The name of this revision and the hash of its sources, as in `0a1b2c tree:3d4e5f`.

    The name is `$GPU_REVISION`, else the commit of the repository, else what a file `REVISION` beside the
    packages holds; without any of these the hash stands alone.
    """
    text = os.environ.get("GPU_REVISION", "").strip()
    return f"{text or _checked_out() or _noted()} {TREE}{tree()}".strip()


def tree() -> str:
    """Hash of the sources' paths and contents as they are now, of the packages that are there."""
    digest = hashlib.sha256()
    paths = (path for folder in _CODE for path in (ROOT / folder).rglob("*") if path.suffix in _SOURCES)
    for path in sorted(paths):
        digest.update(f"{path.relative_to(ROOT)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:_DIGITS]


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
