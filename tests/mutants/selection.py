"""The tests that import a module, those first that are closest to it."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator
from pathlib import Path

LEFT_OUT = (
    *("benchmarks", "browser", "docs", "engine", "fuzz", "gpu", "lint", "mutants", "notebooks", "pages"),
    *("report", "serve", "soak", "ui"),
)
"""Folders of tests that are about other things, depend on the machine's pace, or take minutes."""
BATTERY = "tests/golden/battery"
"""Whole runs, which need no pytest."""


class Selection:
    """Who imports whom, in a checkout; imports inside functions count."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._modules = {_dotted(path, root): path for path in (root / "blis_py").rglob("*.py")}
        self._helpers = {path.stem: path for path in (root / "tests").rglob("*.py")}
        self._imports: dict[Path, set[Path]] = {}
        self.tests = [
            path
            for path in sorted((root / "tests").rglob("test_*.py"))
            if path.relative_to(root / "tests").parts[0] not in LEFT_OUT and BATTERY not in str(path)
        ]
        self.runs = sorted(str(path.relative_to(root)) for path in (root / BATTERY / "runs").glob("*.txt"))

    def of(self, module: str, own: bool = False) -> list[str]:
        """Test files that import it, directly or not, those of its part first, relative to the checkout.

        Args:
            own: no others than those of its part.
        """
        target, part = self._modules[module], module.split(".")[1]
        found = []
        for path in self.tests:
            name = path.relative_to(self._root)
            if own and name.parts[1] != part:
                continue
            if steps := self._distance(path, target):
                found.append((name.parts[1] != part, steps, str(name)))
        return [name for _, _, name in sorted(found)]

    def _distance(self, test: Path, target: Path) -> int:
        """Imports between the two; 0 = it is not imported."""
        seen, queue = {test}, deque([(test, 0)])
        while queue:
            path, steps = queue.popleft()
            for other in self._imported(path):
                if other == target:
                    return steps + 1
                if other not in seen:
                    seen.add(other)
                    queue.append((other, steps + 1))
        return 0

    def _imported(self, path: Path) -> set[Path]:
        if path not in self._imports:
            self._imports[path] = set(self._read(path))
        return self._imports[path]

    def _read(self, path: Path) -> list[Path]:
        tree = ast.parse(path.read_bytes())
        found: list[Path | None] = []
        text = path.read_text(encoding="utf-8")
        found += self._named(tree) if "import_module" in text else []
        found += self._modules.values() if "walk_packages" in text else []
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found += [self._place(alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.append(self._place(node.module))
                found += [self._place(f"{node.module}.{alias.name}") for alias in node.names]
        return [place for place in found if place is not None and place != path]

    def _named(self, tree: ast.AST) -> Iterator[Path]:
        """Modules that a table of texts may mean, such as `mooncake:read`."""
        texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        names = {str(text).partition(":")[0].rpartition(".")[2] for text in texts if isinstance(text, str)}
        for module, path in self._modules.items():
            if module.rpartition(".")[2] in names:
                yield path

    def _place(self, name: str) -> Path | None:
        return self._modules.get(name) or self._helpers.get(name)


def _dotted(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
