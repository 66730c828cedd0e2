"""Optional packages: extras of blis-py install them, and they are imported on first use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from blis_py.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


class MissingPackage(InputError, ImportError):
    """A package that an extra installs is missing."""


@contextmanager
def extra(name: str, what: str) -> Iterator[None]:
    """Around the import of a package that an extra installs.

    Args:
        name: of the extra.
        what: the part of the program that needs the package, for the message.

    Raises:
        MissingPackage: it is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "a package").partition(".")[0]
        fix = f"pip install 'blis-py[{name}]'"
        raise MissingPackage(f"{what} needs {package}, which is not installed", fix=fix) from None


def installed(*packages: str) -> bool:
    """Whether all of these packages can be imported; none of them is."""
    return all(find_spec(package) is not None for package in packages)


def data_frame(data: Any) -> pd.DataFrame:
    """A data frame of columns by name, or of rows.

    Raises:
        MissingPackage: pandas is not installed.
    """
    with extra("frames", "a data frame"):
        import pandas as pd

    return pd.DataFrame(data)


def scipy() -> Any:
    """SciPy with its solvers.

    Raises:
        MissingPackage: it is not installed.
    """
    with extra("fit", "a fit"):
        import scipy.linalg
        import scipy.optimize

    return scipy
