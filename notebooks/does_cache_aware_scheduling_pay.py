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
# # Does cache-aware scheduling pay?
#
# A prefix cache finds what happens to be there. `lpm` (longest prefix match) serves first who finds most
# of its prompt there now. That should save work. Does it, and who pays?
#
# **Answer:** Up to 5 requests per second it changes nothing; at 40, lpm finds 72% of the prompt tokens
# and fcfs 49%. Within 2 s (p99 TTFT) lpm serves 15 requests per second, fcfs 10.
#
# *Step times are `trained`, learned from measurements of vLLM; the traffic, thirty prompts of 4,000
# tokens that are sent again and again with a trickle of others, is made up to need a cache. [The
# guide](../docs/cache-aware.md) has a production trace, too.*

# %%
import os

import pandas as pd
from IPython.display import display

import blis_py as blis
from blis_py.metrics.reuse import clairvoyant, unlimited

SMALL = "BLIS_NOTEBOOK_SMALL" in os.environ
NUM_REQUESTS = 400 if SMALL else 1500
RATES = (10, 30) if SMALL else (5, 10, 15, 20, 25, 30, 35, 40)
STREAM = {
    "workload": "hot-prefix",
    "num_requests": NUM_REQUESTS,
    "model": "llama-3.1-8b",
    "num_kv_blocks": 4000,
    "prefix_cache": "radix",
}

# %% [markdown]
# ## What there is to win
#
# The cache holds 4,000 blocks, some fifteen of the thirty prompts. Two bounds come from the requests
# alone: what a cache that forgets nothing would find, and what any cache of this size can find at best as
# long as requests are served in order of arrival (Belady's rule). If the two are far apart, the order is
# worth changing.

# %%
table = blis.build(**STREAM).table
ceiling = unlimited(table, block_size=16).hit_rate
in_order = clairvoyant(table, block_size=16, num_blocks=4000).hit_rate
print(f"nothing is ever forgotten: {ceiling:.0%}; at best in order of arrival: {in_order:.0%}")

# %% [markdown]
# ## Hits, waiting and throughput over the load

# %%
runs = [
    blis.run(**STREAM, rate=rate, scheduler=scheduler, slo="ttft.p99=2s")
    for scheduler in ("fcfs", "sjf", "lpm")
    for rate in RATES
]
display(blis.figures.hit_rate(runs))
display(blis.figures.throughput_latency(runs))


# %%
def most(scheduler):
    """Requests per second, of those tried, up to which the p99 time to the first token stays below 2 s."""
    own = [run for run in runs if run.config.scheduler.policy == scheduler]
    return max((run.config.workload.rate for run in own if run.summary["slo"][0]["met"]), default=0)


rates = {scheduler: most(scheduler) for scheduler in ("fcfs", "sjf", "lpm")}
hits = {
    (run.config.scheduler.policy, run.config.workload.rate): run.summary["cluster"]["prefix_hit_rate"]
    for run in runs
}
last = RATES[-1]
answer = (
    f"Up to {RATES[0]} requests per second it changes nothing; at {last}, lpm finds {hits['lpm', last]:.0%} "
    f"of the prompt tokens and fcfs {hits['fcfs', last]:.0%}. Within 2 s (p99 TTFT) lpm serves "
    f"{rates['lpm']:g} requests per second, fcfs {rates['fcfs']:g}."
)
print(answer)

# %% [markdown]
# At low load all lines meet: without a queue there is nothing to choose, and every order finds the same.
# With a queue, `lpm` finds more the longer it is, so there is less to compute, and it takes more load
# until the queue grows without end (hollow points). Shortest first (`sjf`) finds no more than order of
# arrival. At the highest rate more than 128 requests wait; from there on `lpm` is order of arrival too, as
# in SGLang (`--lpm-max-queue`), and finds less again.
#
# ## Who pays
#
# A request with nothing in the cache is overtaken as long as others have. The stream has two tenants: *hot*
# asks the thirty prompts, *cold* shares nothing. At the highest load:

# %%
by_tenant = []
for run in runs:
    if run.config.workload.rate == last:
        waits = run.requests.groupby("tenant", observed=True).ttft_ms.quantile([0.5, 0.99]).unstack() / 1000
        by_tenant.append(
            waits.round(2)
            .rename(columns={0.5: "TTFT p50, s", 0.99: "TTFT p99, s"})
            .assign(scheduler=run.config.scheduler.policy)
        )
shown = pd.concat(by_tenant).reset_index().set_index(["scheduler", "tenant"])
display(shown)

# %% [markdown]
# With `lpm` the cold ones wait longer than the hot ones at the median, and still far shorter than in
# order of arrival; `sjf` serves them at once, their prompts being short. `--fairness-ms` bounds how long
# a request is overtaken; a bound below the usual wait is order of arrival again, and costs all of the hits.

# %%
bounds = [
    blis.run(**STREAM, rate=last, scheduler="lpm", fairness_ms=bound)
    for bound in (0, 1000, 3000, 10_000, None)
]
for run in bounds:
    cluster, bound = run.summary["cluster"], run.config.scheduler.fairness_ms
    cold = run.requests[run.requests.tenant == "cold"].ttft_ms.quantile(0.99) / 1000
    name = "none" if bound is None else f"{bound / 1000:g} s"
    print(f"bound {name:>4}: {cluster['prefix_hit_rate']:.0%} found, cold TTFT p99 {cold:5.1f} s")

# %% [markdown]
# ## When it does not pay
#
# Three things have to come together: a queue, prompts that share beginnings, and a cache that cannot keep
# all of them. With room for everything, order of arrival finds as much:

# %%
roomy = {
    scheduler: blis.run(**STREAM | {"num_kv_blocks": 10_000}, rate=last, scheduler=scheduler)
    for scheduler in ("fcfs", "lpm")
}
for scheduler, run in roomy.items():
    print(f"10,000 blocks, {scheduler}: {run.summary['cluster']['prefix_hit_rate']:.0%} found")
