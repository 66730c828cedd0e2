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
# # How many GPUs for this hour of traffic?
#
# People chat with an assistant and complete code; machines summarise documents and generate test data.
# All of them share one cluster of Qwen3-14B. How many H100s does it take until the people are served well,
# with which settings, and how sure is that?
#
# **Answer:** 5 H100 with `priority-fcfs` and 1,024 tokens a step keep the targets, but only in 60% of the
# draws of step times; one more does in 90%, and holds up to 1.23 times the rate. *(An hour of an
# illustrative workload; step times by `trained`: [how far to trust it](../docs/trust.md).)*
#
# To ask it of your own hour, put `trace="FILE"` in the place of `workload`.

# %%
import os
import tempfile
from pathlib import Path

from IPython.display import display

import blis_py as blis

SMALL = "BLIS_NOTEBOOK_SMALL" in os.environ
NUM_REQUESTS = 1500 if SMALL else None  # None: the whole hour
PRECISION = {"draws": 4, "most_requests": 1500} if SMALL else {"draws": 20}

# %% [markdown]
# ## The question
#
# What must be kept, and what may be chosen. The chat (*critical*) and the code completion (*standard*) have
# users waiting, the documents (*batch*) and the test data (*background*) have not: they have to get done.
# Free to choose are the number of instances, whose turn it is in the queue, and how many tokens a step may
# have: vLLM's default here, half, or an eighth.

# %%
LOAD = {"workload": "mixed-slo", "num_requests": NUM_REQUESTS, "model": "qwen3-14b", "gpu": "h100"}
SLO = ("critical.ttft.p99=500ms", "critical.tpot.p99=50ms", "standard.ttft.p99=1s")
CHOICES = {"scheduler": ["fcfs", "priority-fcfs"], "max_num_batched_tokens": [8192, 4096, 1024]}

plan = blis.plan(**LOAD, slo=SLO, vary=CHOICES, instances="1:16", workers=2, **PRECISION)
print(plan)

# %% [markdown]
# The first line is the answer, the rest is what one has to know before buying it: by how much each target is
# kept, at which rate the first of them breaks, what is short there, what comes second, and what other step
# times would say. How sure it is comes from running it again with step times as far off as `trained` was on
# models it had not seen. Where that leaves doubt, the next line says what one instance more would do.
#
# ## The picture of it

# %%
display(plan.plot())

# %% [markdown]
# Top left, every combination and the least number of instances that holds; one that gets no bar was given up
# as soon as it was known to cost more. What decides is not the GPU but two settings:

# %%
for each in plan.standings:
    point = ", ".join(str(value) for value in each.point.values())
    holds = "nothing it could cost" if each.least is None else f"{'at most ' * each.at_most}{each.least}"
    print(f"{point:19} holds with {holds}; with {each.fails_at} it {each.why}")

# %% [markdown]
# Documents fill a step up to its 8,192 tokens, and such a step takes a third of a second: the next
# word of every answer waits for it (*prefill interference*), and so does every new request. Small steps let
# the answers through in between. And without classes the people queue up behind some hundreds of documents,
# which only a cluster several times as large would have worked off in time.
#
# ## Check it
#
# `plan.config` is the whole configuration. Running it once more gives everything that a run gives.

# %%
result = blis.run(plan.config)
display(result)

# %%
display(result.plot())

# %% [markdown]
# ## What if there is more of it?
#
# The same cluster, one instance more than the plan found, which is what we would buy: at which rate does it
# break?

# %%
more = blis.plan(
    **LOAD,
    slo=SLO,
    **plan.best.point,
    num_instances=plan.best.instances + 1,
    max_rate=True,
    workers=2,
    **PRECISION,
)
print(more)

# %%
answer = (
    f"{plan.best.instances} H100 with `{plan.best.point['scheduler']}` and "
    f"{plan.best.point['max_num_batched_tokens']:,} tokens a step keep the targets, but only in "
    f"{plan.probability:.0%} of the draws of step times; one more does in {more.probability:.0%}, and holds "
    f"up to {more.max_rate_factor:.2f} times the rate."
)
print(answer)

# %% [markdown]
# ## Take it along
#
# A folder with the answer, the picture, the configuration, and what starts the servers:

# %%
folder = Path(tempfile.mkdtemp()) / "answer"
plan.save(str(folder))
print(*sorted(path.name for path in folder.iterdir()))
print((folder / "vllm.sh").read_text())

# %% [markdown]
# The same from the command line:
#
# ```
# blis plan --workload mixed-slo --model qwen3-14b --gpu h100 --instances 1:16 \
#     --vary scheduler=fcfs,priority-fcfs max_num_batched_tokens=8192,4096,1024 \
#     --slo critical.ttft.p99=500ms critical.tpot.p99=50ms standard.ttft.p99=1s --out answer
# ```
#
# What this page does not show: other GPUs and degrees of tensor parallelism (`--vary gpu=h100,l40s tp=1,2`),
# routers that look at the load, and that one hour is one sample: `--seed` draws another one. What the classes
# change, and who pays for it, is in [SLO classes and who pays](slo_classes_and_who_pays.ipynb).
