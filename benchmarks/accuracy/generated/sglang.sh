#!/usr/bin/env bash
# A server of SGLang as AIConfigurator's generator starts it: chunks mixed with decodes in the versions it was
# written for, from 0.5.5 on, and no cache of prefixes unless asked for (src/aiconfigurator/generator/rule_plugin and
# config/backend_config_mapping.yaml, Apache-2.0).
# MODEL, RELEASE, TP (GPUs), DP (replicas of attention), EP
IMAGE=lmsysorg/sglang:v${RELEASE:-}
ARGS=(--disable-radix-cache)
if [ "$DP" -gt 1 ]; then
  ARGS+=(--dp-size "$DP" --enable-dp-attention)
fi
case "$RELEASE" in
  0.5.[5-9]* | 0.5.[1-9][0-9]*) ARGS+=(--enable-mixed-chunk) ;;
esac
python3 -m sglang.launch_server --model-path "$MODEL" --tp-size "$TP" --ep-size "$EP" "${ARGS[@]}"
