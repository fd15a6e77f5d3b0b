"""HTTP in front of the engine: protocol, routes, text in and out, command line.

Never imports torch or transformers, not even indirectly: they live in the engine's process.
"""
