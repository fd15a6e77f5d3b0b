"""Triton programs. They are started by `engine/cuda/launch.py` and `engine/cuda/matmul.py`."""
