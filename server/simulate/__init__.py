"""`octavo simulate`: brings the simulator (`scheduler.simulation`) together with what reads loads
and writes reports (`clients`). Torch is never imported."""

from server.simulate.command import main

__all__ = ["main"]
