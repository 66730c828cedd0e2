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
# # What do SLO classes buy, and who pays?
#
# People chat with an assistant and complete code; machines summarise documents and generate test
# data. All of them share one cluster of Qwen3-14B on H100. Does it matter that the scheduler has their
# classes? How many instances does it save, and at whose expense?
#
# **Answer:** This hour takes 6 instances with priority-fcfs and 12 with fcfs.
#
# The rest of this page is how we know, who pays for it, and how far to trust it. The settings of the
# engine are those that [a plan for this hour](how_many_gpus_for_this_hour.ipynb) came to.
#
# *What the numbers rest on: the engine is the newest vLLM that we know, and its step times are those of
# `trained`: datasheets, corrected by what kernels and steps of vLLM were measured to take. `roofline`, the
# datasheet alone, is the cross-check in the last section.*

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import display

import blis_py as blis
from blis_py.core.features import StepFeatures

plt.style.use("blis_py.figures.notebook")
pd.set_option("display.width", 140, "display.max_columns", 20)

# %% [markdown]
# The whole hour by default. A number of requests in the environment variable makes a shorter
# experiment: the beginning of the same hour.

# %% tags=["parameters"]
WORKLOAD = "mixed-slo"
INSTANCES = range(3, 13)
NUM_REQUESTS = int(os.environ.get("BLIS_NOTEBOOK_NUM_REQUESTS", "0")) or None
SEED = 42
SLO = {"ttft": "critical=500ms,standard=1s", "itl": "critical=50ms"}
GOAL = 0.99

# %% [markdown]
# ## The traffic
#
# One hour, four tenants, three requests per second. The chat (*critical*) and the code completion
# (*standard*) have the lengths of a production trace, the Azure LLM inference trace 2023. The rate,
# and what machines send (*batch*, *background*), are an illustration.

# %%
COLOURS = {"critical": "#d62728", "standard": "#1f77b4", "batch": "#2ca02c", "background": "#8c8c8c"}


def simulation(num_instances, scheduler, latency_model="trained"):
    """Everything resolved, nothing run yet."""
    return blis.build(
        workload=WORKLOAD,
        num_requests=NUM_REQUESTS,
        seed=SEED,
        model="qwen3-14b",
        gpu="h100",
        max_num_batched_tokens=1024,
        num_instances=num_instances,
        scheduler=scheduler,
        latency_model=latency_model,
        goodput_by_class=SLO,
    )


table = simulation(1, "fcfs").table
classes = np.array(table.slo_class.names)[table.slo_class.codes]
minute = table.arrival_ns / 60e9
bins = np.arange(0, np.ceil(minute.max()) + 1)

figure, axes = plt.subplots(1, 2, figsize=(10, 3.2), layout="constrained")
for ax, weights, title in (
    (axes[0], np.ones(len(table)), "Requests per minute"),
    (axes[1], table.prompt_tokens / 1e6, "Prompt tokens per minute, millions"),
):
    ax.hist(
        [minute[classes == name] for name in COLOURS],
        bins=bins,
        weights=[weights[classes == name] for name in COLOURS],
        stacked=True,
        color=COLOURS.values(),
        label=COLOURS.keys(),
    )
    ax.set(title=title, xlabel="minute")
    ax.margins(x=0)
axes[0].legend(ncols=4, loc="upper left", fontsize=8, columnspacing=1)
axes[0].set_ylim(top=axes[0].get_ylim()[1] * 1.12)
plt.show()

traffic = pd.DataFrame({"prompt": table.prompt_tokens, "output": table.output_tokens, "class": classes})
totals = traffic.groupby("class").agg(
    requests=("prompt", "size"), prompt_tokens=("prompt", "sum"), output_tokens=("output", "sum")
)
display((totals / totals.sum()).loc[list(COLOURS)].map("{:.0%}".format))

# %% [markdown]
# By number of requests the documents (green) are a quarter; of the tokens they are more than half.
# And they come in bursts, some hundreds at a time: in such a minute they outweigh all the others many
# times over. That is what the people have to be protected from.
#
# ## What "served well" means
#
# - chat: the first token within 500 ms, and on average no more than 50 ms from token to token;
# - code completion: the first token within 1 s;
# - documents and test data: no target. They have to get done, and we will look at what happens to
#   them.
#
# The goal is that **99 % of the requests that have a target meet all of theirs** (SLO attainment).
#
# ## How many instances
#
# The same hour on 3 to 12 instances behind a round-robin router, once first come first served, once by
# class.


# %%
def outcome(result):
    """What we compare runs by."""
    cluster, by_class = result.summary["cluster"], result.summary["classes"]
    return {
        "instances": cluster["num_instances"],
        "scheduler": result.config.scheduler.policy,
        "attainment": cluster["goodput"]["attainment"],
        "goodput, requests/s": cluster["goodput"]["requests_per_s"],
        "critical TTFT p99, ms": by_class["critical"]["ttft_ms"]["p99"],
        "standard TTFT p99, ms": by_class["standard"]["ttft_ms"]["p99"],
        "batch E2E p99, s": by_class["batch"]["e2e_ms"]["p99"] / 1000,
        "background TTFT p99, s": by_class["background"]["ttft_ms"]["p99"] / 1000,
        "preemptions": cluster["preemptions"],
    }


FORMATS = {
    "attainment": "{:.2%}",
    "goodput, requests/s": "{:.2f}",
    "critical TTFT p99, ms": "{:,.0f}",
    "standard TTFT p99, ms": "{:,.0f}",
    "batch E2E p99, s": "{:.1f}",
    "background TTFT p99, s": "{:.1f}",
    "preemptions": "{:,}",
}


def show(runs):
    """A data frame of outcomes, rounded for people."""
    display(runs.assign(**{name: runs[name].map(form.format) for name, form in FORMATS.items()}))


runs = {
    (count, scheduler): simulation(count, scheduler).run(record_steps=False)
    for scheduler in ("fcfs", "priority-fcfs")
    for count in INSTANCES
}
sweep = pd.DataFrame([outcome(result) for result in runs.values()])
show(sweep.set_index(["scheduler", "instances"]))


# %%
def smallest(scheduler):
    """The fewest instances that reach the goal, or None."""
    enough = sweep[(sweep.scheduler == scheduler) & (sweep.attainment >= GOAL)]
    return int(enough.instances.min()) if len(enough) else None


figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
for scheduler, colour in (("fcfs", "#e08214"), ("priority-fcfs", "#08519c")):
    rows = sweep[sweep.scheduler == scheduler]
    axes[0].plot(rows.instances, 100 * rows.attainment, "o-", color=colour, label=scheduler)
    axes[1].plot(rows.instances, rows["critical TTFT p99, ms"] / 1000, "o-", color=colour, label=scheduler)
    if found := smallest(scheduler):
        chosen = rows[rows.instances == found]
        axes[0].plot(found, 100 * chosen.attainment, "o", ms=13, mfc="none", mec=colour, mew=1.6)
axes[0].axhline(100 * GOAL, color="#222222", lw=1, ls="--")
axes[0].annotate(
    f"goal: {GOAL:.0%}", (INSTANCES[0], 100 * GOAL), (0, 4), textcoords="offset points", fontsize=9
)
axes[0].set(title="Chat and code that met their targets, %", xlabel="instances", ylim=(None, 101.5))
axes[0].yaxis.set_major_formatter("{x:g}")
axes[0].legend(loc="lower right")
axes[1].axhline(0.5, color="#222222", lw=1, ls="--")
axes[1].annotate("target: 500 ms", (4, 0.5), (0, 4), textcoords="offset points", fontsize=9)
axes[1].set(title="Critical class: TTFT p99, s", xlabel="instances", yscale="log")
axes[1].yaxis.set_major_formatter("{x:g}")
for ax in axes:
    ax.set_xticks(list(INSTANCES))
plt.show()

# %%
traffic_is = "hour" if NUM_REQUESTS is None else "part of the hour"
by_class, by_arrival = smallest("priority-fcfs"), smallest("fcfs")
answer = f"This {traffic_is} takes {by_class} instances with priority-fcfs and {by_arrival} with fcfs."
print(answer)

# %% [markdown]
# Circles mark the smallest cluster that reaches the goal. First come first served has to be so large
# that even a burst of documents leaves no queue, because each request after a burst waits for all of
# it. With priorities the people overtake the queue, and the cluster only has to be large enough for
# *them*, and for the documents in the long run.
#
# ## What the policy does at the tight size
#
# The smallest cluster of the sweep that is large enough with priorities, under four policies. `sjf`
# (shortest prompt first) ignores classes; `reverse-priority` is deliberately wrong and shows what
# the order is worth.

# %%
tight = smallest("priority-fcfs") or INSTANCES[-1]
policies = {
    scheduler: runs.get((tight, scheduler)) or simulation(tight, scheduler).run(record_steps=False)
    for scheduler in ("priority-fcfs", "sjf", "fcfs", "reverse-priority")
}
compared = pd.DataFrame([outcome(result) for result in policies.values()])
show(compared.drop(columns="instances").set_index("scheduler"))

# %%
LINES = {"priority-fcfs": "#08519c", "sjf": "#41ab5d", "fcfs": "#e08214", "reverse-priority": "#a50f15"}
figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained", width_ratios=(1.35, 1))
for scheduler, result in policies.items():
    frame = result.requests
    # Clients that gave up before the first token waited longer than all that got one.
    ttft_s = np.sort(frame.ttft_ms[frame.slo_class == "critical"].fillna(np.inf)) / 1000
    style = {"color": LINES[scheduler], "lw": 1.8, "ls": ":" if scheduler == "reverse-priority" else "-"}
    axes[0].plot(ttft_s, 100 * (1 - np.arange(len(ttft_s)) / len(ttft_s)), label=scheduler, **style)
    batch = frame[frame.slo_class == "batch"]
    done = np.sort(batch.e2e_ms.dropna()) / 1000
    axes[1].plot(done, 100 * np.arange(1, len(done) + 1) / len(batch), **style)
axes[0].axvline(0.5, color="#222222", lw=1, ls="--")
axes[0].annotate("target", (0.5, 60), (4, 0), textcoords="offset points", fontsize=9)
axes[0].set(xscale="log", yscale="log", ylim=(0.05, 110))
axes[0].set(title="Critical: % of requests that wait longer", xlabel="time to first token, s")
axes[0].xaxis.set_major_formatter("{x:g}")
axes[0].yaxis.set_major_formatter("{x:g}")
axes[0].legend(loc="upper right")
axes[1].set(title="Batch: % of documents done", xlabel="time from submission, s", ylim=(0, 101))
axes[1].set_xlim(left=0)
plt.show()

# %% [markdown]
# Left, on logarithmic scales, the share of chat requests that wait longer than a given time for their
# first token; the further left the better. Most requests meet no queue at all, and there all policies
# are alike. The difference is in the few per cent that arrive during a burst: by class nearly all of
# them still start within half a second, in order of arrival they wait up to tens of seconds.
#
# Right, who pays: not the documents. They get done at about the same times under all policies,
# because the short requests in front of them are little work beside their own. The bill goes to the
# *background* class, last in line, whose test data no user waits for, and it is a small one (last
# columns of the table): about a second more at the 99th percentile.
#
# `sjf` does as well for the people, without knowing about classes, since their prompts happen to be
# shorter than the documents. It would fail them as soon as a user pastes a long text
# into the chat, and it is the longest documents that wait for all the others.
#
# ## How far to trust it
#
# Step times decide everything, so here is one, priced three ways: a prompt of 1,024 tokens alone in
# its step, which is all that a step may have here.

# %%
prompt = StepFeatures(
    prefill_seqs=1,
    prefill_tokens=1024,
    prefill_pairs=1024 * 1025 // 2,
    prefill_prompt_pairs=1024 * (1024 + 512),
    emitted_rows=1,
)
for name in ("trained", "roofline", "trained-physics"):
    print(f"{name:15} {simulation(1, 'fcfs', name).latency.step_ns(prompt) / 1e6:5.1f} ms")
# 2 operations per weight and token, 13.2e9 weights in the layers, 989.5e12 dense 16-bit operations per second
print(f"{'datasheet peak':15} {2 * 13.2e9 * 1024 / 989.5e12 * 1e3:5.1f} ms at the very least")

# %% [markdown]
# `trained` and `roofline` agree on it. `trained-physics`, the coefficients published for BLIS, needs less
# time than the datasheet peak allows: good to know before believing any absolute number of it. So the same
# search once more, priced by `roofline`, upwards from the smallest cluster found above:

# %%
second = {}
for scheduler in ("priority-fcfs", "fcfs"):
    for count in range(tight, 4 * tight):
        result = simulation(count, scheduler, "roofline").run(record_steps=False)
        second[scheduler, count] = outcome(result)
        if second[scheduler, count]["attainment"] >= GOAL:
            print(f"roofline: {scheduler} reaches the goal on {count} instances")
            break
show(pd.DataFrame(second.values()).set_index(["scheduler", "instances"]))

# %% [markdown]
# The cross-check comes to the same 6 and 12, as it should where two models price steps alike. That says
# little about what both leave out; [real engines, predicted against measured](../docs/trust.md) say more.
#
# What this page does not show: a router that looks at the load, requests that come back (multi-turn),
# instances that start and stop. And one hour is one sample. Other seeds bring other bursts: with
# seeds 1 to 5 the first search finds 4 to 8 instances with priority-fcfs and 8 to 18 with fcfs, two to three
# times as many each time.
#
# To try it on your own traffic, the same from the command line:
#
# ```
# blis run --workload mixed-slo --model qwen3-14b --gpu h100 --num-instances 6 \
#     --scheduler priority-fcfs --max-num-batched-tokens 1024 \
#     --slo-ttft critical=500ms,standard=1s --slo-itl critical=50ms
# ```
#
# Instead of `--workload`, `--trace FILE` takes a recorded hour, and `--slo-shares` deals out classes.
