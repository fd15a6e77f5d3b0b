"""`octavo chat`: a conversation in the terminal, on the SDK.

`main(argv)` is the command. A terminal gets a prompt, line editing and figures after each answer;
through a pipe every line of standard input is a message, standard output holds the answers and
nothing else, and the first failure ends the program with exit code 1.
"""

from clients.chat.command import main

__all__ = ["main"]
