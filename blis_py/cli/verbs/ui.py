"""`blis ui`: the interactive page."""

from __future__ import annotations

from blis_py.cli.flags.configure import configure
from blis_py.cli.flags.flag import Flag, Flags
from blis_py.cli.flags.options import COMMON, WORKLOAD
from blis_py.errors import InputError
from blis_py.files.packages import extra

OPENED = "opened"
_PORT, _NO_BROWSER, _END_WITH = "--port", "--no-browser", "--end-with"
_FLAGS = (
    Flag(
        OPENED, str, "", "Workload spec, trace, or folder of a result. Default: an example.", metavar="PATH"
    ),
    Flag(_PORT, int, "", "Port on the loopback address. Default: any that is free."),
    Flag(_NO_BROWSER, bool, "", "Print the link, and open no browser."),
    Flag(_END_WITH, int, "", "End with the process of this number.", metavar="PID", hidden=True),
)
_OWN = tuple(flag.name for flag in _FLAGS)
GROUPS = (("Page", _FLAGS), *COMMON, ("Workload", WORKLOAD))


def ui(flags: Flags) -> None:
    """Open a local page that simulates again while settings are moved.

    The page is at the printed link, on this machine alone, until Ctrl-C.
    """
    with extra("ui", "the page"):
        import fastapi  # noqa: F401
        import jinja2  # noqa: F401
        import uvicorn  # noqa: F401
    from blis_py.ui.base import opened
    from blis_py.ui.server import serve

    port = flags.get(_PORT, 0)
    if not 0 <= port < 65536:
        raise InputError("must be a port", key=_PORT, value=port, fix="drop it for any that is free")
    given = {name: value for name, value in flags.items() if name not in _OWN}
    base = opened(flags.get(OPENED), configure(given) if given else None)
    if _END_WITH in flags:
        from blis_py.planning.orphans import end_with

        end_with(flags[_END_WITH])
    serve(base, port=port, browser=_NO_BROWSER not in flags)
