"""A headless browser for tests of HTML pages."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def chromium() -> Iterator:
    """
    A context manager that provides a Selenium driver for headless Chromium without network access.

    Skips the test if Selenium, Chromium or its driver is missing.
    """
    webdriver = pytest.importorskip("selenium.webdriver")
    driver = shutil.which("chromedriver")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if driver is None or browser is None:
        pytest.skip("Chromium or its driver not found; install them with `make browser`")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    offline = "host-resolver-rules=MAP * ~NOTFOUND"
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "window-size=1400,1000", offline):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield opened
    finally:
        opened.quit()
