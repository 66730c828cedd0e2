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
# # Your first run in five minutes
#
# What will a cluster of GPUs do with my traffic? Simulate it: a model, a GPU, how many of them, and
# requests. No GPU is needed, and an hour of traffic takes about a second.

# %%
import os
import tempfile
from pathlib import Path

from IPython.display import display

import blis_py as blis

SMALL = "BLIS_NOTEBOOK_SMALL" in os.environ
NUM_REQUESTS = 300 if SMALL else 3000
RATES = (25, 50) if SMALL else (25, 50, 75, 100, 125)

# %% [markdown]
# ## Run
#
# Chat traffic, 50 requests a second, on two H100, each with a whole Llama-3.1-8B. The target is ours: 99
# of 100 people see the first word within 200 ms. (`help(blis.run)` lists everything that can be set; on
# the command line the same words are flags, `blis run --workload chat --rate 50 ...`.)

# %%
CLUSTER = {"model": "llama-3.1-8b", "gpu": "h100", "workload": "chat", "num_requests": NUM_REQUESTS}
result = blis.run(**CLUSTER, rate=50, num_instances=2, slo="ttft.p99=200ms")
display(result)

# %% [markdown]
# TTFT is the time to the first token, TPOT the mean time per further one, E2E from sending to the last
# token; p99 is what one request in a hundred exceeds ([definitions](../docs/metrics.md)). The last line
# says what was run, and the word in front whether the cluster keeps up at all. If it does not, no latency
# below means anything.
#
# ## Look

# %%
display(result.plot())

# %% [markdown]
# `result.plot.` completes to the other [figures](../docs/figures.md). The time to the first token by
# itself, with the target: the curve has to pass above the ring.

# %%
display(result.plot.ttft())

# %% [markdown]
# Every request is a row, with pandas from there on:

# %%
columns = ["prompt_tokens", "output_tokens", "ttft_ms", "tpot_ms", "e2e_ms"]
display(result.requests[columns].describe(percentiles=[0.5, 0.99]).round(1))

# %% [markdown]
# ## Ask "what if"
#
# A question that takes several runs is a loop. How much traffic do two, three and four instances carry?

# %%
runs = [
    blis.run(**CLUSTER, rate=rate, num_instances=count, slo="ttft.p99=200ms")
    for count in (2, 3, 4)
    for rate in RATES
]
display(blis.figures.throughput_latency(runs, by=["num_instances"]))

# %%
for count in (2, 3, 4):
    good = [
        r.config.workload.rate for r in runs if r.config.num_instances == count and r.summary["slo"][0]["met"]
    ]
    print(f"{count} instances hold the target at up to {max(good, default=0):g} of the rates tried")

# %% [markdown]
# ## Keep it
#
# A folder holds everything: the configuration that runs it again, every request, every step, the figures.
# `blis.load` brings it back.

# %%
folder = result.save(Path(tempfile.mkdtemp()) / "chat", plots=False)
print(*sorted(path.name for path in folder.iterdir()))
again = blis.load(folder)
print(again.summary == result.summary)

# %% [markdown]
# ## Go on
#
# - Your own traffic: `blis.replay("trace.csv", model=...)`, see [Your first run](../docs/first-run.md).
# - How far to trust the step times: [Where step times come from](../docs/latency.md).
# - [How many GPUs for this hour?](how_many_gpus_for_this_hour.ipynb), and [what do SLO classes buy, and who
#   pays?](slo_classes_and_who_pays.ipynb)
