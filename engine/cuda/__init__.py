"""What an engine on a CUDA device has of its own: kernels that read the pages in place, staging of
a step's tensors, recorded decode steps, memory, arithmetic that does not depend on the batch.

`kernels/` holds Triton programs. Only `launch.py` and `matmul.py` import them, and nothing imports
those before it is needed: Triton decides at import whether it compiles or interprets, and a machine
without it must start all the same.
"""
