"""Fitting step times: samples in, a profile out."""

from blis_py.calibrate.fit.fit import fit
from blis_py.latency.fitted_profile import FittedProfile, read_profile, write_profile

__all__ = ["FittedProfile", "fit", "read_profile", "write_profile"]
