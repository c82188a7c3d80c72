"""Progress bars in log files."""

import pytest
from tqdm import std
from tqdm.auto import tqdm
from transformers.utils import logging

from fixedbert.support.progress import configure_progress_bars


@pytest.fixture(autouse=True)
def configured(monkeypatch):
    for name in ("display", "clear"):
        monkeypatch.setattr(std.tqdm, name, getattr(tqdm, name))
    configure_progress_bars()
    yield
    logging.set_tqdm_hook(None)


def test_a_line_per_tenth_in_log_files(capsys):
    """A bar prints at most 11 lines without carriage returns, also if other text is written; loading prints none."""
    with tqdm(total=37, desc="work", mininterval=0) as bar:
        for number in range(37):
            bar.update()
            bar.set_postfix(step=number)
        bar.write("note")
    *_, last = lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 11 and lines[0].startswith("work:   0%|") and "| 37/37 [" in last
    for _ in (*tqdm(iter(range(13)), mininterval=0), *logging.tqdm(range(13))):  # without a total; of weights
        pass
    printed = capsys.readouterr()
    assert not printed.err and not printed.out
