"""`octavo top`: a server's figures in the terminal, as they change."""

from clients.top.command import main

__all__ = ["main"]
