"""Schedulers of real engines, run from their wheels beside the scheduler core on random scenarios.

Start with `check.py`, the command. It draws scenarios (`scenarios.py`), runs each through the release's own
scheduler in a child process (`child.py`, `vllm_child.py`) and through ours under the preset of that release
(`ours.py`), and compares the two traces step by step (`compare.py`, `shrink.py`). An engine is a file and a
line in `registry.py`.
"""
