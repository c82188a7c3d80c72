"""inspection.html: shows the measured numbers, and works in a browser."""

import json
import math
import re
import shutil
from base64 import b64decode
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from fixedbert.inspection.inspect import inspect
from fixedbert.inspection.page import inspection_html
from fixedbert.inspection.results import MAPS, MEASURES, Example, Inspection, json_fields

EVIL = "</script><script>document.title = 'broken'</script><b>&amp;"


class Page(HTMLParser):
    """Parses a page into its tags and the data for its script."""

    def __init__(self, html: str):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.texts: list[str] = []
        self.feed(html)
        found = next(i for i, (tag, attributes) in enumerate(self.tags) if attributes.get("id") == "data")
        self.data = json.loads(self.texts[found], parse_constant=pytest.fail)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.texts.append("")

    def handle_data(self, data):
        if self.texts:
            self.texts[-1] += data


def inspection_of(name: str, counts: list[int], sizes: list[int], tokens: list[str]) -> Inspection:
    """Returns an inspection with random measures."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    layers, heads, n = len(counts), max(counts), len(tokens)
    absent = torch.arange(heads) >= torch.tensor(counts)[:, None]
    measures = {name: random(layers, heads).masked_fill(absent, math.nan) for name in MEASURES}
    return Inspection(
        name, layers, heads, counts, sizes, 64, 128, 13, 7, condition_number=1 + random(layers), **measures,
        singular_values=[random(h, p).sort(descending=True).values for h, p in zip(counts, sizes, strict=True)],
        similarities=[random(h, h) for h in counts],
        examples=[
            Example(
                f"Sentence {number}.", tokens,
                attention=[random(h, n, n).softmax(-1) for h in counts], changes=[random(h, n) for h in counts],
            )
            for number in range(2)
        ],
    )  # fmt: skip


BEFORE = inspection_of("runs/before", [2, 5, 3], [3, 13, 6], ["[CLS]", "the", "function", "returns", EVIL, "[SEP]"])


@pytest.fixture
def text(tmp_path) -> str:
    file = tmp_path / "text.txt"
    file.write_text("The function takes a list and returns one string. What does the file read? Read.\n" * 40)
    return str(file)


def same_numbers(shown: object, exact: object) -> bool:
    if isinstance(exact, list):
        return len(shown) == len(exact) and all(map(same_numbers, shown, exact))
    return shown == pytest.approx(exact, rel=5e-4) if isinstance(exact, float) else shown == exact


def check_numbers(found: Inspection, side: dict):
    """Checks that a page contains measures with four digits, changes with three, and attention weights as bytes."""
    for name, value in json_fields(found).items():
        assert same_numbers(side[name], value), name
    for example, shown in zip(found.examples, side["examples"], strict=True):
        weights = torch.cat([of_layer.flatten() for of_layer in example.attention])
        assert list(b64decode(shown["attention"])) == [round(255 * one) for one in weights.tolist()]
        assert shown["tokens"] == example.tokens
        for changes, of_layer in zip(example.changes, shown["changes"], strict=True):
            assert torch.tensor(of_layer).allclose(changes.float(), rtol=1e-2)


def test_page_shows_the_results_of_inspect(model, text, tmp_path):
    """The page contains the numbers that `inspect` returns, all within the color scales."""
    found = inspect(model, tmp_path / "out", text, max_seq_length=16, max_eval_samples=5)
    data = Page((tmp_path / "out" / "inspection.html").read_text(encoding="utf-8")).data
    check_numbers(found, data["checkpoint"])
    sentences = [example["sentence"] for example in data["checkpoint"]["examples"]]
    assert sentences == ["The function takes a list and returns one string.", "What does the file read?"]
    assert data["checkpoint"]["examples"][1]["tokens"] == "[CLS] what does the file read ? [SEP]".split()
    for one in data["maps"]:
        low, high = one["limits"]
        assert low == 0 and getattr(found, one["name"]).max() <= high + 1e-6
    assert json.loads((tmp_path / "out" / "inspection.json").read_text()) == json_fields(found)


def test_markup_is_escaped():
    """Markup in names and tokens neither closes the script element nor creates tags."""
    page = Page(inspection_html(inspection_of("<i>" + EVIL, [1], [3], [EVIL] * 5)))
    tags = [tag for tag, _ in page.tags]
    assert tags.count("script") == 2 and "i" not in tags and "b" not in tags
    assert page.data["checkpoint"]["examples"][0]["tokens"] == [EVIL] * 5


def test_page_is_self_contained():
    """The page loads no other resources, and its content security policy forbids it."""
    html = inspection_html(BEFORE)
    attributes = {name for _, found in Page(html).tags for name in found}
    assert attributes.isdisjoint(("src", "href", "srcset", "action"))
    assert set(re.findall(r"\w+://[^\"')\s]*", html)) == {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in html and "url(" not in html and "@import" not in html


@pytest.fixture(scope="module")
def browser() -> Iterator:
    """Yields a Selenium driver for headless Chromium without network access. Skips the test if one is missing."""
    webdriver = pytest.importorskip("selenium.webdriver")
    driver = shutil.which("chromedriver")
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    if driver is None or executable is None:
        pytest.skip("Chromium or its driver not found; install them with `make browser`")
    options = webdriver.ChromeOptions()
    options.binary_location = executable
    offline = "host-resolver-rules=MAP * ~NOTFOUND"
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "window-size=1400,1000", offline):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield opened
    opened.quit()


class Reader:
    """Simulates a reader with a mouse."""

    def __init__(self, browser, folder: Path, inspection: Inspection):
        from selenium.webdriver import ActionChains
        from selenium.webdriver.common.keys import Keys
        from selenium.webdriver.support.ui import WebDriverWait

        self.browser, self.keys, self.hand = browser, Keys, ActionChains(browser)
        file = folder / "inspection.html"
        file.write_text(inspection_html(inspection), encoding="utf-8")
        browser.get(file.as_uri())
        WebDriverWait(browser, 20).until(lambda _: self.all(".map button"))  # slow on a busy machine

    def all(self, selector: str) -> list:
        return self.browser.find_elements("css selector", selector)

    def one(self, selector: str):
        return self.browser.find_element("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        return [found.text for found in self.all(selector)]

    def errors(self) -> list:
        return self.browser.get_log("browser")


@pytest.fixture
def alone(browser, tmp_path) -> Reader:
    return Reader(browser, tmp_path, BEFORE)


def digits(value: float) -> str:
    return f"{float(f'{float(value):.3g}'):g}"


def test_maps_show_numbers(alone):
    """Each measure has a map with a cell for each head, and pointing at a cell shows its value."""
    assert len(alone.all(".map")) == len(MAPS) and len(alone.all(".map button")) == len(MAPS) * (2 + 5 + 3)
    section = alone.all(".measure")[list(MAPS).index("entropy")]
    assert section.find_element("tag name", "h2").text == MAPS["entropy"]
    cell = section.find_element("css selector", "[data-row='1'][data-column='4']")
    alone.hand.move_to_element(cell).perform()
    shown = section.find_element("class name", "readout").text
    assert shown == f"layer 1, head 4: {digits(BEFORE.entropy[1, 4])}"
    assert alone.errors() == []


def test_details_of_a_head(alone):
    """Clicking a cell shows the head's attention, changes, nearest head, singular values and measures."""
    alone.one(".map [data-row='1'][data-column='3']").click()
    tokens = BEFORE.examples[0].tokens
    assert alone.texts(".queries button") == tokens and alone.browser.title == "Heads of before"
    alone.hand.move_to_element(alone.all(".queries button")[3]).perform()
    weights = BEFORE.examples[0].attention[1][3, 3]
    assert alone.texts(".key .weight") == [f"{round(255 * float(one)) / 255:.2f}" for one in weights]
    visible = alone.all("g[visibility=visible]")
    assert len(visible) == 1 and len(visible[0].find_elements("tag name", "line")) == len(tokens)
    assert alone.one(".panel .readout").text.startswith("returns attends to ")
    assert alone.texts(".change small") == [digits(one) for one in BEFORE.examples[0].changes[1][3]]
    assert f"by {digits(100 * BEFORE.importance[1, 3])}%" in alone.one(".importance").text
    assert len(alone.all(".bars span")) == 13
    assert f"effective rank is {digits(BEFORE.effective_rank[1, 3])} (at most 13)" in alone.one(".rank").text
    nearest = int(BEFORE.similarities[1][3].masked_fill(torch.arange(5) == 3, -1).argmax())
    alone.one(".nearest button").click()
    assert alone.one(".choice").get_property("value") == f"1 {nearest}"
    assert alone.texts(".measures td")[1] == digits(BEFORE.utilization[1, nearest])
    alone.one("#sentence").send_keys(alone.keys.ARROW_DOWN)
    assert alone.texts(".change small") == [digits(one) for one in BEFORE.examples[1].changes[1][nearest]]
    assert alone.errors() == []
