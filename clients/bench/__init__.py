"""`octavo bench`: a load test for any server with an OpenAI-style API.

`main(argv)` is the command. The modules, from the bottom: `plan` and `datasets` say what is sent,
`pace` and `arrivals` when; `runner` plays it through `sender`, `http` and `answer` into `records`;
`summary`, `timeline` and `scrape` make figures of them; `table`, `results`, `report` and `plots`
show those. Speaks HTTP only, and needs nothing beyond the base install except for `--png`.
"""

from clients.bench.command import main

__all__ = ["main"]
