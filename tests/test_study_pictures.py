"""The pictures of a study's report, and the page that has them all."""

from base64 import b64decode
from html.parser import HTMLParser

import pytest
from browsers import chromium
from reported import RECORDS, curve, lines, report, with_curves, write

from fixedbert.study import make_report
from fixedbert.study.difference_figures import bounds, curves_figure, differences_figure
from fixedbert.study.figure import metrics_figure, sideways
from fixedbert.study.shape_results import Estimate


class Page(HTMLParser):
    """The tags of a page with their attributes, its text, and whether every tag that is opened is closed."""

    EMPTY = ("meta", "img", "input")

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_page_needs_no_other_file(tmp_path):
    """Guards: report.html is well-formed, has all of the report and its pictures, and refers to nothing outside."""
    name = "<script>alert('x')</script> & \"4\" $a$ $b_$"
    changes = {"series": name, "question": "Is a < b & c?", "curve": curve(5, 4, 3, 2, 1)}
    records = [{**record, **changes} for record in RECORDS[:3] + RECORDS[4:7]]
    text = report([write(tmp_path / "runs.jsonl", records)], tmp_path / "out")
    html = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    page = Page(html)
    pictures = [attributes for tag, attributes in page.tags if tag == "img"]
    assert {tag for tag, _ in page.tags}.isdisjoint(("link", "iframe", "object", "a"))
    assert [tag for tag, _ in page.tags].count("script") == 1  # the page's own
    assert {key for _, attributes in page.tags for key in attributes}.isdisjoint(("href", "srcset", "style"))
    assert "http:" not in html and "https:" not in html and "url(" not in html and "@import" not in html
    start = "data:image/png;base64,"
    assert all(one["src"].startswith(start) and one["alt"] for one in pictures) and name in pictures[0]["alt"]
    files = [(tmp_path / "out" / file).read_bytes() for file in ("report.png", "differences.png", "curves.png")]
    assert [b64decode(one["src"].removeprefix(start)) for one in pictures] == files
    assert "Is a < b & c?" in page.text and f"{name}, heads 2 to 4: -2.5 ± 3.7, within the spread" in page.text
    assert "fixedbert study heads --scale tiny --train_file TEXTS --output_dir heads" in page.text
    for line in text.splitlines():  # all that report.md has
        cells = line.strip("| ").split(" | ") if line.startswith("| ") else [line.lstrip("#- ").rstrip(":")]
        assert line.startswith("|---") or all(cell in page.text for cell in cells), line


def test_page_in_a_browser(tmp_path):
    """Guards: the table has the rows of those series alone whose boxes are checked; on a telephone all fits."""
    report([write(tmp_path / "runs.jsonl", RECORDS)], tmp_path / "out")
    with chromium() as browser:
        browser.get((tmp_path / "out" / "report.html").as_uri())

        def series() -> list[str]:
            cells = browser.find_elements("css selector", "#results td:first-child")
            return [cell.text for cell in cells if cell.is_displayed()]

        assert series() == ["standard", "standard", "wide"]
        standard, wide = browser.find_elements("css selector", "#series input")
        standard.click()
        assert series() == ["wide"]
        standard.click()
        wide.click()
        assert series() == ["standard", "standard"]
        assert browser.get_log("browser") == []
        narrow = {"width": 400, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", narrow)
        root = "document.documentElement"
        inside, outside = browser.execute_script(f"return [{root}.scrollWidth, {root}.clientWidth]")
        assert inside <= outside + 1  # of rounding: a commit is one long word


def test_picture_of_differences():
    """Guards: of every pair a dot at the mean, its interval and its seeds; one seed is hollow, without an interval."""
    report = make_report([*RECORDS, *lines("lone", 0, 2, [9.0]), *lines("lone", 1, 4, [8.5])])
    (panel,) = differences_figure(report).axes
    dots = {line.get_ydata()[0]: line for line in panel.lines if line.get_marker() == "o"}
    assert {row: pytest.approx(line.get_xdata()[0]) for row, line in dots.items()} == {0: -2.5, 1: -0.5, 2: -0.25}
    assert [line.get_markerfacecolor() for line in dots.values()] == ["C0", "none", "C1"]
    intervals = {line.get_ydata()[0]: list(line.get_xdata()) for line in panel.lines if line.get_linewidth() == 2}
    assert intervals.keys() == {0, 2}
    half = 4.302653 * 1.5 / 3**0.5
    assert intervals[0] == [pytest.approx(-2.5 - half), pytest.approx(-2.5 + half)]
    seeds = [sorted(line.get_xdata()) for line in panel.lines if line.get_marker() == "|"]
    assert seeds == [[-4, -2.5, -1], [-0.5], [pytest.approx(-0.4), pytest.approx(-0.1)]]
    assert [text.get_text() for text in panel.texts][1:] == ["-0.5  (1 seed)", "-0.25 ± 1.9  (2 seeds)"]
    assert panel.get_xlabel() == "difference in held-out perplexity; left of zero is better"
    low, high = panel.get_xlim()
    assert low <= -2.5 - half and high >= -2.5 + half


def test_axis_of_differences():
    """Guards: zero, seeds and intervals are on the axis, and the interval of two seeds that disagree is cut."""
    low, high = bounds([Estimate({1: 1.0, 2: 1.1, 3: 0.9})])
    assert low == pytest.approx(-0.05 * 1.248414) and high == pytest.approx(1.05 * 1.248414)
    assert bounds([Estimate({1: 0.0, 2: 1.0})]) == (pytest.approx(-1.15), pytest.approx(2.15))  # not to 6.85
    assert bounds([Estimate({1: 0.0})])[0] < bounds([Estimate({1: 0.0})])[1]


def test_picture_of_curves():
    """Guards: a panel for each series, a line with its band for each pair, and none of a single seed."""
    whole, low = curve(5, 4, 3, 2, 1), curve(4, 3, 2, 1, 0.5)
    panels = curves_figure(make_report(with_curves({2: [whole, whole], 4: [whole, whole], 8: [low, low]}))).axes
    assert len(panels) == 1 and panels[0].get_xscale() == "log" and len(panels[0].collections) == 2
    drawn = [line for line in panels[0].lines if line.get_marker() == "o"]
    assert [line.get_label() for line in drawn] == ["heads 2 (2 seeds)", "heads 4 (2 seeds)"]
    assert list(drawn[0].get_xdata()) == [100, 200, 480, 700, 1000] and list(drawn[0].get_ydata()) == [1, 1, 1, 1, 0.5]
    (panel,) = curves_figure(make_report(with_curves({2: [whole], 4: [low]}))).axes
    assert len(panel.collections) == 0 and panel.lines[0].get_markerfacecolor() == "none"


def test_series_do_not_cover_each_other():
    """Guards: series at one place are drawn beside each other, in their order, and not as far as the next place."""
    names = [f"series {number}" for number in range(14)]
    places = sideways([*((name, 2) for name in names), ("series 3", 3), ("series 3", 32), ("series 5", 32)])
    at_two = [places[name, 2] for name in names]
    assert len(set(at_two)) == 14 and at_two == sorted(at_two) and at_two[0] * at_two[-1] == pytest.approx(4)
    assert at_two[-1] < places["series 3", 3] == 3 and places["series 3", 32] < 32 < places["series 5", 32]
    assert sideways([("a", 1000), ("b", 1001), ("a", 1000)])["b", 1001] > 1001  # parameters made equal: one place
    assert sideways([("a", 4)]) == {("a", 4): 4}


def test_equal_parameters_are_one_place():
    """Guards: shapes with as many parameters are moved sideways by little beside what the axis shows."""
    low, high = metrics_figure(make_report(RECORDS)).axes[1].get_xlim()
    assert low < 104_000 / 1.5 and high > 104_000 * 1.5
