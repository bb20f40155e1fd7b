"""Triton kernels. Each has a slow twin in plain torch, which its tests compare it with."""
