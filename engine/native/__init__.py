"""Octavo's own CPU kernels: a small C++ library, built once per instruction set, loaded by ctypes.

`build.py` compiles (at install, or by hand with `python -m engine.native.build`), `library.py`
chooses and loads. Neither imports torch: kernels see nothing but pointers.
"""
