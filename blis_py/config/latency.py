"""Step times: a section of the configuration.

Annotations are evaluated here and no later, as in `blis_py.config.models`.
"""

from dataclasses import field, replace

from blis_py.core.flag_texts import numbers, whole_numbers
from blis_py.core.light_dataclass import dataclass
from blis_py.core.settings import setting

EXPERT_LOADS = ("auto", "balanced", "skewed", "steep")
"""Loads of experts that have a name."""
MOE_BACKENDS = (
    "auto",
    "trtllm",
    "flashinfer_trtllm",
    "cutlass",
    "flashinfer_cutlass",
    "deepgemm",
    "deepep",
    "triton",
    "marlin",
)
"""Kernels of experts that a server may be set to."""
_HOUR_US, _HOUR_MS = 3.6e9, 3.6e6


@dataclass(frozen=True, kw_only=True)
class LatencySection:
    """Step times."""

    model: str = setting(
        "trained-physics",
        flag="--latency-model",
        help="trained, trained-physics, roofline, kernel-tables, fitted, linear.",
    )
    """Model that prices a step: trained, trained-physics, roofline, kernel-tables, fitted or linear."""
    alpha_coeffs: tuple[float, ...] | None = setting(
        None, flag="--alpha-coeffs", help="Three front-end delays, µs.", metavar="A,A,A", read=numbers
    )
    """Three, of `trained-physics`, µs: before enqueue, at the end, per output token."""
    beta_coeffs: tuple[float, ...] | None = setting(
        None, flag="--beta-coeffs", help="Coefficients of trained-physics.", metavar="B,B,…", read=numbers
    )
    """Seven to eleven, of `trained-physics`; given together with `alpha_coeffs`."""
    linear: dict[str, dict[str, float]] = field(default_factory=dict)
    """Coefficients of the `linear` model, ns: parts `gpu`, `host`, `frontend`, each by feature."""
    step_scale: float = setting(1.0, above=0, most=1000)
    """The GPU time of every step of `trained` is multiplied by it: how much slower your server is."""
    step_gap_us: tuple[float, ...] = setting((), least=0, most=_HOUR_US)
    """Between two steps of `trained`, on top of its own: per step and, if there are two, per sequence, µs;
    a third is the number of sequences from which the latter does not grow any further."""
    kernel_profile: str | None = setting(
        None, flag="--kernel-profile", help="Measured kernels of kernel-tables.", metavar="DIR"
    )
    """Folder of kernel times measured layer by layer, of the `kernel-tables` model."""
    kernels: str = setting("vllm", choices=("vllm", "sglang", "trtllm"))
    """Engine whose kernels `trained` prices, as far as they were measured."""
    moe_backend: str = setting(
        "auto",
        choices=MOE_BACKENDS,
        flag="--moe-backend",
        aliases=("--moe-runner-backend",),
        help="Kernels of experts that the server is set to.",
    )
    """Kernels of experts that the server is set to, where several were measured; auto = the engine's
    default."""
    expert_load: str = setting(
        "auto",
        flag="--expert-load",
        help="Load of experts: auto, balanced, skewed, steep, or a CSV file of a measured one.",
        metavar="LOAD",
    )
    """Distribution of tokens over the experts: auto (by the model's kind of router), balanced, skewed, steep
    (even load and the power laws of 1.01 and 1.2 of the kernel tables), or a CSV file of a measured load with
    the columns expert and tokens, and layer if there are several."""
    fused_norms: bool = setting(
        False,
        flag="--fused-norms",
        aliases=("--enable-flashinfer-allreduce-fusion",),
        help="All-reduces add the residual and normalise, too.",
    )
    """Whether an all-reduce of few tokens adds the residual and normalises, too, which then take no kernels
    of their own."""
    cuda_graphs: bool = setting(
        True,
        flag="--cuda-graphs",
        off="--enforce-eager",
        off_aliases=("--disable-cuda-graph",),
        help="Decode steps replay CUDA graphs.",
        off_help="No CUDA graphs: every step launches its kernels.",
    )
    """Whether decode steps of `trained` replay CUDA graphs, which engines capture for some sizes only."""
    cuda_graph_max_size: int | None = setting(
        None,
        least=1,
        most=8192,
        flag="--cuda-graph-max-size",
        aliases=("--cuda-graph-max-bs", "--max-cudagraph-capture-size"),
        help="Largest batch with a CUDA graph.",
    )
    """Largest batch for which a graph is captured; null = the engine's default. Larger ones run
    eagerly. Under vLLM it is the largest step with prompts that launches nothing, too."""
    cuda_graph_sizes: tuple[int, ...] = setting(
        (),
        least=1,
        most=8192,
        flag="--cuda-graph-sizes",
        aliases=("--cuda-graph-bs", "--cudagraph-capture-sizes"),
        help="Batch sizes with a CUDA graph, in place of the engine's own.",
        metavar="N,N,…",
        read=whole_numbers,
    )
    """Batch sizes for which graphs are captured; none = the engine's own."""
    cuda_graph_padding: bool = setting(
        True,
        flag="--cuda-graph-padding",
        off="--disable-cuda-graph-padding",
        help="Batches are padded to the next size with a CUDA graph.",
        off_help="Batches of another size run eagerly.",
    )
    """Whether a batch is padded to the next size that has a graph (`enable_padding` of TensorRT-LLM);
    otherwise it runs eagerly."""
    profile: str | None = setting(
        None, flag="--profile", help="Measured step times; implies fitted.", metavar="DIR"
    )
    """Folder of step times measured by the engine, of the `fitted` model, which it implies; or the name of a
    bundled one."""
    mask_row_us: float | None = setting(
        None,
        least=0,
        most=_HOUR_US,
        flag="--mask-row-us",
        help="Structured outputs: host time of a row's mask.",
    )
    """Structured outputs: host time for the mask of a constrained row; null = as measured by the profile,
    else nothing."""
    mask_step_us: float | None = setting(
        None, least=0, most=_HOUR_US, flag="--mask-step-us", help="The same of a step that has such rows."
    )
    """The same for each step that has such rows, whatever their number."""
    scan_us: float | None = setting(
        None,
        least=0,
        most=_HOUR_US,
        flag="--scan-us",
        help="With lpm: host time to look up one waiting request.",
    )
    """With `lpm`, `hrrn`, `dfs-weight`: host time for each waiting request that is looked up in the prefix
    cache to plan a step; null = as measured by the profile, else nothing."""

    kernel_compile_ms: float = setting(
        0.0,
        least=0,
        most=_HOUR_MS,
        flag="--kernel-compile-ms",
        help="A server that was not warmed up: time to compile kernels of chunked prompts.",
    )
    """A server that was not warmed up: time by which its first step with a prompt in pieces, or with a cached
    beginning, takes longer, because the kernels for it are compiled then; 0 = they are there."""
    cold_kernels: bool = setting(
        False,
        flag="--cold-kernels",
        help="A server that was not warmed up: --kernel-compile-ms is that of the engine's preset.",
    )
    """A server that was not warmed up: `kernel_compile_ms` is the time that the preset of the engine has for
    the model and the GPU, if there are kernels that are compiled late."""

    def under(self, model: str) -> "LatencySection":
        """The same with another model, without what is of the one here alone."""
        bare = LatencySection()
        dropped = {name: getattr(bare, name) for name, owner in _OF_ONE_MODEL.items() if owner != model}
        return replace(self, model=model, **dropped)


_OF_ONE_MODEL = {
    "alpha_coeffs": "trained-physics",
    "beta_coeffs": "trained-physics",
    "linear": "linear",
    "step_scale": "trained",
    "kernels": "trained",
    "moe_backend": "trained",
    "expert_load": "trained",
    "fused_norms": "trained",
    "cuda_graphs": "trained",
    "cuda_graph_max_size": "trained",
    "cuda_graph_sizes": "trained",
    "cuda_graph_padding": "trained",
    "step_gap_us": "trained",
    "kernel_profile": "kernel-tables",
    "profile": "fitted",
}
"""Settings of step times -> the model that they are of."""
