#!/usr/bin/env bash
# The change under review: twice the sequences, a smaller token budget.
vllm serve Qwen/Qwen3-14B --max-num-seqs 512 --max-num-batched-tokens 2048 --max-model-len 16384 \
  --gpu-memory-utilization 0.9 --port 8000
