"""The results of trials: lines of JSON in one file, so that what is done is not done again."""

import json
from pathlib import Path


class Results:
    """The file `soak.jsonl`; each line has a `trial`."""

    def __init__(self, file: Path):
        self.file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        whole = file.read_text().split("\n")[:-1] if file.exists() else []
        self.lines = [json.loads(line) for line in whole]
        file.write_text("".join(line + "\n" for line in whole))

    def of(self, trial: str) -> list[dict]:
        return [line for line in self.lines if line["trial"] == trial]

    def add(self, trial: str, record: dict):
        self.lines.append({"trial": trial, **record})
        with open(self.file, "a") as file:
            file.write(json.dumps(self.lines[-1]) + "\n")
