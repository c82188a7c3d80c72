"""
Stories and two tasks about them, for the demo, the notebooks and the tests.

    python -m experiments.sample_tasks DIRECTORY    # writes the stories and the two tasks to files

The stories are generated from templates and do not resemble natural language. Each story uses the nouns and predicates
of one subject. The two tasks use the same subjects:
- Sentence pairs in GLUE format: does the predicate apply to the two nouns?
- Questions in SQuAD 1.1 format: which of the four nouns is the plant?

For each subject, 14 nouns occur in the training rows and the 6 others in the evaluation rows. A model can learn the
subject of those 6 nouns only by pretraining on the stories, which contain all nouns. The label of a sentence pair
cannot be predicted from one sentence alone; a model has to compare the two.
"""

import csv
import json
import random
import sys
from pathlib import Path

# The nouns and predicates for each subject.
SUBJECTS = {
    "animals": (
        "dog cat horse cow sheep goat pig fox wolf bear lion tiger mouse rabbit deer duck goose hen eagle owl",
        ("breathes", "hunts at night", "has young", "sleeps in a den"),
    ),
    "plants": (
        "oak elm pine birch maple willow rose tulip daisy lily fern moss ivy poppy orchid cedar ash palm beech reed",
        ("blooms", "grows from a seed", "has roots", "needs light"),
    ),
    "tools": (
        "hammer saw drill axe knife chisel wrench rake shovel spade file brush needle ladder anvil lever hook plane "
        "clamp mallet",
        ("hangs in the workshop", "is made of steel", "has a handle", "rusts"),
    ),
    "dishes": (
        "bread cheese butter soup cake pie rice pasta jam honey stew salad omelette pudding toast porridge biscuit "
        "sausage pancake curry",
        ("tastes good", "comes from the oven", "is on a plate", "smells of spice"),
    ),
}
TEMPLATES = (
    "The {noun} {predicate}.",
    "The {noun} {predicate} and the {noun2} {predicate2}.",
    "Here are the {noun} and the {noun2}.",
    "Each of them {predicate}.",
    "Which of them {predicate}?",
)
TRAINING_NOUNS = 14  # number of nouns per subject in the training rows


def stories(count: int, seed: int, sentences: int = 12) -> list[str]:
    """Returns `count` stories of `sentences` sentences. Each story is about one subject."""
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        nouns, predicates = rng.choice(list(SUBJECTS.values()))
        text = []
        for _ in range(sentences):
            (noun, noun2), (predicate, predicate2) = rng.sample(nouns.split(), 2), rng.sample(predicates, 2)
            words = {"noun": noun, "noun2": noun2, "predicate": predicate, "predicate2": predicate2}
            text.append(rng.choice(TEMPLATES).format(**words))
        texts.append(" ".join(text))
    return texts


def nouns_in(subject: str, split: str) -> list[str]:
    """Returns the nouns of a subject that occur in a split, "train" or "dev"."""
    nouns = SUBJECTS[subject][0].split()
    return nouns[:TRAINING_NOUNS] if split == "train" else nouns[TRAINING_NOUNS:]


def sentence_pairs(count: int, split: str) -> list[dict[str, str]]:
    """
    Returns rows with sentence1, sentence2 and label. The labels are balanced.

    For example, "here are the oak and the rose." entails "each of them blooms." but not "each of them tastes good."
    """
    rng = random.Random(split)
    rows = []
    for number in range(count):
        subject, other = rng.sample(list(SUBJECTS), 2)
        one, two = rng.sample(nouns_in(subject, split), 2)
        predicate = rng.choice(SUBJECTS[other if number % 2 else subject][1])
        label = "not_entailment" if number % 2 else "entailment"
        texts = {"sentence1": f"here are the {one} and the {two}.", "sentence2": f"each of them {predicate}."}
        rows.append(texts | {"label": label})
    rng.shuffle(rows)
    return rows


def questions(count: int, split: str) -> dict:
    """
    Returns questions in SQuAD 1.1 format.

    Each context contains one noun from each subject. The answer to each question, such as "which of them blooms?", is
    the plant.
    """
    rng = random.Random(split)
    paragraphs = []
    for number in range(count):
        subjects = rng.sample(list(SUBJECTS), len(SUBJECTS))
        nouns = [rng.choice(nouns_in(subject, split)) for subject in subjects]
        context = f"here are {' and '.join(f'the {noun}' for noun in nouns)}."
        plant = nouns[subjects.index("plants")]
        answer = {"text": plant, "answer_start": context.index(f"the {plant}") + 4}
        question = f"which of them {rng.choice(SUBJECTS['plants'][1])}?"
        entry = {"id": f"synthetic-{split}-{number}", "question": question, "answers": [answer]}
        paragraphs.append({"context": context, "qas": [entry]})
    return {"version": "synthetic", "data": [{"title": "synthetic", "paragraphs": paragraphs}]}


def write_tasks(directory: str | Path):
    """Writes stories.txt, pairs/{train,dev}.tsv and questions/{train,dev}.json. Their content is deterministic."""
    for task in ("pairs", "questions"):
        Path(directory, task).mkdir(parents=True, exist_ok=True)
    for split, pair_count, question_count in (("train", 6000, 8000), ("dev", 500, 500)):
        with open(Path(directory, "pairs", f"{split}.tsv"), "w", encoding="utf-8", newline="") as lines:
            rows = sentence_pairs(pair_count, split)
            writer = csv.DictWriter(lines, rows[0], delimiter="\t", quoting=csv.QUOTE_NONE, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        content = json.dumps(questions(question_count, split), indent=1) + "\n"
        Path(directory, "questions", f"{split}.json").write_text(content, encoding="utf-8")
    Path(directory, "stories.txt").write_text("\n".join(stories(3000, seed=1)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_tasks(sys.argv[1])
