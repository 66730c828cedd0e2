"""Building blocks of the decoder, each holding its fused weights and calling `engine.kernels`."""
