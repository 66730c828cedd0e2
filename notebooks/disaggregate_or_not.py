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
# # Disaggregate or not?
#
# Six GPUs, a chat, two targets. Should each GPU do everything, or some of them prompts and the others
# tokens? And how many of each?
#
# **Answer:** At 30 requests/s yes, for even tokens: 4p2d has a p99 ITL of 9 ms instead of 26 ms and keeps
# both targets, at a p99 TTFT of 158 ms instead of 123 ms. At 6 requests/s there is nothing to gain: 7 ms
# together. Over 25 Gb/s it loses: p99 TTFT 2492 ms.

# %%
import os

import matplotlib.pyplot as plt
from IPython.display import display

import blis_py as blis

SMALL = "BLIS_NOTEBOOK_SMALL" in os.environ
LOAD = {"model": "llama-3.1-8b", "gpu": "h100", "workload": "chat", "num_requests": 120 if SMALL else 600}
LAYOUTS = ("6", "2p4d", "4p2d") if SMALL else ("6", "1p5d", "2p4d", "3p3d", "4p2d", "5p1d")
TTFT_MS, ITL_MS = 200, 14


def run(rate, xpyd, **settings):
    return blis.run(**LOAD, rate=rate, xpyd=xpyd, **settings)


def p99(result, metric):
    return result.summary["cluster"][f"{metric}_ms"]["p99"]


# %% [markdown]
# ## Every layout at one rate
#
# `4p2d` is four instances for prefill and two for decode; `6` is six that do both. Requests, arrivals and
# the seed are the same.

# %%
at_30 = {xpyd: run(30, xpyd) for xpyd in LAYOUTS}
for xpyd, result in at_30.items():
    ttft, itl = p99(result, "ttft"), p99(result, "itl")
    kept = (ttft <= TTFT_MS) + (itl <= ITL_MS)
    print(f"{xpyd:4}: p99 TTFT {ttft:4.0f} ms, p99 ITL {itl:4.1f} ms: {kept} of 2 targets")

# %% [markdown]
# Together, every long prompt is a step that the decodes beside it wait for: the p99 of ITL is that of a
# step with a prompt in it. Apart, no decode waits for a prompt. What that costs is in the first token: its
# prompt waits for fewer instances, its KV for the link, and vLLM computes the last prompt token again on
# the decode instance.
#
# ## Where the first token's time goes

# %%
apart = at_30["4p2d"].summary
for name, ms in apart["handovers"].items():
    if name.endswith("_ms"):
        print(f"{name.removeprefix('handover_').removesuffix('_ms'):12} {ms:6.2f} ms on average")
for name, pool in apart["pools"].items():
    print(f"{name:8} busy {pool['busy_pct']:.0f} %")

# %% [markdown]
# ## Both pools over time

# %%
display(at_30["4p2d"].plot.timeline())

# %% [markdown]
# ## Over the rate
#
# Few requests never meet a prompt: below some rate there is nothing to gain. Far above it the prefill
# instances are the bottleneck, and their queue is all of the TTFT.

# %%
RATES = (6, 30) if SMALL else (6, 12, 20, 30, 45, 60, 80)
both = {xpyd: [run(rate, xpyd) for rate in RATES] for xpyd in ("6", "4p2d", "2p4d")}
figure, axes = plt.subplots(1, 2, figsize=(10, 3.2))
for ax, metric, limit in zip(axes, ("ttft", "itl"), (TTFT_MS, ITL_MS), strict=True):
    for xpyd, results in both.items():
        ax.plot(RATES, [p99(result, metric) for result in results], marker="o", label=xpyd)
    ax.axhline(limit, color="black", linewidth=0.8, linestyle="--")
    ax.set(title=f"p99 {metric.upper()}, ms", xlabel="requests a second", ylim=(0, 2.5 * limit))
axes[0].legend()
plt.close(figure)
display(figure)

# %% [markdown]
# ## The link
#
# The same layout over slower links: at 25 Gb/s the KV of a prompt takes longer than its computation, and
# transfers wait for each other.

# %%
LINKS = ("ndr400", "eth25") if SMALL else ("nvlink", "ndr400", "roce200", "eth100", "eth25")
links = {link: run(30, "4p2d", pd_link=link) for link in LINKS}
for link, result in links.items():
    found = result.summary["handovers"]
    wire, queue = found["handover_wire_ms"], found["handover_link_queue_ms"]
    ttft = p99(result, "ttft")
    print(f"{link:8} p99 TTFT {ttft:5.0f} ms; wire {wire:5.1f}, waiting for the link {queue:5.1f} ms")

# %%
low, together, divided = both["6"][0], at_30["6"], at_30["4p2d"]
slow = p99(links["eth25"], "ttft")
answer = (
    f"At 30 requests/s yes, for even tokens: 4p2d has a p99 ITL of {p99(divided, 'itl'):.0f} ms instead of "
    f"{p99(together, 'itl'):.0f} ms and keeps both targets, at a p99 TTFT of {p99(divided, 'ttft'):.0f} ms "
    f"instead of {p99(together, 'ttft'):.0f} ms. At {RATES[0]} requests/s there is nothing to gain: "
    f"{p99(low, 'itl'):.0f} ms together. Over 25 Gb/s it loses: p99 TTFT {slow:.0f} ms."
)
print(answer)

# %% [markdown]
# `blis plan --disaggregate auto` asks all of this at once; what each engine does between prefill and
# decode is in [the guide](../docs/disaggregation.md).
