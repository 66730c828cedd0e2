"""From the raw record of a run to everything printed, plotted and written: start with `summarise`."""

from __future__ import annotations

from blis_py.metrics.frames import requests_frame, steps_frame, write_requests_csv, write_steps_csv
from blis_py.metrics.summary import summarise

__all__ = ["requests_frame", "steps_frame", "summarise", "write_requests_csv", "write_steps_csv"]
