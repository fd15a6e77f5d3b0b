"""The report's page: one file with everything in it, light or dark as the reader's system is."""

from html import escape
from importlib.resources import files

_HOME = files("clients.bench.report")


def page(title: str, subtitle: str, body: str) -> str:
    """A whole document; `body` is HTML."""
    style, script = ((_HOME / name).read_text() for name in ("page.css", "page.js"))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body><main>"
        f'<h1>{escape(title)}</h1><p class="sub">{escape(subtitle)}</p>{body}'
        f"</main><script>{script}</script></body></html>\n"
    )


def section(title: str, content: str, *, grid: bool = False, card: bool = False) -> str:
    """Nothing at all where there is no content."""
    if not content:
        return ""
    kind = ' class="grid"' if grid else ' class="card"' if card else ""
    return f"<h2>{escape(title)}</h2><div{kind}>{content}</div>"
