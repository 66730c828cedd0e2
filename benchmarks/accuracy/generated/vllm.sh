#!/usr/bin/env bash
# A vLLM server as AIConfigurator's generator starts it: room for one prompt and all decodes in a step
# (src/aiconfigurator/generator/rule_plugin, Apache-2.0).
# MODEL, RELEASE, TP (GPUs), DP (replicas of attention), EP, CONC (requests in flight), ISL (tokens of a prompt)
IMAGE=vllm/vllm-openai:v${RELEASE:-}
SEQS=$((CONC > 512 ? CONC : 512))
TOKENS=$(((SEQS + ISL + 1500 + 31) / 32 * 32))
ARGS=(--max-num-seqs "$SEQS" --max-num-batched-tokens "$TOKENS")
if [ "$EP" -gt 1 ]; then
  ARGS+=(--enable-expert-parallel)
fi
vllm serve "$MODEL" --tensor-parallel-size $((TP / DP)) --data-parallel-size "$DP" "${ARGS[@]}"
