"""The dashboard in headless Chromium: what it shows, what it downloads, and that it needs nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from atom_server.cli.main import main
from browser import Browser, needs_chromium

pytestmark = needs_chromium
RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
BLUE = "rgb(0, 114, 178)"


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory):
    """The page of the results that the repository keeps, open in a window of 1000 pixels."""
    folder = tmp_path_factory.mktemp("dashboard")
    kept = [*sorted(RESULTS.glob("served-*.json")), *sorted(RESULTS.glob("accuracy-*.json"))]
    page = folder / "dashboard.html"
    assert main(["bench", "dashboard", *map(str, kept), "--output", str(page)]) == 0
    with Browser(folder) as browser:
        browser.command("Emulation.setDeviceMetricsOverride", width=1000, height=900, deviceScaleFactor=1, mobile=False)
        browser.open(page.as_uri())
        yield browser
        assert browser.console() == []


def test_it_shows_charts_trends_accuracy_and_files(window: Browser):
    assert window.text("h1") == "ATOM: measurements"
    headings = window.run("return [...document.querySelectorAll('h2')].map(e => e.textContent)")
    assert headings == ["Throughput against latency", "Trends", "Accuracy", "Files"]
    assert "qwen3-0.6b" in window.text("h3")
    assert "perplexity" in window.text("th")


def test_every_dot_of_a_chart_is_seen_and_says_what_it_is(window: Browser):
    dots = window.run(
        "return [...document.querySelectorAll('circle')].map(e => {"
        "const dot = e.getBoundingClientRect(), chart = e.ownerSVGElement.getBoundingClientRect();"
        "return [dot.width > 4, dot.left >= chart.left && dot.right <= chart.right, "
        "dot.top >= chart.top && dot.bottom <= chart.bottom, e.textContent]})"
    )
    assert dots
    assert all(wide and across and down and "tokens/s" in said for wide, across, down, said in dots)
    assert window.run("return getComputedStyle(document.querySelector('circle')).fill") == BLUE


def test_every_label_of_a_chart_lies_within_it(window: Browser):
    outside = window.run(
        "return [...document.querySelectorAll('svg text')].filter(e => {"
        "const text = e.getBoundingClientRect(), chart = e.ownerSVGElement.getBoundingClientRect();"
        "return text.left < chart.left || text.right > chart.right || text.bottom > chart.bottom"
        "}).map(e => e.textContent)"
    )
    assert outside == []


def test_nothing_is_wider_than_the_window(window: Browser):
    assert window.run("return document.documentElement.scrollWidth") <= 1000


def test_a_file_within_the_page_is_the_one_that_was_read(window: Browser):
    name, text = window.run(
        "const link = document.querySelector('a[download]');return [link.download, atob(link.href.split(',')[1])]"
    )
    assert text == (RESULTS / name).read_text()


def test_the_page_loads_nothing_from_anywhere(window: Browser):
    assert window.run("return performance.getEntriesByType('resource').map(e => e.name)") == []
