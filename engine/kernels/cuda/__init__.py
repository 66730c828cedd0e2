"""CUDA C++ kernels behind a plain C ABI: built once by nvcc, loaded by ctypes."""
