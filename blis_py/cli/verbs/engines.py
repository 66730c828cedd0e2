"""`blis engines`: the engine presets that are bundled."""

from __future__ import annotations

from blis_py.cli.flags.flag import Flags
from blis_py.cli.verbs._listing import GROUPS, show
from blis_py.config.derived import RULES
from blis_py.config.engine import load_engine, names
from blis_py.config.models import DEFAULT_ENGINE

__all__ = ["GROUPS", "engines"]

_COLUMNS = {
    "name": "engine",
    "releases": "releases",
    "setting": "setting",
    "value": "value",
    "source": "source",
}


def engines(flags: Flags) -> None:
    """List the engine presets: what each sets, and where that is from."""

    rows = [
        {
            "name": name,
            "title": engine.title,
            "releases": " to ".join(engine.releases),
            "setting": key,
            "value": RULES[engine.rules[key]].text if key in engine.rules else engine.settings[key],
            "source": source,
        }
        for name in names()
        for engine in [load_engine(name)]
        for key, source in engine.sources.items()
    ]
    more = (
        f"Default: {DEFAULT_ENGINE}. Flags and configuration override it; another engine: --engine FILE.",
        "A release (vllm-0.12, sglang-0.5.14) is another name of the preset whose releases it is among: "
        "between them no default that is simulated changed, or only where a rule names the release.",
    )
    show(flags, rows, _COLUMNS, more)
