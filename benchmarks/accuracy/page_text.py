"""Prose of results/accuracy.md by section; HEAD is formatted with the version and the arguments."""

HEAD = """\
# Accuracy

Made by `python benchmarks/accuracy/page.py ../shared/data{said}` with blis-py {version}. Measured operating
points of public benchmarks (AIConfigurator's silicon samples, InferenceMAX; both Apache-2.0), each
predicted by its own engine, precision, width and launch flags; where a flag was not published, the default
applies. For the runs of AIConfigurator's own team, the settings and the client are those of its public
generator and benchmark: room for one prompt beside the decodes in a step, requests that are all alike, and,
where vLLM was checked at a recommended load, AIPerf's 100 prompts again and again in its prefix cache. A row
that repeats the figures of another one has its flags.
Nothing is fitted to a row or a configuration; which combinations the terms of an engine were learned on is
marked. Errors are predicted over measured minus 1, in per cent: mean and median of the absolute errors,
bias (the median with its sign), and the share of points within 20 %. How a step is priced: [Which models,
and how well](../../docs/models.md). Recorded runs, single steps and our own engine:
[validation](validation.md).
"""

ADOPTED = """\
Rules that hold for all rows, from an engine's source, a table or physics, taken up after errors of these
points had been looked at; none of them refers to a row or a configuration:

- Terms by kind of model, linear attention apart from plain experts: its prompts are launched several times as
  slowly under SGLang. The term was learned on H200 and on B200 apart, and came out the same.
- A term for prompts of weights with block scales: SGLang's kernels for them became faster between the
  versions that served (0.5.5 to 0.5.9) and the one that was measured (0.5.14).
- Small products in block FP8 without the time of launching them, which some tables hold.
- Kernels of experts that a server is set to by name, by the table of whichever engine measured them.
- Launching beside Grace, by SGLang's own table of its attention module on GB200 and B200.
- Attention over prompts with a latent cache under SGLang on Hopper, by the kernel that it calls there.
- With replicated attention, tokens in NVFP4 are gathered in 4 bits.
- Static FP8 scales applied within norms and activations that vLLM compiles.
- Queues and KV blocks of the ranks of attention DP, and decodes without a CUDA graph of their size.
- Searches for the terms begin where launching binds, and groups with few configurations have more points.
- Attention by tables that name no kernel, which had been left out: heads of 128 under vLLM, under SGLang on
  Hopper and under TensorRT-LLM on Blackwell had been priced by the datasheet alone. Rows with more than 16
  heads for one of keys and values, for which TensorRT-LLM has another kernel, are left out instead.
- Experts of a model's own sizes by a curve over the tokens; one surface for all sizes was up to twice too
  slow.
- Rows of groups of experts that took the tokens of all groups are left out (kernels that choose the experts
  themselves, under the benchmark's even load).
- Under even load tokens choose experts independently, so that a small batch leaves some unused; the tables'
  even load uses as many as it has pairs.
- Kernels that choose the experts, and both passes of a norm over the heads of all ranks.
- A router in FP32 (MiniMax-M2, in every engine): tokens are converted, and its arithmetic runs beside the
  tensor cores.
- Experts by Triton's kernel where vLLM's environment variables turn FlashInfer's and DeepGEMM's off
  (`fused_moe/oracle/fp8.py`); for Blackwell, by SGLang's table.
- MXFP4 experts by Marlin on Hopper, where vLLM's environment says so and in versions before 0.12, whose
  images lacked OpenAI's Triton kernels (`quantization/mxfp4.py`): by what Marlin takes for weights of other
  sizes in 4 bits, over the tokens that an expert receives, with the padding of its tiles. They had been
  priced as Triton's, and a factor of all prompts had made up for it.
- The version of an engine, where a row lacks it, by the tag of its image: vLLM 0.10 and 0.11 had been priced
  as the newest one (113 points of Llama-70B and gpt-oss).
- TensorRT-LLM's share of the free memory in AIConfigurator's own runs, by the template of its generator for
  that version: 0.8 instead of 0.9 (one point of 243 changes by more than 2 %).
- Flags of a width that the script lacked when it was read: those of the same launch some days later, when it
  had it (8 points of DeepSeek under SGLang at TP4, which had not fitted into the memory of TP8's flags).
- Three points of gpt-oss under vLLM on H100 that are labelled with 512 requests in flight are refused, and
  count against coverage. InferenceX's script kept 512 in flight at every configured concurrency until its
  pull request 310, while the server's limit of sequences and the number of requests followed the
  configuration; its results do not say which one that was. Priced as labelled, their TPOT had come out at
  +1567, +442 and +172 %, which made the means of vLLM and of gpt-oss 9.9 and 9.6 % instead of 6.8 and 5.6 %.
  With a configured concurrency of 8, 8 and 64 (it went from 4 to 64) TTFT and TPOT of all three come out
  within 5 %, but only their own figures tell.
- Cold servers (`cold_servers.py`; 84 points of SGLang on B200, 48 of which wait). Until the end of December
  2025 InferenceX ran SGLang on B200 on Docker nodes alone (pull request 379), in containers that were removed
  behind each server, with no kernels kept outside of them (pull request 89), and its client sent one request
  ahead. There the first step that goes on with a prompt compiles its kernels, 70 s, learned on 12 of the
  points; and DeepSeek-R1-0528 had 50 requests for each in flight, or 20 with answers of 8,192 tokens
  (`launch_b200-nvd.sh`). Later runs, before the client warmed up, may have been on a node that kept its
  containers, which is not published: they are priced with all kernels compiled, although 17 of them waited.
- SGLang's limits where a launch did not state them, by its own rules for the GPU, the width, the model and
  the release (`server_args.py`, `model_runner.py`): chunk, share of the memory, running requests. The preset
  had one share of 0.85, a chunk of 8,192 tokens and 1,024 requests for all large GPUs. Its KV pool is a share
  of what is free before loading, not of all that CUDA sees, with pools in proportion for windowed layers and
  for states of linear attention.
- MXFP4 experts by OpenAI's Triton kernels on Hopper where TensorRT-LLM was launched with `moe_config.backend:
  TRITON` (66 points of gpt-oss on H200), by vLLM's table of them; they had been priced by TensorRT-LLM's own
  kernel, which takes up to 2.1 times as long.
- FlashInfer's experts by CUTLASS under vLLM 0.16 on Hopper (30 points of MiniMax-M2.5): they came first in
  the order of 0.15 and 0.16 (`fused_moe/oracle/fp8.py`; issue 34249). TensorRT-LLM's table has that kernel:
  with 2 or 4 groups of experts, where vLLM's has it, too, both agree within 5 % in the median.
- Chunks over cached tokens at the efficiency of a prompt with as many query-key pairs, found by reading
  prices and tested on kernel times of two other cards; attention closer between powers of two of a chunk.
- 1 us for each token of a prompt in front of every engine, for splitting its text into tokens
  (`benchmarks/tokenization.py`). It is measured, not learned on these points.

Before errors with them were seen, from the tables alone: attention of several prompts in a step, by the
batches that were measured; it had been that of one prompt with as many query-key pairs, which leaves out what
grows with the tokens (windows, bytes, the expansion of a latent cache). Curves of experts with a knot at
every doubling: at 65,536 pairs of a token and an expert, 8,192 tokens of most models, they are within 2.5 %
of their rows in the mean instead of 4.6. From the engines' sources: projections down to a latent cache are
whole on every rank, which takes from its KV memory. From published settings: the buffer of TensorRT-LLM's
cache transceiver.
"""

MARGINAL = """\
Errors of the difference between the mean TTFTs of the longest and the shortest prompts of a configuration, of
the same output length and version, at the lowest concurrency with both, up to 4. What is the same for both
lengths drops out; waiting for the prompts of other requests does not, as no point has a single request in
flight. Servers that let prompts wait by a flag are paired among themselves, and cold servers left out. Runs
of one point differ, too: by their spread a difference has a standard error, and pairs below twice that (512
and 1,024 tokens that took the same 174 ms) are in the first line alone. The goal is a median of 15.
"""

MISSED = """\
- Qwen3-235B in FP8 under vLLM 0.12 on H200: TPOT 12 to 48 % too low. Experts with block scales ran by
  DeepGEMM there unless TP was 8 (vLLM's pull request 29346), which users found a quarter slower than another
  kernel in 0.12 to 0.14 (llm-compressor's issue 2292). The tables have Triton's
  kernel, and FlashInfer's by CUTLASS.
- Qwen3-32B in 16 bits under SGLang on one H100: TTFT three to twelve times too low. Its weights take three
  quarters of the memory, so the share that SGLang may use decides how many requests run. Its own rule gives
  a `mem_fraction_static` of 0.835 there (`server_args.py`), which is what is priced; with 0.8 TPOT would come
  out within 5 % and TTFT 1 to 31 % too low. The launch was not published.
- DeepSeek in FP8 under TensorRT-LLM 1.1: a marginal prefill 59 % too low on B200 and 36 % too high on H200,
  one pair of runs each; Qwen3.5 in FP4 under SGLang on B200 54 % too low.
- MiniMax-M2.5 in FP8 under vLLM 0.18 on H100: of two runs of 8,192 tokens with 4 in flight, one took 1.7
  times as long to its first tokens as the other, which is predicted within 10 %.
- gpt-oss-120b under TensorRT-LLM with TP8 on H200: a marginal prefill 48 % too low, with TP1 to TP4 within
  19 %; with TP4 on B200 27 to 34 % too low.
"""

CONTRADICTED = """\
Themselves: with as many requests in flight as they say, computing their prompts at the
datasheet's peak would take longer than the requests did. Each other: another run of the same
engine, model, format, division and load had its first tokens in less than half the time (most
of these began with one test request alone, so that the first wave of requests waited for
kernels to be compiled), or one with fewer requests in flight took more than twice as long for
a token. No prediction enters either rule.
"""

FIRST_WAVE = """\
What the first wave of SGLang waited for is simulated where it is known that the server was cold (see above),
and not in the runs from 31 December 2025 until InferenceX's client sent warm-up requests, two for each in
flight (pull request 480, January 2026): these have the wait or not, by the machine. No run of DeepSeek under
SGLang has it from then on. Where medians were published, contradicted points have the TTFT that is predicted
in the median, and those priced warm are slow in the mean and in the p99 alone, by the wave:
"""
