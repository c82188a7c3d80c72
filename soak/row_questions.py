"""Files with questions about contexts in the formats of SQuAD, and the answers to them."""

import json
import random
import re
from pathlib import Path

import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

from fixedbert.tasks.questions import load_squad

from .row_cases import SURROGATE, Case, as_read, draw_text
from .row_files import FAULTS, Draft, draft, is_encodable
from .row_texts import QUIET

FORMS = ("squad", "squad", "data", "list", "articles", ".jsonl", ".json", ".parquet", ".csv", ".tsv")
OFFICIAL = ("squad", "articles")


class QuestionFile:
    """A file with questions."""

    def __init__(self, rng: random.Random, directory: Path, plain: bool):
        self.rng, self.form, self.plain = rng, rng.choice(FORMS), plain
        self.is_table = self.form.startswith(".")
        separated = self.form in (".csv", ".tsv")
        self.answered = not plain and not separated and rng.random() < 0.6
        self.ids = rng.choice(("strings", "strings", "strings", "integers", "none"))
        self.questions = [self.draw(number) for number in range(rng.choice((3, 7)))]
        self.truth = [self.row(number, question) for number, question in enumerate(self.questions)]
        self.bad = self.spoil() if rng.random() < 0.3 else None
        self.skip = self.bad is not None and rng.random() < 0.3
        place, self.notes = None if self.bad is None else "", [self.form, f"{self.bad} is bad"]
        file = self.table() if self.is_table else self.tree()
        if self.bad is not None and self.is_table:
            place = f"{file.unit} {file.number(self.bad)}"
        elif self.bad is None and self.is_table and self.form != ".parquet" and rng.random() < 0.3:
            fault = rng.choice(FAULTS)
            self.notes.append(fault.__name__)
            line = fault(file, rng)
            place = None if line is None else f"line {line}" if line else ""
        self.path = file.write(directory / "questions", rng)
        self.refusals = [] if place is None else [str(self.path), place]
        if self.skip and self.bad is not None:
            self.refusals = []
            del self.truth[self.bad]

    def draw(self, number: int) -> dict:
        rng = self.rng
        context = " ".join(draw_text(rng, self.plain) for _ in range(rng.randint(1, 3)))
        question = draw_text(rng, self.plain)
        if self.form == ".tsv":
            context, question = (re.sub('[\t\r\n"]', "", text) or "one" for text in (context, question))
        answers = []
        for _ in range(rng.choice((0, 1, 1, 3))):
            begin = rng.randrange(len(context))
            text = context[begin : begin + rng.randint(1, 9)]
            answers += [{"text": text, "answer_start": begin}] if text.strip() else []
        name = {"integers": number + 5, "none": None}.get(self.ids, f"{rng.getrandbits(48):012x}")
        is_impossible = self.form in OFFICIAL and rng.random() < 0.2  # then its answers are only plausible
        return {"id": name, "context": context, "question": question, "answers": answers, "impossible": is_impossible}

    def row(self, number: int, question: dict) -> dict:
        """Returns the row that reading must give."""
        answers = question["answers"] if self.answered and not question["impossible"] else []
        name = str(number if question["id"] is None else question["id"])
        texts = {name: as_read(question[name], self.form) for name in ("context", "question")}
        return {"id": name, **texts, "answers": {key: [x[key] for x in answers] for key in ("text", "answer_start")}}

    def spoil(self) -> int | None:
        """Makes a question invalid and returns its index."""
        rng, index = self.rng, self.rng.randrange(1, len(self.questions))
        question = self.questions[index]
        name = rng.choice(("question", "context", "id", *(("answers",) * 3 if self.answered else ())))
        if name == "id":
            if self.ids == "none":
                return None
            question["id"] = self.questions[0]["id"]
        elif name == "answers":
            question["impossible"] = False
            text, start = rng.choice((("zzz", 0), ("", 0), ("o", -1), ("o", 10**6), ("o", None)))
            question["answers"] = [*question["answers"], {"text": text, "answer_start": start}]
        else:
            odd = () if self.form in (".csv", ".tsv", ".parquet") else (None, SURROGATE, 7)
            question[name], question["answers"] = rng.choice(("", " ", *odd)), []
        return index

    def fields(self, question: dict) -> dict:
        """Returns the entries of a question in a file."""
        row = {name: question[name] for name in ("id", "question", "context") if name != "id" or self.ids != "none"}
        if self.answered:
            answers = question["answers"]
            as_list = self.form in OFFICIAL or (self.form != ".parquet" and self.rng.random() < 0.3)
            split = {name: [answer[name] for answer in answers] for name in ("text", "answer_start")}
            row["answers"] = answers if as_list else split
            if self.form in OFFICIAL and (question["impossible"] or self.rng.random() < 0.5):
                row["is_impossible"] = question["impossible"] or not answers
        return row

    def table(self) -> Draft:
        records = [self.fields(question) for question in self.questions]
        return draft(self.form, records, self.rng.sample([*records[0]], len(records[0])), self.rng)

    def tree(self) -> Draft:
        """Returns a .json file with articles or questions in a list, or in "data"."""
        rows = [self.fields(question) for question in self.questions]
        tree: list | dict = rows
        if self.form in OFFICIAL:
            paragraphs = [{"context": row.pop("context"), "qas": [row]} for row in rows]
            tree = [{"title": "t", "paragraphs": part} for part in (paragraphs[:2], paragraphs[2:])]
        if self.form in ("data", "squad"):
            tree = {"version": "1.1", "data": tree}
        options = {"indent": self.rng.choice((None, None, 1))}
        options |= {"ensure_ascii": self.rng.random() < 0.5 or not is_encodable({"data": tree})}
        start, end = self.rng.choice(("", "", "\ufeff", "\n")), self.rng.choice(("", "\n"))
        return Draft(".json", [], [start + json.dumps(tree, **options) + end])


def draw_questions(rng: random.Random, directory: Path, models: Path, end_to_end: bool) -> Case:
    drawn = QuestionFile(rng, directory, end_to_end)
    options = {"version_2_with_negative": True, "answered": drawn.answered, "skip_bad_rows": drawn.skip}
    case = Case(
        {"questions": drawn.path},
        options,
        {"questions": drawn.truth},
        lambda: {"questions": load_squad(str(drawn.path), **options).remove_columns("row").to_list()},
        drawn.refusals,
        notes=drawn.notes,
    )
    if end_to_end:
        case.command = ["squad", f"--model_name_or_path={models / 'questions'}", f"--test_file={drawn.path}", *QUIET]
        case.command += "--do_predict --max_seq_length 64 --doc_stride 16 --n_best_size 100".split()
        case.command += ["--skip_bad_rows"] * drawn.skip
        case.check = lambda output: wrong_answers(output, models / "questions", drawn.truth)
    return case


@torch.no_grad()
def wrong_answers(output: Path, directory: Path, truth: list[dict]) -> str:
    """Compares the predicted answers with the best span for each question alone, if its context fits into a window."""
    model = AutoModelForQuestionAnswering.from_pretrained(directory).eval()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    predictions = json.loads((output / "predict_predictions.json").read_text())
    if [*predictions] != [row["id"] for row in truth]:
        return f"the predictions have the ids {[*predictions]}"
    for row in truth:
        encoded = tokenizer(row["question"], row["context"], return_offsets_mapping=True, return_tensors="pt")
        if encoded["input_ids"].shape[1] > 64:
            continue
        (offsets,), parts = encoded.pop("offset_mapping").tolist(), encoded.sequence_ids()
        outputs = model(**encoded)
        start, end = outputs.start_logits[0].tolist(), outputs.end_logits[0].tolist()
        inside = [token for token, part in enumerate(parts) if part == 1]
        _, first, last = max((start[i] + end[j], i, j) for i in inside for j in inside if i <= j < i + 30)
        answer = row["context"][offsets[first][0] : offsets[last][1]]
        if predictions[row["id"]] != answer:
            return f"question {row['id']}: the answer is {predictions[row['id']]!r} instead of {answer!r}"
    return ""
