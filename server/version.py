"""The version of the installed distribution; stdlib only, for the command line's sake."""

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as distribution_version


def version() -> str:
    try:
        return distribution_version("octavo")
    except PackageNotFoundError:
        return "0+not-installed"
