"""Asks a Prometheus every query of the dashboard and of the alert rules.

    python docker/monitoring/check.py http://127.0.0.1:9090

Exit code 1 where one of them is refused, or names a series that Prometheus has never seen: a panel
over a renamed metric stays empty without a word. To be run while the server has had some traffic.
"""

import json
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

FOLDER = Path(__file__).parent


def ask(base_url: str, path: str, **parameters: str) -> list[dict[str, object]] | list[str]:
    url = f"{base_url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(url, timeout=10) as reply:
        answer = json.load(reply)["data"]
    return answer["result"] if isinstance(answer, dict) else answer


def queries() -> list[tuple[str, str]]:
    """Where each comes from, and the query with Grafana's variables filled in."""
    dashboard = json.loads((FOLDER / "grafana" / "octavo.json").read_text())
    found = [
        (panel["title"], target["expr"])
        for panel in dashboard["panels"]
        for target in panel["targets"]
    ]
    rules = (FOLDER / "alerts.yml").read_text()
    for name, rule in re.findall(r"alert: (\w+)\n\s+expr: (.+?)\n\s+(?:for|labels):", rules, re.S):
        found.append((name, " ".join(rule.removeprefix(">-").split())))
    filled = {"$__rate_interval": "1m", "$model": ".*"}
    for variable, value in filled.items():
        found = [(name, query.replace(variable, value)) for name, query in found]
    return found


def main(base_url: str) -> int:
    known = set(ask(base_url, "label/__name__/values"))
    problems = 0
    for name, query in queries():
        missing = sorted(set(re.findall(r"octavo:\w+", query)) - known)
        try:
            num_series = len(ask(base_url, "query", query=query))
        except urllib.error.HTTPError as error:
            num_series, missing = 0, [error.read().decode()]
        problems += bool(missing)
        print(f"{'BAD' if missing else 'ok ':3} {num_series:3} series  {name}  {' '.join(missing)}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1].rstrip("/")))
