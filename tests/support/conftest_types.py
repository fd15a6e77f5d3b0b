"""Types of the fixtures that several test folders take."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

TinyModelDir: TypeAlias = Callable[[str], Path]
