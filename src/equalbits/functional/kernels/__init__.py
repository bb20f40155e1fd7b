"""Triton kernels for the GPU. Each is equal to a plain torch or numpy function, named in its docstring."""
