"""The parts of matplotlib that figures are made of; without it, one error that says so."""

from blis_py.files.packages import extra

with extra("plots", "a figure"):
    from matplotlib import rc_context as rc_context
    from matplotlib.figure import Figure as Figure
    from matplotlib.lines import Line2D as Line2D
    from matplotlib.ticker import FuncFormatter as FuncFormatter
    from matplotlib.ticker import LogLocator as LogLocator
    from matplotlib.ticker import MaxNLocator as MaxNLocator
    from matplotlib.ticker import NullFormatter as NullFormatter
    from matplotlib.ticker import NullLocator as NullLocator
