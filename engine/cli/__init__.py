"""`blis engine run | serve | profile | generate | bench | info`: one module per verb."""

from __future__ import annotations

from blis_py.cli.program import Program, Verb

PROGRAM = Program(
    "blis engine",
    "The real engine, on one GPU or on the CPU.",
    {
        "run": Verb("engine.cli.run", "Serve a workload in real time and record every token."),
        "serve": Verb("engine.cli.serve", "Serve a model under the OpenAI API."),
        "profile": Verb("engine.cli.profile", "Measure the step times of this machine."),
        "generate": Verb("engine.cli.generate", "Complete prompts."),
        "bench": Verb("engine.cli", "Measure throughput, latency, or the replay of a workload.", "BENCH"),
        "info": Verb("engine.cli.info", "Show what would run, and with how much memory."),
    },
)
BENCH = Program(
    "blis engine bench",
    "Measure the engine.",
    {
        "throughput": Verb("engine.cli.bench_throughput", "Offline throughput, as `vllm bench throughput`."),
        "latency": Verb("engine.cli.bench_latency", "Latency of one batch, as `vllm bench latency`."),
        "replay": Verb("engine.cli.bench_replay", "Serve a workload or trace, as `vllm bench serve`."),
    },
)
