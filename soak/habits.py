"""Other people's habits: whole files, written in ways that ours are not; what each has to give, and what it gave."""

import json
import shutil
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import datasets
import safetensors.torch
import torch
from transformers import AutoModelForSequenceClassification, BertTokenizer

from fixedbert import convert
from fixedbert.data.tokenizers import load_tokenizer
from fixedbert.fine_tuning.glue import main as run_glue
from fixedbert.fine_tuning.questions import load_squad, squad_windows
from fixedbert.fine_tuning.texts import load_files, text_features
from fixedbert.support.errors import InputError
from fixedbert.support.files import POINTER
from fixedbert.training.arguments import ModelArguments
from fixedbert.training.loading import load_config, load_model

from .forks import Job, Verdict, verdicts
from .kinds import (
    KINDS,
    TXT,
    VOCABULARY,
    bert,
    build,
    corpus,
    model,
    questions,
    recipe,
    rows,
    timed,
    tokenizer,
    tokens_of,
)
from .mutations import build_apart, import_modules, told
from .results import Results

OUTCOMES = ("right", "said", "one sentence", "refused", "wrong in silence", "raw", "hang", "crash")
BAD = ("refused", "wrong in silence", "raw", "hang", "crash")
RIGHT, SENTENCE = "right", "one sentence"
CASED = "The function A List B C D E takes a list".split()
ACCENTS = ("le café est à côté", "die Küche hat Löffel", "el niño está aquí", "une pièce de théâtre")
ANSWERS = ("café", "Löffel", "niño", "théâtre")
TOKENIZER_CONFIG = "tokenizer_config.json"
QUIET = ["--max_seq_length", "16", "--use_cpu", "--bf16", "false", "--disable_tqdm", "true", "--report_to", "none",
         "--output_dir", "out"]  # fmt: skip
Load = Callable[[], object]
Maker = Callable[[str], Load]  # of a loading function, from a path
Place = tuple[str, Maker]


class Habit(NamedTuple):
    """
    Args:
        name: what is done.
        places: the files and folders that it is done to.
        change: makes the variant, and returns its path where that is another.
        expected: RIGHT, what the plain file gives; SENTENCE, an error in one; else what a printed line has to say.
    """

    name: str
    places: tuple[Place, ...]
    change: Callable[[Path], object]
    expected: str = RIGHT


# The plain files that kinds.py has not, and more loading functions


def build_plain(folder: Path):
    build(folder)
    tokens = list(dict.fromkeys([*Path(VOCABULARY).read_text().split(), *CASED, *(f"##{letter}" for letter in "ABC")]))
    tokenizer = BertTokenizer(vocab={token: number for number, token in enumerate(tokens)}, do_lower_case=False)
    tokenizer.save_pretrained("cased")
    Path("cased/vocab.txt").write_text("\n".join(tokens) + "\n")
    shutil.copy("model/config.json", "cased")  # which says that its tokenizer is BERT's
    Path("bare").mkdir()
    shutil.copy("model/config.json", "bare")
    shutil.copy(VOCABULARY, "bare")
    shutil.copytree("model", "half")  # whose weights are the same in 16 and 32 bits
    rewrite(Path("half"), lambda found: {name: weight.half().bfloat16().float() for name, weight in found.items()})
    Path("texts/more").mkdir(parents=True)
    shutil.copy("corpus/whole.txt", "texts/a.txt")
    shutil.copy("corpus/blocks.txt", "texts/more/b.txt")
    lines = [f"{text},{('yes', 'no')[number % 2]}\n" for number, text in enumerate(ACCENTS * 2)]
    Path("accents.csv").write_text("".join(["sentence,label\n", *lines]))
    write_answers([(text, answer, text.index(answer)) for text, answer in zip(ACCENTS, ANSWERS, strict=True)])
    Path("other.csv").write_text(Path("rows.csv").read_text().replace("file", "one file"))
    scores = "".join(f"the file {number} takes,{number % 3}\n" for number in range(9))
    Path("scores.csv").write_text(f"sentence,label\n{scores}")


def write_answers(found: list[tuple[str, str, object]]):
    paragraphs = [
        {
            "context": context,
            "qas": [{"id": f"q{n}", "question": "what ?", "answers": [{"text": text, "answer_start": start}]}],
        }
        for n, (context, text, start) in enumerate(found)
    ]
    content = {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}
    Path("accents.json").write_text(json.dumps(content, ensure_ascii=False))


def cased(path: str) -> Load:
    """As with --cased."""
    return lambda: tokens_of(load_tokenizer(path, do_lower_case=False))


def blocks(path: str) -> Load:
    return corpus(path, **TXT)


def encoded(path: str) -> Load:
    def load():
        datasets.config.HF_DATASETS_CACHE = Path("cache")
        data = load_files({"train": path})
        return data.labels, text_features(data.splits["train"], load_tokenizer(VOCABULARY), 64).to_dict()

    return load


def spans(path: str) -> Load:
    """The tokens of questions and contexts, and which of them are labelled as the answers."""

    def load():
        datasets.config.HF_DATASETS_CACHE = Path("cache")
        return squad_windows(load_squad(path), load_tokenizer(VOCABULARY), 64, 4).to_dict()

    return load


def grown(path: str) -> Load:
    def load():
        convert(path, "grown", num_attention_heads=8)
        return Path("grown/model.safetensors").read_bytes()

    return load


def begun(path: str) -> Load:
    """A classifier that a training run begins with: the body of a model, and a new head."""

    def load():
        arguments = ModelArguments(model_name_or_path=path)
        config, tokenizer = load_config(arguments), load_tokenizer(path)
        torch.manual_seed(0)
        return load_model(AutoModelForSequenceClassification, arguments, config, tokenizer).state_dict()

    return load


def predicted(path: str) -> Load:
    def load():
        run_glue(["--model_name_or_path", path, "--validation_file", "rows.csv", "--do_eval", "--test_file",
                  "rows.csv", "--do_predict", *QUIET])  # fmt: skip
        metrics = json.loads(Path("out/all_results.json").read_text())
        metrics = {name: round(value, 5) for name, value in metrics.items() if not timed(name)}
        return metrics, Path("out/predict_results.txt").read_text()

    return load


def trained_beside(path: str) -> Load:
    """A step of training on rows.csv, and an evaluation on `path`."""

    def load():
        run_glue(["--model_name_or_path", "model-lm", "--train_file", "rows.csv", "--do_train", "--max_steps", "1",
                  "--validation_file", path, "--do_eval", *QUIET])  # fmt: skip

    return load


# Weights


def rewrite(folder: Path, change: Callable[[dict], object]):
    file = next(folder / name for name in ("model.safetensors", "pytorch_model.bin") if (folder / name).exists())
    if file.suffix == ".safetensors":
        safetensors.torch.save_file(change(safetensors.torch.load_file(file)), file, {"format": "pt"})
    else:
        torch.save(change(torch.load(file)), file)


def tensors(change: Callable[[dict], object]) -> Callable[[Path], None]:
    return lambda folder: rewrite(folder, change)


def renamed(name_of: Callable[[str], str]) -> Callable[[Path], None]:
    return tensors(lambda found: {name_of(name): weight.clone() for name, weight in found.items()})


def rounded(dtype: torch.dtype, said: str | None = None, only: str = "") -> Callable[[Path], None]:
    """Weights of another type, those with `only` in their names, and what config.json says of it."""

    def change(folder: Path):
        rewrite(folder, lambda found: {name: w.to(dtype) if only in name else w for name, w in found.items()})
        if said:
            configured(dtype=said)(folder)

    return change


def scripted(folder: Path):
    torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)).save(folder / "pytorch_model.bin")


def whole_model(folder: Path):
    torch.save(torch.nn.Linear(2, 2), folder / "pytorch_model.bin")


# Labels


def configured(name: str = "config.json", **changes) -> Callable[[Path], None]:
    """Entries of a JSON file in a folder; None takes one out."""

    def change(folder: Path):
        file = folder / name
        content = {**json.loads(file.read_text()), **changes}
        file.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))

    return change


def names_of(*names: str, numbers: tuple[int, ...] = (0, 1)) -> dict:
    return {"id2label": dict(enumerate(names)), "label2id": dict(zip(names, numbers, strict=True))}


def permuted(*names: str) -> Callable[[Path], None]:
    """The rows of the head the other way round, and the labels of them."""

    def change(folder: Path):
        rewrite(folder, lambda found: {n: w.flip(0) if n.startswith("classifier.") else w for n, w in found.items()})
        configured(**names_of(*names))(folder)

    return change


def cells(**written: str) -> Callable[[Path], None]:
    """The labels of a csv written otherwise, in the rows of one class every second time where `/` separates two."""

    def change(file: Path):
        seen: Counter = Counter()

        def cell(label: str) -> str:
            forms = written.get(label, label).split("/")
            seen[label] += 1
            return forms[seen[label] % len(forms)]

        first, *lines = file.read_text().splitlines()
        parts = [line.rpartition(",") for line in lines]
        file.write_text("\n".join([first, *(f"{texts},{cell(label)}" for texts, _, label in parts)]) + "\n")

    return change


# Texts


def content(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def changed(file: Path):
        file.write_bytes(change(file.read_bytes()))

    return changed


def text(change: Callable[[str], str]) -> Callable[[Path], None]:
    return content(lambda found: change(found.decode()).encode())


marked = text(lambda found: "\ufeff" + found)


def inside(name: str, change: Callable[[Path], None]) -> Callable[[Path], None]:
    return lambda folder: change(folder / name)


def replaced(old: str, new: str) -> Callable[[Path], None]:
    return text(lambda found: found.replace(old, new))


def answers(change: Callable[[str, str, int], tuple[str, str, object]]) -> Callable[[Path], None]:
    """Each (context, answer, start) of accents.json written otherwise."""
    return lambda file: write_answers(
        [change(context, answer, context.index(answer)) for context, answer in zip(ACCENTS, ANSWERS, strict=True)]
    )


def decomposed(context: str, answer: str, _: int) -> tuple[str, str, object]:
    context, answer = (unicodedata.normalize("NFD", one) for one in (context, answer))
    return context, answer, context.index(answer)


# Names, places and links


def named(name: str) -> Callable[[Path], str]:
    """Moved to another name; where that is also a pattern, what it matches is there too, with other content."""

    def change(place: Path) -> str:
        new = place.rename(place.with_name(name.format(stem=place.stem, suffix=place.suffix)))
        if "[1]" in new.name:
            decoy = new.with_name(new.name.replace("[1]", "1"))
            decoy.mkdir() if new.is_dir() else decoy.write_text("other\n")
        return str(new)

    return change


def linked(place: Path):
    """Moved out, with a link in its place."""
    Path("elsewhere").mkdir()
    place.symlink_to(place.rename(Path("elsewhere", place.name)).absolute())


def linked_inside(folder: Path) -> str:
    """As in the cache of the Hub: a folder of links to blobs beside it."""
    snapshot = folder / "snapshots" / "main"
    (folder / "blobs").mkdir()
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(folder.glob("*.*"))):
        file.rename(folder / "blobs" / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    return str(snapshot)


def links_out(folder: Path):
    Path("elsewhere").mkdir()
    for file in sorted(folder.glob("*.*")):
        file.rename(Path("elsewhere", file.name))
        file.symlink_to(Path("elsewhere", file.name).absolute())


def link(name: str, target: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).symlink_to(target)


def pointer(file: Path):
    file.write_bytes(POINTER + b"v1\noid sha256:" + b"0123456789abcdef" * 4 + b"\nsize 440473133\n")


def without(*names: str) -> Callable[[Path], None]:
    return lambda folder: [(folder / name).unlink() for name in names]


def copied(order: int, suffix: str = ".csv") -> Callable[[Path], str]:
    """The rows that are trained on, in a file of another name, order and format."""

    def change(_: Path) -> str:
        first, *lines = Path("rows.csv").read_text().splitlines()
        new, found = Path(f"copy{suffix}"), [first, *lines[::order]]
        if suffix == ".jsonl":
            found = [json.dumps(dict(zip(first.split(","), line.split(","), strict=True))) for line in lines[::order]]
        new.write_text("\n".join(found) + "\n")
        return str(new)

    return change


def at(maker: Maker, paths: str) -> tuple[Place, ...]:
    return tuple((path, maker) for path in paths.split())


def of_kind(name: str) -> tuple[Place, ...]:
    """The file of a kind, and its loading function, whatever the path."""

    def maker(_: str) -> Load:
        return KINDS[name].load

    maker.__name__ = name
    return ((KINDS[name].file, maker),)


LOADED = at(model, "model model-bin") + at(bert, "bert bert-bin")
WEIGHTS = LOADED + at(grown, "bert") + at(begun, "model-lm bert")
PICKLES = at(model, "model-bin") + at(bert, "bert-bin")
LINES = at(corpus, "corpus/whole.txt corpus/rows.jsonl") + at(blocks, "corpus/blocks.txt")
TABLES = at(corpus, "corpus/rows.csv") + at(rows, "rows.csv")
TABS = at(corpus, "corpus/rows.tsv") + at(rows, "rows.tsv") + of_kind("GLUE: train.tsv")
ROWS = at(rows, "rows.jsonl") + at(questions, "squad.jsonl")
ALL_LINES = LINES + TABLES + TABS + ROWS + at(tokenizer, VOCABULARY)
ONE_TEXT = at(rows, "rows.json") + at(questions, "squad.json") + at(recipe, "recipe.yaml recipe.json")
OURS = of_kind("study: yaml") + of_kind("study: runs.jsonl")
OF_MODELS = of_kind("config.json") + of_kind("tokenizer.json") + of_kind(TOKENIZER_CONFIG)
OF_MODELS += of_kind("convert: config.json") + of_kind("TensorFlow: bert_config.json")
ALL_TEXTS = ALL_LINES + ONE_TEXT + OURS
FILES = TABLES + LINES + ROWS + at(rows, "rows.parquet") + at(questions, "squad.json")
PLACES = FILES + LOADED + at(tokenizer, f"{VOCABULARY} model-lm") + at(recipe, "recipe.yaml") + at(corpus, "texts")
IN_TEXTS = at(blocks, "corpus/blocks.txt") + at(corpus, "corpus/rows.jsonl corpus/rows.csv")
IN_TEXTS += at(encoded, "rows.csv rows.tsv rows.jsonl")
CARD = "convert: README.md"
NOT_CLONED = ("store: ", "features: ", "resume: ", CARD)  # what no repository has, and what need not be there
UNNAMED = "LABEL_0", "LABEL_1"
UNKNOWN_ORDER, LEARNED = "their order is unknown", "have the texts of training rows"
BARE = ("tokenizer.json", TOKENIZER_CONFIG)


HABITS = (
    *(
        Habit(f"names begin with {prefix}", WEIGHTS, renamed(lambda name, prefix=prefix: prefix + name), SENTENCE)
        for prefix in ("module.", "_orig_mod.", "module._orig_mod.", "model.", "bert.", "_fsdp_wrapped_module.")
    ),
    Habit("a prefix inside names", WEIGHTS, renamed(lambda n: n.replace("encoder.", "encoder._orig_mod.")), SENTENCE),
    Habit("names of another family", WEIGHTS, renamed(lambda name: name.replace("bert.", "roberta.")), SENTENCE),
    Habit("gamma and beta", at(bert, "bert bert-bin"), renamed(
        lambda n: n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"))),
    Habit("a layer is missing", WEIGHTS, tensors(
        lambda found: {name: weight for name, weight in found.items() if ".layer.1." not in name}), SENTENCE),
    *(
        Habit(f"weights under {name}", PICKLES, tensors(lambda found, name=name: {name: found, "epoch": 3}), SENTENCE)
        for name in ("state_dict", "model", "model_state_dict", "module")
    ),
    Habit("weights two levels down", PICKLES, tensors(lambda f: {"checkpoint": {"model": f}}), SENTENCE),
    Habit("a list of weights", PICKLES, tensors(lambda found: [*found.items()]), SENTENCE),
    Habit("the optimizer beside the weights", PICKLES, tensors(lambda found: {**found, "optimizer": {}}), SENTENCE),
    Habit("TorchScript", PICKLES, scripted, SENTENCE),
    Habit("a pickled model", PICKLES, whole_model, SENTENCE),
    Habit("32 bits, config.json says 16", at(model, "model half") + at(bert, "bert"), configured(dtype="float16")),
    Habit("32 bits, config.json says bfloat16", at(model, "model") + at(bert, "bert"), configured(dtype="bfloat16")),
    Habit("16 bits, config.json says 32", at(model, "half"), rounded(torch.float16, "float32")),
    Habit("bfloat16, config.json says 32", at(model, "half"), rounded(torch.bfloat16, "float32")),
    Habit("16 bits in one layer", at(model, "half"), rounded(torch.float16, "float32", "layer.0")),
    Habit("64 bits, config.json says 32", at(model, "half"), rounded(torch.float16, "float32", "layer.1")),
    Habit("whole numbers", at(model, "model") + at(bert, "bert"), rounded(torch.int8, None, "query.weight"), SENTENCE),
    # Labels
    Habit("labels permuted, with the rows", at(predicted, "model"), permuted("yes", "no")),
    Habit("labels in label2id alone", at(predicted, "model"), configured(id2label=dict(enumerate(UNNAMED)))),
    Habit("labels in label2id, no id2label", at(predicted, "model"), configured(id2label=None), UNKNOWN_ORDER),
    Habit("labels in id2label alone", at(predicted, "model"), configured(label2id=None)),
    Habit("tables of labels disagree", at(predicted, "model"), configured(**names_of("no", "yes", numbers=(1, 0))),
          SENTENCE),
    Habit("LABEL_n", at(predicted, "model"), configured(**names_of(*UNNAMED)), UNKNOWN_ORDER),
    Habit("LABEL_n, permuted", at(predicted, "model"), permuted(*UNNAMED), UNKNOWN_ORDER),
    Habit("no names", at(predicted, "model"), configured(id2label=None, label2id=None), UNKNOWN_ORDER),
    Habit("labels in id2label, written label_n", at(predicted, "model"), configured(**names_of("label 0", "label 1")),
          UNKNOWN_ORDER),
    Habit("labels as numbers", at(predicted, "model"), configured(**names_of("0", "1")), SENTENCE),
    Habit("a label more", at(predicted, "model"), configured(**names_of("no", "yes", "maybe", numbers=(0, 1, 2))),
          SENTENCE),
    Habit("labels in capitals", at(predicted, "model"), configured(**names_of("NO", "YES")), "by name"),
    Habit("other labels", at(predicted, "model"), configured(**names_of("bad", "good")), SENTENCE),
    *(
        Habit(f"labels: {what}", at(rows, "rows.csv"), cells(**forms), SENTENCE)
        for what, forms in {
            "a blank before": {"yes": "yes/ yes"},
            "a blank after": {"yes": "yes/yes "},
            "NBSP": {"yes": "yes/yes\u00a0"},
            "zero width": {"yes": "yes/\u200byes"},
            "case": {"yes": "yes/Yes"},
            "width": {"yes": "yes/ｙｅｓ"},
            "accents": {"yes": "n\u00e9/ne\u0301"},
            "several": {"yes": "yes/no;yes"},
            "percent": {"yes": "90 %", "no": "10 %"},
            "decimal comma": {"yes": '"2,0"', "no": '"2,1"'},
            "a number in two ways": {"yes": "1/01"},
            "a soft hyphen": {"yes": "yes/y\u00ades"},
            "a tab": {"yes": "yes/yes\t"},
            "several with bars": {"yes": "yes/no|yes"},
            "truth and numbers": {"yes": "true/1", "no": "0"},
            "words and fractions": {"yes": "0.5/yes"},
        }.items()
    ),
    Habit("labels: floats of pandas", at(rows, "scores.csv"), text(
        lambda found: "".join(f"{line}.0\n" if line[-1].isdigit() else f"{line}\n" for line in found.splitlines()))),
    *(
        Habit(f"the training file again{what}", at(trained_beside, "other.csv"), copied(order, suffix), LEARNED)
        for what, order, suffix in (("", 1, ".csv"), (", turned round", -1, ".csv"), (", as JSON", 1, ".jsonl"))
    ),
    # Case
    Habit("cased, vocab.txt alone", at(tokenizer, "cased"), without(*BARE), SENTENCE),
    Habit("cased, vocab.txt alone and --cased", at(cased, "cased"), without(*BARE)),
    Habit("cased, the file alone", at(cased, "cased"), lambda folder: str(folder / VOCABULARY)),
    Habit("cased, the file alone, lower-cased", at(tokenizer, "cased"), lambda f: str(f / VOCABULARY), SENTENCE),
    Habit("cased, tokenizer.json alone", at(tokenizer, "cased") + at(cased, "cased"), without(
        VOCABULARY, TOKENIZER_CONFIG)),
    Habit("cased, nothing said of case", at(tokenizer, "cased") + at(cased, "cased"), configured(
        TOKENIZER_CONFIG, do_lower_case=None)),
    Habit("cased, files disagree", at(tokenizer, "cased"), configured(TOKENIZER_CONFIG, do_lower_case=True), SENTENCE),
    Habit("cased, files disagree, and --cased", at(cased, "cased"), configured(TOKENIZER_CONFIG, do_lower_case=True)),
    Habit("vocabularies disagree", at(tokenizer, "cased"), inside(VOCABULARY, text(
        lambda found: "\n".join(reversed(found.split())))), SENTENCE),
    Habit("--cased, of a folder", at(cased, VOCABULARY), lambda file: "model-lm"),
    # Ends of lines
    Habit("CRLF", ALL_TEXTS + OF_MODELS, replaced("\n", "\r\n")),
    Habit("CR alone", ALL_TEXTS + OF_MODELS, replaced("\n", "\r")),
    Habit("no end of the last line", ALL_TEXTS + OF_MODELS, text(lambda found: found.removesuffix("\n"))),
    Habit("byte order mark", ALL_TEXTS, marked),
    Habit("byte order mark", OF_MODELS, marked, SENTENCE),
    *(
        Habit(f"{name} in texts", IN_TEXTS, replaced("the function", f"the {mark}function"))
        for name, mark in (("U+2028", "\u2028"), ("U+0085", "\u0085"), ("NBSP", "\u00a0"))
    ),
    Habit("form feed in texts", at(blocks, "corpus/blocks.txt") + at(encoded, "rows.csv rows.tsv"), replaced(
        "the function", "the \ffunction")),
    Habit("CRLF, in a folder", at(tokenizer, "bare"), inside(VOCABULARY, replaced("\n", "\r\n"))),
    Habit("CR alone, in a folder", at(tokenizer, "bare"), inside(VOCABULARY, replaced("\n", "\r")), SENTENCE),
    Habit("byte order mark, in a folder", at(tokenizer, "bare"), inside(VOCABULARY, marked), SENTENCE),
    Habit("byte order mark, beside tokenizer.json", at(tokenizer, "cased"), inside(VOCABULARY, marked)),
    Habit("blank lines at the end", at(tokenizer, VOCABULARY), text(lambda found: found + "\n\n")),
    Habit("UTF-16, in a folder", at(tokenizer, "bare"), inside(VOCABULARY, content(
        lambda found: found.decode().encode("utf-16"))), SENTENCE),
    Habit("UTF-16", ALL_TEXTS + OF_MODELS, content(lambda found: found.decode().encode("utf-16")), SENTENCE),
    Habit("UTF-16 without a mark", ALL_TEXTS + OF_MODELS, content(
        lambda found: found.decode().encode("utf-16-le")), SENTENCE),
    Habit("Latin-1", at(encoded, "accents.csv") + at(spans, "accents.json"), content(
        lambda found: found.decode().encode("latin-1")), SENTENCE),
    # Accents
    Habit("NFD", at(encoded, "accents.csv"), text(lambda found: unicodedata.normalize("NFD", found))),
    Habit("answers: NFD", at(spans, "accents.json"), answers(decomposed)),
    Habit("answers: NFD in answers alone", at(spans, "accents.json"), answers(
        lambda context, answer, start: (context, unicodedata.normalize("NFD", answer), start)), SENTENCE),
    *(
        Habit(f"answers: {name} at the end", at(spans, "accents.json"), answers(
            lambda context, answer, start, mark=mark:
            (context.replace(answer, answer + mark), answer + mark, start)))
        for name, mark in (("NBSP", "\u00a0"), ("zero width", "\u200b"), ("soft hyphen", "\u00ad"), ("blank", " "))
    ),
    Habit("answers: a blank before", at(spans, "accents.json"), answers(
        lambda context, answer, start: (context, f" {answer}", start - 1))),
    Habit("answers: places of UTF-16", at(spans, "accents.json"), answers(
        lambda context, answer, start: (f"😀 {context}", answer, start + 3)), SENTENCE),
    Habit("answers: places of bytes", at(spans, "accents.json"), answers(
        lambda context, answer, start: (f"é {context}", answer, start + 3)), SENTENCE),
    Habit("answers: places as texts", at(spans, "accents.json"), answers(
        lambda context, answer, start: (context, answer, str(start))), SENTENCE),
    # Tables
    Habit("semicolons", TABLES, replaced(",", ";")),
    Habit("semicolons and decimal commas", at(rows, "scores.csv"), text(
        lambda found: "".join(f"{line.replace(',', ';')},5\n" if "," in line and line[-1].isdigit()
                              else line.replace(",", ";") + "\n" for line in found.splitlines())), SENTENCE),
    Habit("tabs in csv", TABLES, replaced(",", "\t")),
    Habit("bars", TABLES, replaced(",", "|")),
    Habit("sep=;", TABLES, text(lambda found: "sep=;\n" + found.replace(",", ";"))),
    Habit("sep=; in CRLF", TABLES, text(lambda found: ("sep=;\n" + found.replace(",", ";")).replace("\n", "\r\n"))),
    Habit("a mark and sep=,", TABLES, text(lambda found: "\ufeffsep=,\n" + found)),
    Habit("all in quotes", TABLES, text(
        lambda found: "".join('"' + line.replace(",", '","') + '"\n' for line in found.splitlines()))),
    Habit("quotes and semicolons", TABLES, text(
        lambda found: "".join('"' + line.replace(",", '";"') + '"\n' for line in found.splitlines()))),
    Habit("blanks after commas", TABLES, replaced(",", ", "), SENTENCE),
    Habit("commas in tsv", TABS, replaced("\t", ","), SENTENCE),
    Habit("numbers of rows", TABLES, text(
        lambda found: "".join(f"{n - 1 if n else ''},{line}\n" for n, line in enumerate(found.splitlines())))),
    # Names and links
    *(
        Habit(f"called {name}", PLACES, named(name))
        for name in ("{stem}[1]{suffix}", "a [b] *{suffix}", "größe 'x' (1){suffix}")
    ),
    Habit("a suffix in capitals", FILES, lambda file: str(file.rename(file.with_suffix(file.suffix.upper()))),
          SENTENCE),
    Habit("a link", PLACES, linked),
    Habit("links as in the Hub's cache", LOADED, linked_inside),
    Habit("links out of a folder", at(model, "model") + at(tokenizer, "cased"), links_out),
    Habit("links out of a folder", at(bert, "bert") + at(grown, "bert"), links_out, SENTENCE),
    Habit("a linked folder", at(corpus, "texts"), lambda folder: linked(folder / "more")),
    Habit("a loop of links", at(corpus, "texts"), link("more/again", "..")),
    Habit("a link to itself", at(corpus, "texts"), link("self.txt", "self.txt"), SENTENCE),
    Habit("a link twice", at(corpus, "texts"), link("c.txt", "a.txt")),
    Habit("a broken link", at(corpus, "texts"), link("gone.txt", "nowhere.txt"), SENTENCE),
    Habit("a broken link to a folder", at(corpus, "texts"), link("gone", "nowhere"), SENTENCE),
    Habit("a broken link to weights", at(model, "model") + at(bert, "bert"), lambda folder: (
        without("model.safetensors")(folder), link("model.safetensors", "nowhere")(folder)), SENTENCE),
    *(
        Habit("a Git LFS pointer", of_kind(kind), pointer, SENTENCE)
        for kind in KINDS
        if not kind.startswith(NOT_CLONED)
    ),
    Habit("a Git LFS pointer for a card", of_kind(CARD), pointer, "The new card does not have"),
)  # fmt: skip


# Trials


def run(folder: Path, count: int, results: Results, parallel: int):
    """Do the trials among the first `count` that have no result yet."""
    done = {(line["habit"], line["place"]) for line in results.of("habit")}
    trials = [(habit, place) for habit in HABITS for place in habit.places][:count]
    trials = [(habit, place) for habit, place in trials if (habit.name, name_of(place)) not in done]
    if not trials:
        return
    folder = folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    build_apart(folder / "valid", build_plain)
    places = list(dict.fromkeys(place for _, place in trials))
    plain = {}
    jobs = [Job((place,), folder / f"{number}-valid", *steps(folder, place)) for number, place in enumerate(places)]
    for each, verdict, _ in verdicts(jobs, parallel, 300):
        if verdict.outcome != "loaded":
            raise RuntimeError(f"{name_of(each.name[0])}: the plain file itself is {verdict.outcome}: {verdict.said}")
        plain[each.name[0]] = verdict.said
        import_modules(each.folder)
    jobs = [
        Job((place, habit), folder / f"{places.index(place)}-{number}", *steps(folder, place, habit))
        for number, (habit, place) in enumerate(trials)
    ]
    for each, verdict, _ in verdicts(jobs, parallel):
        place, habit = each.name
        outcome, said = judged(verdict, habit.expected, plain[place], each.folder)
        results.add("habit", {"habit": habit.name, "place": name_of(place), "outcome": outcome, "said": said})
        if outcome in BAD:
            print(f"{outcome}: {habit.name}: {name_of(place)}: {said} [{each.folder}]", flush=True)
        else:
            shutil.rmtree(each.folder)


def name_of(place: Place) -> str:
    return f"{place[0]}, {place[1].__name__}"


def steps(folder: Path, place: Place, habit: Habit | None = None) -> tuple[Callable[[], tuple[str, list[str]]], Load]:
    """What a child does at a place: make the variant, or without a habit nothing, and load it."""
    pattern, maker = place
    paths: list[Path] = []

    def prepare() -> tuple[str, list[str]]:
        shutil.copytree(folder / "valid", ".", dirs_exist_ok=True, symlinks=True)
        (path,) = Path().glob(pattern)
        changed = habit.change(path) if habit else None
        paths.append(Path(changed) if isinstance(changed, str) else path)
        return "", [*paths[0].parts, path.name]

    def load() -> object:
        before = files_here()
        try:
            loaded = maker(str(paths[0]))()
        except InputError:
            if left := files_here() - before:
                raise RuntimeError(f"left behind: {', '.join(sorted(left))}") from None
            raise
        if habit is None:
            Path("modules").write_text("\n".join(sys.modules))
        return loaded

    return prepare, load


def files_here() -> set[str]:
    """All files that are not kept for the next run."""
    return {str(file) for file in Path().rglob("*") if file.is_file() and file.parts[0] not in ("store", "cache")}


def judged(verdict: Verdict, expected: str, plain: str, folder: Path) -> Verdict:
    if verdict.outcome == "clear":
        return Verdict(SENTENCE if expected == SENTENCE else "refused", verdict.said)
    if verdict.outcome != "loaded":
        return verdict
    if expected not in (RIGHT, SENTENCE):
        lines = [line for line in told(folder).splitlines() if expected in line]
        return Verdict("said", lines[0]) if lines else Verdict("wrong in silence", f"nothing says {expected!r}")
    if verdict.said == plain:
        return Verdict("right", "")
    return Verdict("wrong in silence", "loaded something else")


def table(lines: list[dict]) -> Iterator[str]:
    """Habits by outcomes."""
    row = ("{:<44}" + " {:>16}" * len(OUTCOMES)).format
    yield row("habits", *OUTCOMES)
    counts = Counter((line["habit"], line["outcome"]) for line in lines)
    for name in dict.fromkeys(line["habit"] for line in lines):
        yield row(name, *(counts[name, outcome] for outcome in OUTCOMES))
    yield row("all", *(sum(line["outcome"] == outcome for line in lines) for outcome in OUTCOMES))
