"""Every flag that the servers of the newest releases take is listed, as one that takes a value or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from blis_py.launch.flag_table import flag_table
from blis_py.launch.flag_words import spelled
from blis_py.launch.reader import read_launch

FOLDER = Path(__file__).parent / "server_flags"
RELEASES = sorted(path.stem for path in FOLDER.glob("*.txt"))
START = {"vllm": "vllm serve", "sglang": "sglang serve --model-path", "trtllm": "trtllm-serve"}
"""What the model follows."""


def flags_of(release: str) -> dict[str, bool]:
    """Whether a flag takes no value, by flag: what `benchmarks/engines/arguments.py` printed."""
    words = [line.split() for line in (FOLDER / f"{release}.txt").read_text().splitlines()]
    return {name: bool(star) for name, *star in words}


@pytest.mark.parametrize("release", RELEASES)
def test_every_flag_of_a_release_is_listed(release: str) -> None:
    table, flags = flag_table(release.partition("-")[0]), flags_of(release)
    assert len(flags) > 30
    found = {name: table.meaning("flags", spelled(name, table)) for name in flags}
    assert [name for name, meaning in found.items() if meaning is None] == []
    unlike = {name for name, meaning in found.items() if meaning and meaning.switch != flags[name]}
    assert unlike == set()


@pytest.mark.parametrize("release", RELEASES)
def test_a_switch_takes_no_word_and_no_flag_is_passed_over(release: str) -> None:
    engine = release.partition("-")[0]
    refused = ("--is-embedding", "--headless")  # under which nothing is served
    for name, switch in flags_of(release).items():
        if not switch or name in refused:
            continue
        launch = read_launch([f"{START[engine]} qwen3-8b {name} stray"])
        assert launch.unknown == ["stray"], name
        table = flag_table(engine)
        flag = spelled(name, table)
        said = " ".join([*launch.idle, *launch.unmodelled, *(key for _, key in launch.settings.values())])
        meaning = table.meaning("flags", flag)
        assert flag in said or (meaning is not None and meaning.part), name


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        ("--no-enforce-eager", "latency.cuda_graphs", True),
        ("--no-enable-expert-parallel", "ep", 1),
        ("--no-async-scheduling", "scheduler.async_scheduling", False),
    ],
)
def test_no_before_a_switch_turns_it_off(words: str, key: str, value: object) -> None:
    assert read_launch([f"vllm serve qwen3-30b-a3b {words}"]).values[key] == value


def test_no_before_a_switch_that_is_off_changes_nothing_and_of_one_that_is_on_is_said() -> None:
    launch = read_launch(["vllm serve qwen3-8b --no-enable-lora --no-frobnicate --no-enable-log-requests"])
    assert launch.idle == ["--no-enable-lora", "--no-enable-log-requests"]
    assert launch.unknown == ["--no-frobnicate"]
    launch = read_launch(["vllm serve qwen3-8b --no-enable-chunked-prefill"])
    assert launch.unmodelled == ["--no-enable-chunked-prefill: prompts are computed whole, one step each"]


def test_replicas_of_attention_have_a_flag_of_their_own_in_sglang() -> None:
    line = "sglang serve --model-path deepseek-ai/DeepSeek-R1 --tp 8 --chunked-prefill-size 32768"
    for flags in ("--attn-dp-size 4", "--attention-data-parallel-size 4", "--dp 4 --enable-dp-attention"):
        values = read_launch([f"{line} {flags}"]).values
        assert (values["tp"], values["attention_dp"], "num_instances" in values) == (8, 4, False)
        assert values["scheduler.max_num_batched_tokens"] == 8192


def test_cuda_graphs_of_decodes_have_a_backend_in_sglang() -> None:
    line = "sglang serve --model-path Qwen/Qwen3-8B"
    for flags in (
        "--cuda-graph-backend-decode disabled",
        "--disable-decode-cuda-graph",
        '--cuda-graph-config \'{"decode": {"backend": "disabled"}}\'',
    ):
        assert read_launch([f"{line} {flags}"]).values["latency.cuda_graphs"] is False
    config = '--cuda-graph-config \'{"decode": {"max_bs": 64}, "prefill": {"backend": "full"}}\''
    launch = read_launch([f"{line} {config}"])
    assert launch.values["latency.cuda_graph_max_size"] == 64
    assert any("--cuda-graph-config.prefill" in each for each in launch.unmodelled)


def test_every_option_of_tensorrt_llm_is_listed() -> None:
    """Fields of `TorchLlmArgs`, of which mappings may have entries of their own."""
    options = flag_table("trtllm").meanings["options"]
    names = (FOLDER.parent / "trtllm_options.txt").read_text().split()
    assert len(names) > 100
    unlisted = [name for name in names if not any(f"{key}.".startswith(f"{name}.") for key in options)]
    assert unlisted == []


def test_an_option_that_is_off_changes_nothing() -> None:
    line = "trtllm-serve Qwen/Qwen3-14B --config options.yml"
    text = "enable_lora: {}\nenable_in_graph_sampling: {}\npeft_cache_config: null\n"
    on, off = (
        read_launch([f"cat > options.yml <<'EOF'\n{text.format(word, word)}EOF\n{line}"])
        for word in ("true", "false")
    )
    assert off.unmodelled == []
    assert [each.partition(":")[0] for each in on.unmodelled] == [
        "enable_lora=true",
        "enable_in_graph_sampling=true",
    ]
