"""The generator of corpora finds no fault, and notices when files or documents get lost."""

import pytest

from soak import corpora
from soak.trials import run

BREAKS = {
    "files behind links": (
        "fixedbert.data.corpora.without_aliases",
        lambda paths: [path for path in paths if "linked" not in path.parts],
    ),
    "duplicates": ("fixedbert.data.store.np.unique", lambda x, return_index: (x, range(len(x)))),
    "truncated files": ("fixedbert.data.file_formats.io.BufferedReader", lambda stream: iter([b"The cat sits.\n"])),
}


@pytest.mark.parametrize("broken", ["nothing", *BREAKS])
def test_corpora(tmp_path, monkeypatch, broken):
    """A sample of cases has no fault, and has some if a part of reading is broken."""
    if broken != "nothing":
        monkeypatch.setattr(*BREAKS[broken])
    faulty = run(corpora.trial, range(12), 1, tmp_path)
    assert bool(faulty) == (broken != "nothing"), faulty
