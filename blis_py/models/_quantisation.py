"""Effect of a checkpoint's quantisation on the bytes of its weights and of its KV cache.

Three properties of each method: the bytes of a quantised weight (with the scales that groups of weights
share), the format in which it is multiplied, and the weights left unquantised. Publishers differ most in the
last: attention, LM head or single layers often stay in 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from blis_py.core.light_dataclass import dataclass
from blis_py.models._module_names import ModuleNames
from blis_py.models.hf_config import ConfigFile, names_of
from blis_py.models.weights import MXFP4_BYTES, MXFP8_BYTES, LayerCounts, Quantisation, Weights

NVFP4_BYTES = 0.5625
"""4 bits and one 8-bit scale per 16 weights."""


@dataclass(frozen=True, slots=True)
class _Format:
    """Storage of quantised weights."""

    weight_bytes: float
    arithmetic: str = "fp16"
    only: Sequence[str] = ()
    """Names of the quantised modules; none = every linear layer."""
    head: bool = False
    """Whether the LM head counts as a linear layer."""
    block_scales: bool = False
    """See `Weights`."""
    narrower: Sequence[_Format] = ()
    """Storage of modules that are named, where all others are of this one."""


def read_quantisation(section: ConfigFile, layers: LayerCounts, expert_dtype: str = "") -> Quantisation:
    """The quantisation described by a section of a config.

    Args:
        expert_dtype: format of the experts that the config states beside the section (DeepSeek-V4).

    Raises:
        InputError: a method that is not fully supported, with file and key.
    """
    method = section.text("quant_method", default="modelopt" if section.has("quant_algo") else None)
    if method not in METHODS:
        known = ", ".join(METHODS)
        raise section.error("quant_method", "unknown quantisation", method, f"use one of {known}")
    forms = _mixed(section) if section.has("quantized_layers") else [METHODS[method](section)]
    forms = [part for form in forms for part in (*form.narrower, form)]
    if expert_dtype == "fp4" and not section.has("quantized_layers"):
        forms.insert(0, _mxfp4(section))
    weights, indexer, notes = _weights(section, forms, layers)
    kv_dtype_bytes = _kv_dtype_bytes(section, layers.dtype_bytes)
    if kv_dtype_bytes < layers.dtype_bytes:
        notes.append(
            "the KV cache takes 8 bits, as the checkpoint says; in 16 bits it would hold half as much"
        )
    unknown = sorted(key for key, value in section.values.items() if key not in _KNOWN and value)
    if unknown:
        notes.append(f"quantisation settings not known, taken to change nothing: {names_of(unknown)}")
    return Quantisation(weights, kv_dtype_bytes, tuple(notes), indexer)


# -- which weights ---------------------------------------------------------------------------------------

_LEFT_ALONE = (
    "ignore",
    "exclude_modules",
    "modules_to_not_convert",
    "ignored_layers",
    "llm_int8_skip_modules",
)


def _weights(
    section: ConfigFile, forms: Sequence[_Format], layers: LayerCounts
) -> tuple[Weights, float, list[str]]:
    """Bytes per weight, those of an indexer's queries apart, and notes.

    Args:
        forms: of two that cover a module the first one counts.
    """
    kept = _left_alone(section, layers)
    if section.has("quantized_layers") and section.text("quant_method", default="") == "fp8":
        kept = ModuleNames((), layers.count)  # left as they are in the FP8 checkpoint
    chosen = [_names(section, "targets", form.only, layers) if form.only else None for form in forms]
    notes: list[str] = []

    def size(kind: str, where: Collection[int], matrices: Sequence[int] = (1, 1, 1)) -> float:
        """Mean bytes of the weights of a kind in the layers `where`."""
        every = set(where) or set(range(layers.count))
        rest = [every - without for without in kept.layers_of(kind)]
        whole, found, quantised = sum(matrices) * len(every), 0.0, 0
        for form, names in zip(forms, chosen, strict=True):
            within = names.layers_of(kind) if names else [every] * len(rest)
            covered = [those & left for those, left in zip(within, rest, strict=True)]
            rest = [left - those for left, those in zip(rest, covered, strict=True)]
            count = sum(n * len(those) for n, those in zip(matrices, covered, strict=True))
            quantised, found = quantised + count, found + count / whole * form.weight_bytes
        share = quantised / whole
        if 0 < share < 1 and where:
            notes.append(
                f"{100 * share:.0f} % of the {_LABELS[kind]} weights are quantised: priced by their mean"
            )
        return found + (1 - share) * layers.dtype_bytes

    queries, keys = layers.heads, layers.kv_heads
    if layers.latent_weights:
        attention = size("latent", layers.cached, layers.latent_weights)
        output = size("latent", layers.cached, (0, 0, 1))
    else:
        attention = size("attention", layers.cached, (queries, keys, keys, queries))
        output = size("attention", layers.cached, (0, 0, 0, 1))
    matrices = (1, 1, 1) if layers.gated else (0, 1, 1)
    narrow, wide = _arithmetic(section, forms)
    weights = Weights(
        attention=attention,
        output=0.0 if output == attention else output,
        linear=size(layers.linear_kind, layers.linear, (2, 1)) if layers.linear else 2.0,
        dense=size("dense", layers.dense, matrices),
        shared=size("dense" if layers.beside else "shared", layers.sparse, matrices),
        experts=size("beside" if layers.beside else "experts", layers.sparse, matrices),
        head=_head_bytes(kept, forms, chosen) or float(layers.dtype_bytes),
        block_scales=any(form.block_scales for form in forms),
        arithmetic=narrow,
        wide_arithmetic=wide,
    )
    plain = float(layers.dtype_bytes)
    everything = all(names is not None for names in chosen)
    if everything and replace(weights, wide_arithmetic="") == Weights.of(plain, narrow, plain):
        raise section.error("config_groups", "quantises no weights that are known here", forms[0].only[0])
    indexer = size("indexer", layers.indexed, (1,)) if layers.indexed else plain
    return weights, indexer, notes


def _head_bytes(
    kept: ModuleNames, forms: Sequence[_Format], chosen: Sequence[ModuleNames | None]
) -> float | None:
    """Bytes of a weight of the LM head; None if it is not quantised."""
    for form, names in zip(forms, chosen, strict=True):
        if form.head and not kept.covers_head() and (names is None or names.covers_head()):
            return form.weight_bytes
    return None


def _arithmetic(section: ConfigFile, forms: Sequence[_Format]) -> tuple[str, str]:
    """Format in which the narrowest weights are multiplied, and that of 8 bits if those are narrower.

    Raises:
        InputError: weights of one width are multiplied in several formats.
    """
    narrow = {form.arithmetic for form in forms if form.weight_bytes < 1}
    wide = {form.arithmetic for form in forms if form.weight_bytes >= 1}
    if len(narrow) > 1 or len(wide) > 1:
        problem = "weights of as many bits in several formats are not modelled"
        stated = ", ".join(sorted(narrow if len(narrow) > 1 else wide))
        raise section.error(
            section.key("config_groups", "quantized_layers"), problem, stated, _OTHER_CHECKPOINT
        )
    if not narrow:
        return wide.pop(), ""
    return narrow.pop(), wide.pop() if wide else ""


_LABELS = {
    "attention": "attention",
    "latent": "attention",
    **dict.fromkeys(("gdn", "kda", "mamba2"), "linear attention"),
    "indexer": "indexer",
    "dense": "dense feed-forward",
    "shared": "shared experts'",
    **dict.fromkeys(("experts", "beside"), "experts'"),
}


def _left_alone(section: ConfigFile, layers: LayerCounts) -> ModuleNames:
    keys = [key for key in _LEFT_ALONE if section.has(key)]
    for key in keys[1:]:
        if set(section.texts(key)) != set(section.texts(keys[0])):
            raise section.error(key, f"contradicts {keys[0]}", fix="keep one of the two")
    return _names(section, keys[0], section.texts(keys[0]), layers) if keys else ModuleNames((), layers.count)


def _names(section: ConfigFile, key: str, names: Sequence[str], layers: LayerCounts) -> ModuleNames:
    try:
        return ModuleNames(names, layers.count)
    except ValueError as error:
        raise section.error(key, f"names of modules that are not understood: {error}") from None


# -- methods of quantisation -----------------------------------------------------------------------------


def _fp8(section: ConfigFile) -> _Format:
    return _Format(1.0, "fp8", block_scales=bool(section.items("weight_block_size")))


def _grouped_integers(section: ConfigFile) -> _Format:
    """GPTQ, AWQ and AutoRound: integer weights with a 16-bit scale and a zero point per group."""
    for key in ("dynamic", "extra_config", "modules_in_block_to_quantize"):
        if section.values.get(key):
            raise section.error(key, "weights in several formats are not modelled", fix=_OTHER_CHECKPOINT)
    size = _bits(section, "bits", "w_bit") / 8
    group = section.values.get(section.key("group_size", "q_group_size"))
    if group not in (None, -1):
        group = section.count("group_size", "q_group_size")
        size += (2 + size) / group
    return _Format(size, head=section.flag("lm_head", default=False))


def _bitsandbytes(section: ConfigFile) -> _Format:
    """4 bits with a 32-bit scale per 64 weights, which may be quantised to 8 bits itself; or 8 bits."""
    if not section.flag("load_in_4bit", default=False):
        return _Format(1.0)
    twice = section.flag("bnb_4bit_use_double_quant", default=False)
    return _Format(0.5 + (1 if twice else 4) / 64)


def _compressed_tensors(section: ConfigFile) -> _Format:
    if section.values.get("sparsity_config"):
        raise section.error("sparsity_config", "sparse weights are not modelled", fix=_OTHER_CHECKPOINT)
    groups = section.section("config_groups")
    if groups is None:
        raise section.error("config_groups", "missing", fix="name the weights' num_bits")
    formats = [_group(groups.required_section(name)) for name in groups.values]
    named = _joined(form for form in formats if form.only)
    others = _joined(form for form in formats if not form.only)
    if len(others) > 1:
        problem = "several formats are for all modules"
        raise section.error("config_groups", problem, fix=_OTHER_CHECKPOINT)
    every = [*named, *others]
    return replace(every[-1], narrower=every[:-1])


def _joined(formats: Iterable[_Format]) -> list[_Format]:
    """One entry for each storage, with the names of all its modules."""
    names: dict[_Format, list[str]] = {}
    for form in formats:
        names.setdefault(replace(form, only=()), []).extend(form.only)
    return [replace(form, only=tuple(only), head=True) for form, only in names.items()]


def _group(group: ConfigFile) -> _Format:
    """Bits of the weights, and the format of multiplication: 16 bits unless activations are quantised."""
    weights = group.required_section("weights")
    bits, kind = _bits(weights, "num_bits"), weights.text("type", default="int")
    if kind not in ("int", "float"):
        raise weights.error("type", "unknown type", kind, "use int or float")
    size = bits / 8
    if weights.has("group_size") and weights.values["group_size"] != -1:
        scale = 1 if kind == "float" and bits == 4 else 2
        zero = 0 if weights.flag("symmetric", default=True) else size
        size += (scale + zero) / weights.count("group_size")
    activations = group.section("input_activations")
    arithmetic = "fp16"
    if activations is not None:
        form = (kind, bits, activations.count("num_bits"))
        if form not in _ARITHMETIC:
            stated = f"{kind} weights of {bits} bits, activations of {form[2]}"
            raise group.error("input_activations", "not modelled", stated, _OTHER_CHECKPOINT)
        arithmetic = _ARITHMETIC[form]
    targets = [name for name in group.texts("targets") if name != "Linear"]
    every = len(targets) < len(group.items("targets")) or not targets
    return _Format(size, arithmetic, () if every else targets)


_ARITHMETIC = {("float", 8, 8): "fp8", ("int", 8, 8): "int8", ("float", 4, 4): "fp4"}
"""Type and bits of weights, bits of activations -> format in which they are multiplied."""


def _modelopt(section: ConfigFile) -> _Format:
    algorithm = section.text("quant_algo")
    if algorithm not in _ALGORITHMS:
        known = ", ".join(_ALGORITHMS)
        raise section.error("quant_algo", "not modelled", algorithm, f"use one of {known} or MIXED_PRECISION")
    return _ALGORITHMS[algorithm]


_ALGORITHMS = {
    "FP8": _Format(1.0, "fp8", head=True),
    "FP8_PER_CHANNEL_PER_TOKEN": _Format(1.0, "fp8", head=True),
    "FP8_PB_WO": _Format(1.0, "fp8", head=True, block_scales=True),
    "NVFP4": _Format(NVFP4_BYTES, "fp4", head=True),
    "W4A16_NVFP4": _Format(NVFP4_BYTES, "fp16", head=True),
    "MXFP8": _Format(MXFP8_BYTES, "fp8", head=True),
    "MXFP4": _Format(MXFP4_BYTES, "fp4", head=True),
    "W4A16_MXFP4": _Format(MXFP4_BYTES, "fp16", head=True),
}
"""ModelOpt's `quant_algo` -> storage of the weights."""


def _mixed(section: ConfigFile) -> list[_Format]:
    """ModelOpt's `MIXED_PRECISION`: an algorithm for each module. Modules that are not named stay as they
    are, or in FP8 with block scales where that is the checkpoint's method."""
    modules = section.required_section("quantized_layers")
    named: dict[str, list[str]] = {}
    for name in modules.values:
        entry = modules.required_section(name)
        if entry.text("quant_algo") not in _ALGORITHMS:
            fix = f"use one of {', '.join(_ALGORITHMS)}"
            raise entry.error("quant_algo", "not modelled", entry.text("quant_algo"), fix)
        named.setdefault(entry.text("quant_algo"), []).append(name)
    forms = [replace(_ALGORITHMS[name], only=tuple(only)) for name, only in named.items()]
    others = [_fp8(section)] if section.text("quant_method", default="") == "fp8" else []
    return [*forms, *others]


def _mxfp4(section: ConfigFile) -> _Format:
    """OpenAI's method: the experts only."""
    return _Format(MXFP4_BYTES, "fp4", only=("*.experts*",))


METHODS: dict[str, Callable[[ConfigFile], _Format]] = {
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "gptq": _grouped_integers,
    "gptq_marlin": _grouped_integers,
    "awq": _grouped_integers,
    "awq_marlin": _grouped_integers,
    "auto-round": _grouped_integers,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "mxfp4": _mxfp4,
}
"""`quant_method` -> storage of its weights."""

_OTHER_CHECKPOINT = "use another checkpoint of the model"


def _bits(section: ConfigFile, *keys: str) -> int:
    bits = section.count(*keys)
    if bits not in (2, 3, 4, 8):
        raise section.error(section.key(*keys), "unusual number of bits", bits, "use 2, 3, 4 or 8")
    return bits


# -- the KV cache ----------------------------------------------------------------------------------------


def _kv_dtype_bytes(section: ConfigFile, dtype_bytes: int) -> int:
    """1 if the checkpoint requests an 8-bit KV cache, which engines then use by default."""
    sizes = set()
    for key in ("kv_cache_scheme", "kv_cache_quant_algo"):
        value = section.values.get(key)
        if value is None:
            continue
        if isinstance(value, dict):
            sizes.add(section.required_section(key).count("num_bits") / 8)
        else:
            sizes.add({"FP8": 1.0, "INT8": 1.0}.get(section.text(key).upper(), 0.0))
        if sizes != {1.0}:
            raise section.error(key, "KV cache in a format that is not modelled", value, _OTHER_CHECKPOINT)
    return 1 if sizes else dtype_bytes


_READ = (
    "quant_method quant_algo kv_cache_quant_algo kv_cache_scheme group_size q_group_size bits w_bit lm_head "
    "config_groups targets load_in_4bit load_in_8bit bnb_4bit_use_double_quant ignore exclude_modules "
    "modules_to_not_convert ignored_layers llm_int8_skip_modules dynamic extra_config "
    "modules_in_block_to_quantize sparsity_config quantized_layers"
)
_WITHOUT_EFFECT = (
    "activation_scheme fmt scale_fmt weight_block_size format global_compression_ratio quantization_status "
    "producer version desc_act sym damp_percent static_groups true_sequential model_file_base_name "
    "model_name_or_path meta zero_point zero_points checkpoint_format quant_type bnb_4bit_compute_dtype "
    "bnb_4bit_quant_type bnb_4bit_quant_storage llm_int8_threshold llm_int8_enable_fp32_cpu_offload "
    "llm_int8_has_fp16_weight _load_in_4bit _load_in_8bit activation_scale_ub batch_size cache_block_outputs "
    "block_name_to_quantize dataset exllama_config max_input_length module_name_preceding_first_block "
    "pad_token_id tokenizer use_cuda_fp16 use_exllama backend do_fuse fuse_max_seq_len modules_to_fuse "
    "moe_quant_algo packing_format data_type iters seqlen nsamples autoround_version low_gpu_mem_usage amp "
    "scale_dtype enable_quanted_input enable_minmax_tuning pack_dtype transform_config"
)
"""Settings that affect neither sizes nor formats, or repeat them."""
_KNOWN = frozenset(f"{_READ} {_WITHOUT_EFFECT}".split())
