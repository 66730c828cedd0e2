#!/usr/bin/env bash
# A server of TensorRT-LLM as AIConfigurator's generator starts it: room for one prompt and all decodes in a step, padded
# CUDA graphs for all of them, no reuse of blocks unless asked for (src/aiconfigurator/generator/rule_plugin and
# config/backend_config_mapping.yaml, Apache-2.0). Before these rules its templates had
# the overlap scheduler off, and some have a share of the free memory other than the engine's default
# (src/aiconfigurator/generator/config/backend_templates/trtllm/extra_engine_args.1.0.0rc3.yaml.j2).
# MODEL, RELEASE, TP (GPUs), DP (1, or TP), EP, CONC (requests in flight), ISL (tokens of a prompt)
IMAGE=nvcr.io/nvidia/tensorrt-llm/release:${RELEASE:-}
SEQS=$((CONC > 512 ? CONC : 512))
TOKENS=$(((SEQS + ISL + 1500 + 31) / 32 * 32))
ATTENTION_DP=false
if [ "$DP" -gt 1 ]; then
  ATTENTION_DP=true
fi
NO_OVERLAP=false
case "$RELEASE" in
  1.0* | 1.1*) NO_OVERLAP=true ;;
esac
SHARE=0.9
case "$RELEASE" in
  1.0* | 1.3*) SHARE=0.8 ;;
esac
cat > options.yml <<EOF
max_batch_size: $SEQS
max_num_tokens: $TOKENS
enable_attention_dp: $ATTENTION_DP
disable_overlap_scheduler: $NO_OVERLAP
cuda_graph_config: {enable_padding: true, max_batch_size: $SEQS}
kv_cache_config: {free_gpu_memory_fraction: $SHARE, enable_block_reuse: false}
EOF
trtllm-serve "$MODEL" --tp_size "$TP" --ep_size "$EP" --extra_llm_api_options options.yml
