"""Former name of `blis_py.report.saved`, still accepted; `blis_py` itself exports both."""

from blis_py.report.saved import SavedResult, load

__all__ = ["SavedResult", "load"]
