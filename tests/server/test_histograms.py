"""Our histograms say what the Prometheus library's would."""

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from server.histograms import Histogram as OurHistogram

BOUNDS = (0.001, 0.5, 1, 250)
VALUES = (0.0, 0.001, 0.0011, 0.5, 0.75, 1, 7, 250, 251, 1e9)


def lines(registry):
    """Of the page, but for the time at which the library's histogram was made."""
    page = generate_latest(registry).decode().splitlines()
    return sorted(line for line in page if "_created" not in line)


@pytest.mark.parametrize("values", [VALUES, VALUES[3:4]])
def test_the_page_is_that_of_the_library(values):
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    reference = Histogram("h", "About.", ["model_name"], buckets=BOUNDS, registry=theirs)
    histogram = OurHistogram("h", "About.", BOUNDS, lambda: "m")
    ours.register(histogram)
    for value in values:
        reference.labels("m").observe(value)
        histogram.observe(value)
    assert lines(ours) == lines(theirs)


def test_nothing_is_shown_before_the_first_observation():
    registry = CollectorRegistry()
    registry.register(OurHistogram("h", "About.", BOUNDS, lambda: "m"))
    assert all(line.startswith("#") for line in lines(registry))
