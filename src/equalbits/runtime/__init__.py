"""Torch-free inference: the packed file, the meaning of a bit, and the engines that run it. Numpy is all it needs."""
