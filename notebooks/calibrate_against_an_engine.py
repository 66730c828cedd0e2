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
# # Calibrate against an engine and read the autopsy
#
# A simulator predicts how long requests will take. How good is the prediction, and if it is not good,
# what is wrong with it? Measure an engine, let it serve, predict what it did, compare, and ask why
# they differ. The error is split into causes that sum to the whole, each with a fix to try.
#
# Everything here is measured while the page is built: a real engine serves a small trained model on
# one CPU core. The core is shared with others, so no two runs give the same milliseconds, and nothing
# below depends on them. On a GPU the procedure is the same.

# %%
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import display
from matplotlib.ticker import LogLocator, NullFormatter

import blis_py as blis
from blis_py.calibrate.autopsy import autopsy
from blis_py.calibrate.compare import calibrate
from blis_py.calibrate.fit.accuracy import features_of, validate
from blis_py.calibrate.parity import replay_steps
from blis_py.calibrate.recorded import scheduler_config
from blis_py.calibrate.rerun import measured_times, rerun
from blis_py.core.features import StepFeatures
from blis_py.figures.waterfall import waterfall
from blis_py.latency.fitted import Fitted
from blis_py.latency.fitted_profile import read_profile
from blis_py.sensitivity.reruns import Reruns
from blis_py.traces.samples import medians, samples_of
from engine.build import build_engine
from engine.cli.profile import fit_profile
from engine.config import EngineConfig
from engine.driver import serve
from engine.profile.run import Effort, profile
from engine.synthetic import as_prompted, synthetic_prompts

plt.style.use("blis_py.figures.notebook")
pd.set_option("display.width", 140, "display.max_columns", 20, "display.max_colwidth", 120)

# %% [markdown]
# The environment variable makes a smaller experiment of it.

# %% tags=["parameters"]
SMALL = "BLIS_NOTEBOOK_SMALL" in os.environ
MODEL = str(Path(blis.__file__).resolve().parents[1] / "engine" / "tiny" / "checkpoints" / "ar")
EFFORT = Effort("quick", 2, 0) if SMALL else Effort("full", 5, 0)
NUM_REQUESTS = 40 if SMALL else 80
NUM_KV_BLOCKS, MAX_NUM_SEQS = 128, 16
FOLDER = Path(tempfile.mkdtemp())

# %% [markdown]
# ## 1. Measure what steps take
#
# The engine is brought to a planned grid of batch compositions (decodes of several sizes and
# contexts, prompts, mixtures), and each is timed several times over, in turns, so that a busy minute
# does not hit one of them alone. `clock="steady"` counts the CPU time of the engine's thread, and how
# much of it the same work takes just now: what the other users of this machine do meanwhile is left
# out as far as possible.

# %%
settings = EngineConfig(model=MODEL, device="cpu", clock="steady", max_num_seqs=MAX_NUM_SEQS)
measured_profile = profile(settings, EFFORT, FOLDER)
problem = fit_profile(measured_profile.folder, measured_profile.samples)
assert problem is None, problem
latency = Fitted(read_profile(FOLDER))
print(latency.provenance)

# %% [markdown]
# What `blis profile show` prints as coefficients, as a picture: every composition of the grid, and
# what the fit makes of it.

# %%
COLOURS = ["#333333", "#1f77b4", "#d95f02", "#2ca02c", "#9467bd"]


def against(ax, title, **points):
    """Predicted over measured, by label (x, y) in ms, with the ±10 % band."""
    everything = np.concatenate([np.concatenate(pair) for pair in points.values()])
    low, high = 0.92 * np.nanmin(everything), 1.08 * np.nanmax(everything)
    line = np.array([low, high])
    ax.fill_between(line, 0.9 * line, 1.1 * line, color="#1f77b4", alpha=0.15, lw=0, label="±10 %")
    ax.plot(line, line, color="#888888", lw=1)
    for (label, (x, y)), colour in zip(points.items(), COLOURS, strict=False):
        ax.plot(x, y, "o", ms=3.5, alpha=0.6, color=colour, label=label)
    ax.set(title=title, xlabel="measured, ms", ylabel="predicted, ms", xlim=line, ylim=line)
    if high > 8 * low:
        ax.set(xscale="log", yscale="log")
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter(NullFormatter())


def priced_ms(samples):
    """What the profile says that each measured step takes."""
    return np.array([latency.step_ns(features) / 1e6 for features in features_of(samples)])


shapes = medians(measured_profile.samples)
grid = {}
for source in ("decode", "skewed", "prefill", "mixed"):
    of_source = shapes.where(shapes["source"] == source)
    grid[source] = (of_source["total_ns"] / 1e6, priced_ms(of_source))
figure, ax = plt.subplots(figsize=(4.6, 4.2), layout="constrained")
against(ax, "Compositions of the grid", **grid)
ax.legend(loc="upper left", fontsize=8)
plt.show()

# %% [markdown]
# ## 2. Let the engine serve
#
# Requests arrive at random times, as many per second as keep about eight of them running, whatever
# the speed of the machine. They are served with continuous batching, paged KV memory and all: the
# scheduler is the one that the simulator uses. The engine writes down every step in its step log.
# (`blis engine run` does this from the command line, and keeps it as a folder.)

# %%
decode_of_8 = StepFeatures(decode_seqs=8, decode_kv_tokens=8 * 140, max_context=160, emitted_rows=8)
WORKLOAD = {
    "rate": round(0.85 * 8 / (40 * latency.step_ns(decode_of_8) / 1e9), 1),
    "num_requests": NUM_REQUESTS,
    "prompt_tokens": 120,
    "prompt_tokens_stdev": 60,
    "prompt_tokens_max": 300,
    "output_tokens": 40,
    "output_tokens_stdev": 20,
    "output_tokens_max": 120,
}
simulation = blis.build(
    profile=FOLDER,
    num_kv_blocks=NUM_KV_BLOCKS,
    max_num_seqs=MAX_NUM_SEQS,
    slo=["ttft.p99=100ms", "e2e.p99=1s"],
    **WORKLOAD,
)
pace = measured_profile.samples.meta["yardstick_us"]  # times are for the machine as it was then
engine = build_engine(replace(settings, num_kv_blocks=NUM_KV_BLOCKS, yardstick_us=tuple(pace)))
table = as_prompted(simulation.table)
prompts = synthetic_prompts(table, engine.vocab_size, seed=0)
serve(engine, table.limited(4), prompts, at_once=True)  # warms up
engine.reset()
engine.clock.restart()
serve(engine, table, prompts)
log = engine.recorder.log()
print(f"{len(table)} requests in {len(log):,} steps and {log.steps['end_ns'][-1] / 1e9:.1f} s of CPU time")

# %% [markdown]
# How well are these steps priced? They were not fitted to. *Pace* is the factor between run and
# profile that all steps of a kind have in common, *rest* is the error without it. A pace of some per
# cent in all kinds of steps says that the machine changed, not that the model is wrong: on a CPU that
# is shared, by 10 % and more within minutes, of which the steady clock leaves one or two.

# %%
steps = pd.DataFrame(
    [
        {
            "steps": row.kind,
            "count": row.synchronous.steps,
            "MAPE": f"{row.synchronous.mape:.1%}",
            "bias": f"{row.synchronous.bias:+.1%}",
            "pace": f"{row.pace:+.1%}",
            "rest": f"{row.mape_at_pace:.1%}",
        }
        for row in validate(latency, samples_of(log, "run"))
    ]
)
display(steps.set_index("steps"))

# %% [markdown]
# ## 3. Predict the run, and compare
#
# The simulator gets the requests, the engine's settings and the profile; it receives nothing about
# when a token came. Each point is a request.

# %%
real = measured_times(log)
good = rerun(log, latency)


def figures(predicted):
    """Errors of the main latencies, for a table."""
    rows = []
    for error in calibrate(real, predicted).errors:
        mean, p99 = (next(s for s in error.statistics if s.name == name) for name in ("mean", "p99"))
        rows.append(
            {
                "latency": error.latency,
                "measured mean, ms": f"{mean.measured * 1e3:,.1f}",
                "predicted": f"{mean.predicted * 1e3:,.1f}",
                "error of the mean": f"{mean.error:+.1%}",
                "error of p99": f"{p99.error:+.1%}",
                "Pearson r": f"{error.pearson_r:.3f}",
            }
        )
    return pd.DataFrame(rows).set_index("latency")


def compare(predicted, name):
    """A panel per latency."""
    _, axes = plt.subplots(1, 3, figsize=(11, 3.7), layout="constrained")
    _, ours, theirs = np.intersect1d(real.request_id, predicted.request_id, return_indices=True)
    for ax, (label, of) in zip(axes, LATENCIES.items(), strict=True):
        against(ax, label, **{name: (of(real)[ours] * 1e3, of(predicted)[theirs] * 1e3)})
    axes[2].legend(loc="lower right", fontsize=8)
    plt.show()


LATENCIES = {
    "TTFT": lambda times: times.ttft_s,
    "TPOT": lambda times: times.tpot_s,
    "E2E": lambda times: times.e2e_s,
}
compare(good, "a request")
display(figures(good))

# %% [markdown]
# ## 4. Read the autopsy
#
# At the top stands the prediction. Then one input after the other is replaced by the engine's own,
# and the requests are served again; at the bottom stands what was measured. What a latency changes by
# on the way is the share of that cause, so shares sum to the error exactly. The order is fixed, from
# what a user sets (capacity, lengths, settings) to what is estimated (step times).

# %%
LISTED = (("TTFT", "mean"), ("TPOT", "mean"), ("E2E", "mean"))


def causes(result):
    """Every cause that contributes, by weight, with its shares in ms and what to try."""
    at = [result.metrics.index(metric) for metric in LISTED]
    rows = [
        {
            "cause": cause.title,
            **{f"{m[0]}, ms": f"{cause.shares_ns[i] / 1e6:+,.2f}" for m, i in zip(LISTED, at, strict=True)},
            "found": cause.found,
            "try": cause.fix,
        }
        for cause in sorted(result.causes, key=result.weight, reverse=True)
        if result.contributes(cause)
    ]
    return pd.DataFrame(rows).set_index("cause")


def read(result):
    """Pictures and table of an autopsy."""
    _, axes = plt.subplots(1, 2, figsize=(11, 3.7), layout="constrained", sharey=True)
    waterfall(axes[0], result, "TTFT", "mean")
    waterfall(axes[1], result, "E2E", "mean")
    plt.show()
    display(causes(result))


engine_settings = scheduler_config(log)
honest = autopsy(log, engine_settings, latency)
assert sum(cause.shares_ns[0] for cause in honest.causes) == honest.errors_ns[0]
read(honest)

# %% [markdown]
# Orange makes the prediction too high, blue too low. No setting is among the causes:
# blocks, lengths and settings were the engine's. What is left is time: how steps of each kind are
# priced; the host's part, since an engine that serves does more between two steps than the profile's
# loop; and scatter, which no price per composition can know.
#
# ## 5. A mistake
#
# Now a simulation with half the memory that the engine has. All else is as before.

# %%
mistaken = replace(engine_settings, num_kv_blocks=NUM_KV_BLOCKS // 2)
bad = rerun(log, latency, config=mistaken)
compare(bad, "a request, half the blocks")
display(figures(bad))

# %% [markdown]
# Requests wait for memory that the engine had: TTFT is off by far more than any step time could
# explain. Yet TPOT alone looks harmless. With that plot alone one might measure steps again.
# The autopsy:

# %%
blamed = autopsy(log, mistaken, latency)
read(blamed)
print(f"first cause: {blamed.first.title}: {blamed.first.found}")
print(f"try: {blamed.first.fix}")

# %% [markdown]
# It names the capacity first, with both figures and the flag that puts it right. The other causes
# keep their shares: they are counted after the capacity, from the state in which it is right.
#
# The same with another mistake, a smaller limit of running requests:

# %%
narrow = autopsy(log, replace(engine_settings, max_num_seqs=4), latency)
print(f"first cause: {narrow.first.title}: {narrow.first.found}")
print(f"try: {narrow.first.fix}")

# %% [markdown]
# ## 6. Is it the scheduler?
#
# There could be another reason: that engine and simulator do not form the same batches. Give the
# simulator the measured time of each step instead of a predicted one, and it must plan exactly what
# the engine planned, step for step: who decodes, which prompts advance by how much, who is admitted
# and preempted.

# %%
parity = replay_steps(log)
print(f"{parity.identical:,} of {parity.steps:,} steps are identical ({parity.share:.0%})")

# %% [markdown]
# So what is left of the error is time, and not scheduling.
#
# ## 7. Error bars
#
# A prediction should say how far it can be trusted. The fit was repeated on redrawn samples, which
# gives as many sets of coefficients; and one workload is one draw of many. Reruns with both changed
# give intervals, and the chance that a target is met:

# %%
intervals = Reruns(simulation, 10 if SMALL else 40).intervals()
summary = simulation.run(record_steps=False).summary["cluster"]
rows = {}
for name in ("ttft", "tpot", "e2e"):
    for stat in ("mean", "p99"):
        low, high = intervals.metrics[f"{name}_ms.{stat}"]
        span = f"{low:,.1f} to {high:,.1f}"
        rows[f"{name.upper()} {stat}, ms"] = (f"{summary[f'{name}_ms'][stat]:,.1f}", span)
display(pd.DataFrame(rows, index=["this run", f"{intervals.level:.0%} of {intervals.reruns} reruns"]).T)
print("what differs between them:", ", ".join(intervals.varied))
for target, chance in intervals.slo.items():
    print(f"{target}: met with probability {chance:.0%}")

# %% [markdown]
# These intervals know about the coefficients and about other requests. They do not know that the
# machine may be slower tomorrow, nor that the wrong memory was simulated: for that there is the
# autopsy.
#
# ## The same from the command line
#
# ```
# blis engine profile --model MODEL --out profile
# blis engine run --model MODEL --trace day.csv --out measured
# blis replay --trace measured/trace.csv --profile profile --record-itl --out predicted
# blis calibrate measured --results predicted --autopsy --plot predicted.png
# blis parity measured
# ```
#
# The guide [Calibrate against an engine and read the autopsy](../docs/calibrate.md) goes through
# them, and says what every cause means and what the autopsy cannot tell.
