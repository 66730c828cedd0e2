"""Lines behind other commands, in containers and shells, with flags in parts: read like those alone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from test_mutated_lines import mutated

from blis_py.errors import InputError
from blis_py.launch.reader import Launch, read_launch

VLLM = "vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2 --max-num-seqs 64"
SGLANG = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 2 --max-running-requests 64"
TRTLLM = "trtllm-serve Qwen/Qwen3-8B --tp_size 2 --max_batch_size 64"
LINES = {"vllm": VLLM, "sglang": SGLANG, "trtllm": TRTLLM}
IMAGES = {
    "vllm": ("vllm/vllm-openai:v0.19.0", "vllm-0.19.0"),
    "sglang": ("lmsysorg/sglang:v0.5.9", "sglang-0.5.9"),
    "trtllm": ("nvcr.io/nvidia/tensorrt-llm/release:1.2.0", "trtllm-1.2.0"),
}
AROUND = [
    "{}",
    'env -S "A=1 {}"',
    "env -i HOME=/root {}",
    "sudo -E nice -n 5 {}",
    "timeout -k 5 3600 numactl --cpunodebind=0 taskset -c 0-7 {}",
    "nohup {} > log 2>&1 &",
    "bash -lc '{}'",
    "ssh node1 'cd /work && exec {}'",
    'tmux new-session -d -s server "{}"',
    "su -c '{}' user",
    "sbatch --gpus=2 --wrap='{}'",
    "srun --gpus=2 bash -c '{}'",
    "mpirun -n 1 --allow-run-as-root {}",
    "uv run {}",
]
WITH_IMAGE = [
    "docker run --rm --gpus all --ipc=host -v /a:/b --entrypoint '' {image} {line}",
    "sudo docker run -d --runtime nvidia --env 'HF_TOKEN=x' {image} bash -c '{line}'",
    "podman run --device nvidia.com/gpu=all --security-opt=label=disable docker.io/{image} {line}",
    "srun --container-image={image} --container-mounts=/a:/b {line}",
    "srun --container-image {image} bash -c '{line}'",
    "apptainer exec --nv docker://{image} {line}",
    "apptainer run --nv docker://{image} {line}",
    "IMAGE={image}\ndocker run --gpus '\"device=0,1\"' $IMAGE {line}",
]


def found(launch: Launch) -> tuple[Any, ...]:
    values = launch.values
    return values["model"], values["tp"], values["scheduler.max_num_seqs"], launch.unknown


@pytest.mark.parametrize("engine", LINES)
@pytest.mark.parametrize("around", AROUND)
def test_a_line_behind_other_commands_is_the_line(around: str, engine: str) -> None:
    launch = read_launch([around.format(LINES[engine])])
    assert found(launch) == ("Qwen/Qwen3-8B", 2, 64, [])


@pytest.mark.parametrize("engine", LINES)
@pytest.mark.parametrize("around", WITH_IMAGE)
def test_a_line_in_a_container_has_its_release(around: str, engine: str) -> None:
    image, preset = IMAGES[engine]
    launch = read_launch([around.format(image=image, line=LINES[engine])])
    assert found(launch) == ("Qwen/Qwen3-8B", 2, 64, [])
    assert launch.values["engine"] == preset


def test_variables_before_a_shell_are_those_of_its_server() -> None:
    with pytest.raises(InputError, match="VLLM_USE_V1: is not simulated: the engine before V1"):
        read_launch([f"env VLLM_USE_V1=0 bash -c '{VLLM}'"])


@pytest.mark.parametrize(
    ("line", "preset"),
    [
        ("uvx vllm==0.19.0 serve Qwen/Qwen3-8B -tp 2 --max-num-seqs 64", "vllm-0.19.0"),
        ("singularity exec --nv images/vllm-openai_v0.19.0.sif " + VLLM, "vllm-0.19.0"),
        ("enroot start --rw lmsysorg+sglang+v0.5.9.sqsh " + SGLANG, "sglang-0.5.9"),
        ("torchrun --nproc_per_node 2 -m vllm.entrypoints.openai.api_server --model=Qwen/Qwen3-8B -tp 2 "
         "--max_num_seqs 64", "vllm"),
        ("python -m sglang_router.launch_server --model-path Qwen/Qwen3-8B --tp 2 --max-running-requests 64",
         "sglang"),
    ],
)  # fmt: skip
def test_a_program_says_its_release(line: str, preset: str) -> None:
    launch = read_launch([line])
    assert found(launch) == ("Qwen/Qwen3-8B", 2, 64, [])
    assert launch.values["engine"] == preset


@pytest.mark.parametrize(
    ("flags", "key", "value"),
    [
        ("-cc.pass_config.fuse_allreduce_rms=True", "latency.fused_norms", True),
        ("--compilation-config.cudagraph_mode NONE", "latency.cuda_graphs", False),
        ("-O.cudagraph_mode=NONE", "latency.cuda_graphs", False),
        ("-cc.cudagraph_capture_sizes+ 1 -cc.cudagraph_capture_sizes+ 4", "latency.cuda_graph_sizes", [1, 4]),
        ("-cc.cudagraph_capture_sizes='[1, 8]'", "latency.cuda_graph_sizes", [1, 8]),
        ("-cc '{\"max_cudagraph_capture_size\": 32}' -cc.level=3", "latency.cuda_graph_max_size", 32),
    ],
)
def test_parts_of_a_mapping_are_settings(flags: str, key: str, value: Any) -> None:
    launch = read_launch([f"{VLLM} {flags}"])
    assert launch.values[key] == value
    assert not launch.unknown


def test_parts_of_flags_without_a_setting_are_named_by_the_flag() -> None:
    launch = read_launch([f"{VLLM} --speculative-config.method ngram -sc.num_speculative_tokens=4"])
    assert [each.partition(":")[0] for each in launch.unmodelled] == ["--speculative-config"]
    launch = read_launch([f"{VLLM} --hf-overrides.rope.factor 2 --kv-transfer-config.kv_role kv_producer"])
    assert launch.unmodelled == [
        '--hf-overrides {"rope": {"factor": 2}}: another configuration of the model: give --model-config'
    ]
    assert read_launch([f"{VLLM} --frob.x 3"]).unknown == ["--frob.x=3"]


def test_options_written_through_a_pipe_or_beside_the_caller_are_read(tmp_path: Path) -> None:
    script = "cat <<'EOF' | sudo tee /tmp/of-a-pipe.yml\nmax_batch_size: 32\nEOF\n"
    launch = read_launch([f"{script}trtllm-serve Qwen/Qwen3-8B --config /tmp/of-a-pipe.yml"])
    assert launch.values["scheduler.max_num_seqs"] == 32
    (tmp_path / "own.yaml").write_text("model: Qwen/Qwen3-8B\ntensor-parallel-size: 2\nmax-num-seqs: 64\n")
    assert found(read_launch([f"vllm serve --config {tmp_path / 'own.yaml'}"])) == (
        "Qwen/Qwen3-8B",
        2,
        64,
        [],
    )


@pytest.mark.parametrize("engine", LINES)
def test_a_flag_that_no_table_lists_is_named_wherever_it_stands(engine: str) -> None:
    chance = random.Random(7)
    for number in range(60):
        around = chance.choice(AROUND)
        words = LINES[engine].split(" ")
        first = next(at for at, word in enumerate(words) if word.startswith("--"))
        at = chance.randrange(first, len(words) + 1, 2) if (len(words) - first) % 2 == 0 else len(words)
        flag = f"--frob-{number}"
        given = chance.choice([[flag], [flag, "3"], [f"{flag}=3"]])
        text = " ".join([*words[:at], *given, *words[at:]])
        launch = read_launch([around.format(text)])
        assert any(each.startswith(flag) for each in launch.unknown), text


@pytest.mark.parametrize("engine", LINES)
@pytest.mark.parametrize("number", range(10))
def test_twenty_mutated_lines_end_in_a_configuration_or_a_sentence(engine: str, number: int) -> None:
    chance = random.Random(f"{engine} {number}")
    for _ in range(20):
        wrapped = chance.choice([*AROUND, *WITH_IMAGE])
        line = wrapped.format(LINES[engine], image=IMAGES[engine][0], line=LINES[engine])
        more = chance.choice(["-cc.level=2", "--config x.yml", "<<EOF\na: 1\nEOF", "$SEQS", "--a.b.c+ [1"])
        outcome = read(f"{mutated(f'{line} {more}', chance)} ")
        assert "\n" not in outcome


def read(text: str) -> str:
    """What was read in words, or the complaint."""
    try:
        return "".join(read_launch([text]).lines())
    except InputError as error:
        return str(error)
