"""Triton kernels. Importing a module here imports triton; nothing outside this folder does so early."""
