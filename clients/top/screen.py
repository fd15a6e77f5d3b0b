"""The picture that `octavo top` draws: one table of figures, two bars."""

from rich.table import Table
from rich.text import Text

from clients.top.readings import Figures

_BAR_WIDTH = 40
# Colours as on the page map: what requests hold, what is kept for those to come, what is empty.
_PAGE_STYLES = {"in_use": "green", "cached": "cyan", "free": "bright_black"}


def draw(figures: Figures, url: str) -> Table:
    table = Table.grid(padding=(0, 3))
    table.title = Text(f"{figures.model or 'no model yet'} at {url}", style="bold")
    table.title_justify = "left"
    table.add_row("running", f"{figures.running:.0f}", "waiting", f"{figures.waiting:.0f}")
    table.add_row(
        "tokens/s",
        f"{figures.generation_rate:.1f}",
        "prompt tokens/s",
        f"{figures.prompt_rate:.1f}",
    )
    hits = "-" if figures.hit_rate is None else f"{figures.hit_rate:.1%}"
    table.add_row("prompt from cache", hits, "preemptions/s", f"{figures.preemption_rate:.2f}")
    table.add_row(
        "first token",
        _latency(figures.first_token),
        "between tokens",
        _latency(figures.inter_token),
    )
    table.add_row(
        "finished", f"{figures.finished:.0f}", "engine restarts", f"{figures.restarts:.0f}"
    )
    table.add_row("pages", _page_bar(figures), f"{figures.usage:.1%} in use", "")
    return table


def line(figures: Figures) -> str:
    """The same in one plain line, for a pipe."""
    parts = [
        f"running={figures.running:.0f}",
        f"waiting={figures.waiting:.0f}",
        f"pages_in_use={figures.usage:.1%}",
        f"tokens_per_second={figures.generation_rate:.1f}",
        f"prompt_tokens_per_second={figures.prompt_rate:.1f}",
    ]
    if figures.hit_rate is not None:
        parts.append(f"from_cache={figures.hit_rate:.1%}")
    if figures.first_token is not None:
        parts.append(f"first_token_p50_ms={figures.first_token[0] * 1000:.0f}")
    if figures.inter_token is not None:
        parts.append(f"between_tokens_p50_ms={figures.inter_token[0] * 1000:.1f}")
    return " ".join(parts)


def _latency(latency: tuple[float, float] | None) -> str:
    if latency is None:
        return "-"
    median, high = (seconds * 1000 for seconds in latency)
    return f"{median:.0f} ms, p99 {high:.0f}"


def _page_bar(figures: Figures) -> Text:
    total = sum(figures.pages.values())
    bar = Text()
    for state, style in _PAGE_STYLES.items():
        count = figures.pages.get(state, 0.0)
        width = round(_BAR_WIDTH * count / total) if total else 0
        # A single page of many thousands is there too.
        bar.append("█" * max(width, 1 if count else 0), style=style)
    return bar
