"""The page at `/ui`: a live map of the cache's pages, and a playground.

`feed` brings what the engine shows to every open page, `requests` remembers what ended meanwhile,
`files` holds what a browser loads. Nothing here does anything while no page is open.
"""
