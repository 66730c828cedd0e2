# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # FDFO for diffusion LLMs
#
# A diffusion language model fills in a block of 32 tokens at a time, in rounds, and blocks differ in how
# many they take. A synchronous batch lasts as long as its slowest block. *First done, first out* lets
# every block leave when it is final, and puts the next one in its place. What is that worth, and on what
# does it depend?
#
# **Answer:** With a spread of a quarter of the mean, 1.28 times the throughput at 4 slots and 1.46 times
# at 16, and nothing without spread; on the tiny model's own problems 2.1 times at 16 slots.
#
# *Rounds per block are drawn, or those that the engine of this repository measured on a tiny model; a
# round takes a millisecond unless said otherwise. Ratios of rounds do not depend on that, tokens per
# second do.*

# %%
import os
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import display

import blis_py as blis
from blis_py.figures.style import SERIES, sign, style

SMALL = "BLIS_NOTEBOOK_SMALL" in os.environ
PER_SLOT = 10 if SMALL else 40
SLOTS = (2, 4, 16) if SMALL else (2, 4, 16, 64)
SPREADS = (0.0, 0.25) if SMALL else (0.0, 0.1, 0.2, 0.25, 0.3, 0.4)
FOLDER = Path(tempfile.mkdtemp())
ROUND = {"model": "linear", "linear": {"gpu": {"step": 1_000_000}}}
MODEL = {"model": "llada2.0-mini", "block_size": 32, "latency": ROUND}

# %% [markdown]
# ## Three blocks
#
# Blocks of 3, 8 and 2 rounds, in one batch. When does each client get its block?

# %%
(FOLDER / "rounds.csv").write_text("3\n8\n2\n")
(FOLDER / "three.yaml").write_text(
    "kind: diffusion\nblock_size: 32\ncommit_rounds: 0\nsteps: {sequences: rounds.csv}\n"
)
(FOLDER / "three.csv").write_text("arrival_s,input_tokens,output_tokens\n0,1,31\n0,1,31\n0,1,31\n")


def three(fdfo):
    return blis.run(
        trace=FOLDER / "three.csv",
        dllm_workload=str(FOLDER / "three.yaml"),
        max_num_seqs=3,
        dllm_fdfo=fdfo,
        **MODEL,
    )


modes = {"synchronous": three(False), "first done, first out": three(True)}
ends = pd.DataFrame(
    {name: result.requests.e2e_ms.to_numpy() for name, result in modes.items()}, index=list("ABC")
)
ends.index.name = "round in which it is there"
display(ends.astype(int))
waited = {name: result.summary["cluster"]["diffusion"]["idle_block_rounds"] for name, result in modes.items()}
print(f"block-rounds spent waiting for others: {waited}")

# %% [markdown]
# ## What it depends on
#
# On the spread of rounds (standard deviation over mean), and on how many slots wait for the slowest.
# There is always another block to come:


# %%
def tokens_per_s(slots, spread, fdfo):
    (FOLDER / "steps.yaml").write_text(f"kind: diffusion\nsteps: {{mean: 12.5, cv: {spread}}}\n")
    one_block = {
        f"{side}_tokens{part}": size
        for side, size in (("prompt", 1), ("output", 31))
        for part in ("", "_min", "_max")
    }
    result = blis.run(
        dllm_workload=str(FOLDER / "steps.yaml"),
        dllm_fdfo=fdfo,
        max_num_seqs=slots,
        rate=1e6,
        timeout=None,
        num_requests=PER_SLOT * slots,
        seed=4,
        **one_block,
        **MODEL,
    )
    return result.summary["cluster"]["throughput"]["output_tokens_per_s"]


gains = pd.DataFrame(
    {
        slots: [tokens_per_s(slots, spread, True) / tokens_per_s(slots, spread, False) for spread in SPREADS]
        for slots in SLOTS
    },
    index=pd.Index(SPREADS, name="spread"),
)

with style():
    figure, ax = plt.subplots(figsize=(8, 4), layout="constrained")
    for slots, colour, marker in zip(SLOTS, SERIES, "osD^", strict=False):
        ax.plot(gains.index, gains[slots], marker=marker, ms=4, color=colour, label=f"{slots} slots")
    for slots, published in ((4, 1.30), (16, 1.45)):
        ax.axhline(published, color=SERIES[SLOTS.index(slots)], lw=1, ls=(0, (3, 2)))
    ax.set_title("Throughput of FDFO over synchronous batches; dashed: published, 4 and 16 slots")
    ax.set_xlabel("spread of rounds per block (standard deviation / mean)")
    ax.legend()
    sign(
        figure, "block diffusion, 12.5 rounds per block on average, always a queue · every round equally long"
    )
    plt.show()

# %% [markdown]
# Without spread there is nothing to gain. The two published gains (1.30 and 1.45 times, LLaDA2.0-mini on
# an H200) are reached at the same spread, about a quarter: one property of the model explains both.
#
# ## With traffic
#
# Gains in throughput are had when there is a queue; before, they are gains in waiting. Problems as the
# tiny diffusion model solves them, with its measured rounds, coming at rising rates:

# %%
TRAFFIC = {
    "workload": "diffusion-tiny",
    "num_requests": 300 if SMALL else 1500,
    "model": "llada2.0-mini",
    "gpu": "h200",
    "latency_model": "roofline",
    "block_size": 32,
    "max_num_seqs": 16,
}
RATES = (100, 400) if SMALL else (50, 100, 150, 200, 250, 300, 400)
runs = [blis.run(**TRAFFIC, rate=rate, dllm_fdfo=fdfo) for fdfo in (True, False) for rate in RATES]
display(blis.figures.throughput_latency(runs, by=["dllm.fdfo"]))

# %%
busy = {run.config.dllm.fdfo: run for run in runs if run.config.workload.rate == RATES[-1]}
rate_of = {fdfo: run.summary["cluster"]["throughput"]["output_tokens_per_s"] for fdfo, run in busy.items()}
quarter = gains.loc[0.25]
answer = (
    f"With a spread of a quarter of the mean, {quarter[4]:.2f} times the throughput at 4 slots and "
    f"{quarter[16]:.2f} times at 16, and nothing without spread; on the tiny model's own problems "
    f"{rate_of[True] / rate_of[False]:.1f} times at 16 slots."
)
print(answer)
for fdfo, run in busy.items():
    blocks = run.summary["cluster"]["diffusion"]
    print(
        f"fdfo {fdfo!s:5}: {blocks['mean_denoise_blocks']:.1f} of 16 blocks at work in the mean round, "
        f"{blocks['idle_block_rounds']:,} block-rounds of waiting"
    )

# %% [markdown]
# `--dllm-fdfo` is the default; `--no-dllm-fdfo` is the synchronous batch. Two further switches save the
# host's time between rounds, see [the guide](../docs/diffusion.md), where all of this is also compared
# with the engine.
