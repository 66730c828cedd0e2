"""What a wheel has beside `blis_py`: the engine under its installed name, native code, addresses.

Where there is a C compiler, a wheel contains the translation of the inner loop. Without a compiler, or where
compiling fails, the wheel is pure Python and does the same, later. `BLIS_PURE_WHEEL=1` makes a pure wheel in
any case. An editable installation has use for neither: its sources are going to change (`make native`).
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

HOME = "BLIS_HOME_URL"
"""In the environment: the address of the repository that publishes, for the metadata."""


class UrlsHook(MetadataHookInterface):
    """Adds the addresses of the project, where the repository that publishes has one."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Sets `urls`."""
        home = os.environ.get(HOME, "").rstrip("/")
        if home:
            metadata["urls"] = {
                "Homepage": home,
                "Documentation": f"{home}/tree/main/docs",
                "Changelog": f"{home}/blob/main/CHANGELOG.md",
                "Issues": f"{home}/issues",
            }


class WheelHook(BuildHookInterface):
    """Adds engine and native modules, and says for which interpreter and system the wheel is then."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles, unless the checkout has native code that is up to date."""
        if version == "editable":
            return
        sys.path[:0] = [self.root, str(Path(self.root, "release"))]
        self._scratch = tempfile.TemporaryDirectory()
        scratch = Path(self._scratch.name)
        self._add_engine(scratch / "renamed", build_data)
        if not os.environ.get("BLIS_PURE_WHEEL"):
            self._add_native(scratch / "native", build_data)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """All is in the wheel."""
        if scratch := getattr(self, "_scratch", None):
            scratch.cleanup()

    def _add_engine(self, folder: Path, build_data: dict[str, Any]) -> None:
        from engine_package import write

        write(Path(self.root), folder)
        files = (path for path in sorted(folder.rglob("*")) if path.is_file())
        build_data["force_include"] |= {str(path): path.relative_to(folder).as_posix() for path in files}

    def _add_native(self, folder: Path, build_data: dict[str, Any]) -> None:
        from blis_py import native

        home = native.folder()
        if not _up_to_date():
            home = folder
            home.mkdir()
            if not self._compiled(home):
                return
        place = f"blis_py/native/{sys.implementation.cache_tag}"
        build_data["pure_python"], build_data["infer_tag"] = False, True
        build_data["force_include"] |= {
            str(file): f"{place}/{file.relative_to(home).as_posix()}" for file in _files(home)
        }

    def _compiled(self, home: Path) -> bool:
        from blis_py.errors import InputError
        from blis_py.native.build import build

        os.environ["BLIS_NATIVE"] = str(home)  # this process makes a wheel and nothing else
        try:
            build()
        except (InputError, OSError) as error:
            self.app.display_warning(f"a wheel without native code: {error}")
            return False
        return True


def _up_to_date() -> bool:
    from blis_py.native import Damaged, current

    with suppress(Damaged):
        return bool(current())
    return False


def _files(home: Path) -> list[Path]:
    return [file for file in sorted(home.rglob("*")) if file.suffix in (".so", ".pyd", ".json")]
