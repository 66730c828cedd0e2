"""`python -m blis_py` is `blis`."""

import sys

from blis_py.cli import main

sys.exit(main())
