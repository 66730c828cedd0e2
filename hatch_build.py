"""Native code for wheels: where there is a C compiler, a wheel contains the translation of the inner loop.

Without a compiler, or where compiling fails, the wheel is pure Python and does the same, later. An editable
installation has no use for it: its sources are going to change (`make native`). `HATCH_BUILD_NO_HOOKS=true`
makes a pure wheel in any case.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeHook(BuildHookInterface):
    """Adds the native modules, and says for which interpreter and system the wheel is then."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles, unless the checkout has native code that is up to date."""
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        from blis_py import native

        home = native.folder()
        if not _up_to_date():
            self._scratch = tempfile.TemporaryDirectory()
            home = Path(self._scratch.name)
            if not self._compiled(home):
                return
        place = f"blis_py/native/{sys.implementation.cache_tag}"
        build_data["pure_python"], build_data["infer_tag"] = False, True
        build_data["force_include"].update(
            {str(file): f"{place}/{file.relative_to(home).as_posix()}" for file in _files(home)}
        )

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """All is in the wheel."""
        if scratch := getattr(self, "_scratch", None):
            scratch.cleanup()

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
