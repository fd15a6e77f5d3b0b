"""How the clients' commands read their flags."""

import argparse
from typing import NoReturn


class ArgumentParser(argparse.ArgumentParser):
    """Says what is wrong in one line; the usage is in --help."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")
