"""The kinds of files that users have: a small valid one of each, and the loading function that their commands use."""

import bz2
import gzip
import json
import lzma
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet
import torch
import transformers
from transformers import AutoModelForSequenceClassification, BertConfig, BertForMaskedLM

from experiments.study.report_files import report_runs
from experiments.study.report_text import report_markdown
from experiments.study.studies import load_study
from fixedbert import convert
from fixedbert.conversion.checkpoints import load_bert
from fixedbert.data.corpora import Corpus
from fixedbert.data.examples import split_documents
from fixedbert.data.segment_pairs import PairExamples
from fixedbert.data.store import prepare_store
from fixedbert.data.tokenizers import load_tokenizer
from fixedbert.fine_tuning.glue import main as run_glue
from fixedbert.fine_tuning.questions import load_squad, squad_windows
from fixedbert.fine_tuning.texts import load_files, load_task, text_features
from fixedbert.inspection.inspect import inspect
from fixedbert.inspection.results import inspection_text
from fixedbert.pretraining.arguments import ARGUMENTS
from fixedbert.publishing.push import card_of, checked_config, checkpoint_files
from fixedbert.training.arguments import ModelArguments, make_arguments, read_arguments
from fixedbert.training.loading import load_config, load_model
from fixedbert.training.output import WriteChecksums

TESTS = Path(__file__).parents[1] / "tests"
sys.path.append(str(TESTS))  # which write small files of most formats already

from helpers.tiny_tasks import write_model  # noqa: E402

VOCABULARY = "vocab.txt"
SENTENCES = ("the function takes a list", "what does it do ? it writes", "it returns two files and reads one string")
RESUMED = ["--model_name_or_path", "model-lm", "--train_file", "rows.csv", "--do_train", "--max_seq_length", "16",
           "--max_steps", "3", "--save_steps", "2", "--logging_steps", "1", "--per_device_train_batch_size", "4",
           "--use_cpu", "--bf16", "false", "--disable_tqdm", "true", "--report_to", "none",
           "--output_dir", "resumed"]  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """
    Args:
        file: which is mutated, a glob below the folder of a trial.
        form: one of damage.FORMS.
        load: what a user's command does with it, in the folder; its result is compared.
        written_by_load: whether the file is there only after a first load.
        share: of the mutations, where 1 is what most kinds have.
    """

    file: str
    form: str
    load: Callable[[], object]
    written_by_load: bool = False
    share: float = 1


# The small valid files


def build(folder: Path):
    """Write all valid files into a new folder."""
    folder.mkdir(parents=True)
    os.chdir(folder)
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    words = [*"the a function takes returns list string file what does . ? , one two".split(), *letters]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *(f"##{letter}" for letter in letters)]
    Path(VOCABULARY).write_text("\n".join(dict.fromkeys(tokens)) + "\n")
    write_model("model-lm", VOCABULARY)
    build_models(len(dict.fromkeys(tokens)))
    build_texts()
    build_questions()
    build_settings()
    build_checkpoint()


def build_models(vocab_size: int):
    config = transformers.AutoConfig.from_pretrained("model-lm", num_labels=2)
    config.id2label, config.label2id = {0: "no", 1: "yes"}, {"no": 0, "yes": 1}
    model = AutoModelForSequenceClassification.from_config(config)
    tokenizer = load_tokenizer("model-lm")
    for name, options in (("model", {}), ("model-shards", {"max_shard_size": "20KB"})):
        model.save_pretrained(name, **options)
        tokenizer.save_pretrained(name)
    shutil.copytree("model", "model-bin", ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save(model.state_dict(), "model-bin/pytorch_model.bin")
    small = BertConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=37,
        max_position_embeddings=32,
    )
    torch.manual_seed(0)
    bert = BertForMaskedLM(small)
    bert.save_pretrained("bert")
    tokenizer.save_pretrained("bert")
    Path("bert/README.md").write_text("---\nlicense: mit\nlanguage: en\n---\n\n# BERT\n")
    shutil.copytree("bert", "bert-bin", ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save(bert.state_dict(), "bert-bin/pytorch_model.bin")
    convert("bert", "pushed", attention_head_size=16)


def write_rows(stem: str, rows: list[dict], tables: bool = True):
    """Write rows in every format."""
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    Path(f"{stem}.jsonl").write_text(lines)
    Path(f"{stem}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    Path(f"{stem}.json").write_text(json.dumps(rows))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), f"{stem}.parquet")
    for suffix, between in ((".csv", ","), (".tsv", "\t")) if tables else ():
        table = "".join(between.join(line) + "\n" for line in (rows[0], *(row.values() for row in rows)))
        Path(f"{stem}{suffix}").write_text(table)
        Path(f"{stem}{suffix}.xz").write_bytes(lzma.compress(table.encode()))


def build_texts():
    texts = [f"{' . '.join(SENTENCES)} . the file {chr(97 + n) * 3} . {SENTENCES[n % 3]} ." for n in range(12)]
    Path("corpus").mkdir()
    write_rows("corpus/rows", [{"text": text, "part": str(n // 3)} for n, text in enumerate(texts)])
    Path("corpus/whole.txt").write_text(texts[0] + "\n" + texts[1] + "\n")
    blocks = ("\n\n".join(texts) + "\n").encode()
    for suffix, pack in (("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress)):
        Path(f"corpus/blocks.txt{suffix}").write_bytes(pack(blocks))
    write_rows(
        "rows",
        [{"sentence1": SENTENCES[n % 3], "sentence2": f"file {n}", "label": ("yes", "no")[n % 2]} for n in range(9)],
    )
    Path("glue").mkdir()
    columns = ("index", "sentence1", "sentence2", "score")
    scored = [(str(n), SENTENCES[n % 3], f"file {n}", ("0.5", "2.25", "4")[n % 3]) for n in range(9)]
    write_rows("glue/train", [dict(zip(columns, row, strict=True)) for row in scored])


def build_questions():
    contexts = [f"the function {n} takes a list ." for n in range(4)]
    answers = [[{"text": "list", "answer_start": context.index("list")}] for context in contexts[:3]] + [[]]
    asked = [
        {"id": f"q{n}", "question": "what does it take ?", "is_impossible": not found, "answers": found}
        for n, found in enumerate(answers)
    ]
    paragraphs = [{"context": context, "qas": [one]} for context, one in zip(contexts, asked, strict=True)]
    by_column = [{name: [one[name] for one in found] for name in ("text", "answer_start")} for found in answers]
    rows = [
        {"id": f"q{n}", "title": "t", "context": context, "question": "what does it take ?", "answers": found}
        for n, (context, found) in enumerate(zip(contexts, by_column, strict=True))
    ]
    write_rows("squad", rows, tables=False)
    Path("squad.json").write_text(json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}))


def build_settings():
    """Recipes, a study, and the records of its runs."""
    Path("recipe.yaml").write_text(
        "config_name: tiny\ntrain_file: [corpus/rows.jsonl]\ndo_train: true\nmax_steps: 3\nlearning_rate: 1.0e-3\n"
        "objective: mlm\nconfig_overrides: hidden_size=32,num_attention_heads=4\nuse_cpu: true\noutput_dir: out\n"
    )
    Path("recipe.json").write_text(json.dumps({"config_name": "tiny", "do_train": True, "output_dir": "out",
                                               "use_cpu": True, "learning_rate": 0.001}))  # fmt: skip
    Path("study.yaml").write_text(
        "question: Does a head need its size?\naxis: attention_head_size\nlearning_rates: [1.0e-3, 2.0e-3]\n"
        "seeds: [1, 2]\nmodel: {hidden_size: 32, num_hidden_layers: 1, intermediate_size: 64}\nseries:\n"
        "  fixed: {num_attention_heads: 4, attention_head_size: [8, 16]}\n"
        "  equal: {num_attention_heads: 2, attention_head_size: [8, 16], equal: parameters, to: fixed}\n"
        "pretraining: {max_steps: 2, max_seq_length: 16, total_train_batch_size: 4}\n"
    )
    record = {"key": "k", "objective": "clm", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
              "attention_head_size": 8, "intermediate_size": 64, "head_embedding": None, "qk_norm": False,
              "parameters": 9000, "non_embedding_parameters": 8000, "forward_flops": 1000, "training_flops": 3000,
              "max_seq_length": 16, "tokens": 128, "epochs": 1.0, "texts": "12 documents", "learning_rate": 0.001,
              "seed": 1, "results": {"loss": 2.0, "perplexity": 7.4}, "seconds": 1.0, "hardware": "2 CPU cores",
              "threads": 1, "versions": {"torch": "2"}, "commit": "c", "study": "s", "scale": None,
              "axis": "attention_head_size", "series": "fixed", "point": 0, "equal": None, "to": None,
              "to_point": None, "value_head_size": 8, "decay_from": None, "of_grid": False, "curve": None,
              "question": None}  # fmt: skip
    places = [(point, seed) for point in (0, 1) for seed in (1, 2)]
    runs = [
        {**record, "key": f"k{p}{s}", "point": p, "seed": s, "attention_head_size": 8 * (p + 1)} for p, s in places
    ]
    Path("runs.jsonl").write_text("".join(json.dumps(run) + "\n" for run in runs))


def build_checkpoint():
    """A fine-tuning run that was killed right after its checkpoint of step 2."""
    write_checksums = WriteChecksums.on_save

    def on_save(*args, **kwargs):
        write_checksums(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    if (child := os.fork()) == 0:
        WriteChecksums.on_save = on_save
        run_glue(RESUMED)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
        raise RuntimeError("the run that was to be killed at its checkpoint has ended by itself")


# What users' commands do with them


def model(folder: str) -> Callable:
    def load():
        arguments = ModelArguments(model_name_or_path=folder)
        config = load_config(arguments)
        tokenizer = load_tokenizer(arguments.tokenizer)
        loaded = load_model(AutoModelForSequenceClassification, arguments, config, tokenizer, train=False)
        return loaded.state_dict(), without_names(loaded.config), tokens_of(tokenizer)

    return load


def bert(folder: str) -> Callable:
    def load():
        loaded = load_bert(folder)
        return loaded.state_dict(), without_names(loaded.config)

    return load


def without_names(config) -> dict:
    return {name: value for name, value in config.to_dict().items() if name not in ("_name_or_path", "dtype")}


def tokens_of(tokenizer) -> list:
    texts = [*SENTENCES, "The [MASK] , 7 café 漢字"]
    return [tokenizer(texts)["input_ids"], sorted(tokenizer.get_vocab().items()), tokenizer.all_special_ids]


def tokenizer(name: str) -> Callable:
    return lambda: tokens_of(load_tokenizer(name))


def converted():
    convert("bert", "converted", num_attention_heads=8)
    return Path("converted/model.safetensors").read_bytes(), Path("converted/README.md").read_text()


def inspected():
    found = inspect("bert", "inspected", "corpus/whole.txt", max_seq_length=16, max_samples=4, importance_samples=1)
    return inspection_text(found)


def pushed():
    folder = Path("pushed")
    (architecture,) = checked_config(folder)["architectures"]
    return sorted(checkpoint_files(folder)), card_of(folder, architecture, "user/name", None)


def documents(file: str, **options):
    return prepare_store([Corpus(file, **options)], load_tokenizer(VOCABULARY), store_dir="store")


def corpus(file: str, **options) -> Callable:
    def load():
        found = documents(file, **options)
        rows = [(found.tokens(number), found.sentence_ends(number)) for number in range(len(found))]
        return [(tokens.astype(int), ends.astype(int)) for tokens, ends in rows]

    return load


def examples():
    """All examples of the first epoch that a store gives."""
    found = documents("corpus/rows.jsonl")
    training, _ = split_documents(found, 0.2)
    pairs = PairExamples(found, training, load_tokenizer(VOCABULARY), max_seq_length=32)
    return [pairs[number] for number in range(len(pairs))]


def rows(file: str) -> Callable:
    def load():
        data = load_files({"train": file})
        return data.labels, data.splits["train"].to_dict()

    return load


def glue_task():
    data = load_task("stsb", "glue", ("train",))
    return data.labels, data.splits["train"].to_dict()


def questions(file: str) -> Callable:
    return lambda: load_squad(file, version_2_with_negative=True).to_dict()


def features():
    datasets.config.HF_DATASETS_CACHE = Path("cache")
    data = load_files({"train": "rows.csv"})
    return text_features(data.splits["train"], load_tokenizer(VOCABULARY), 16).to_dict()


def windows():
    datasets.config.HF_DATASETS_CACHE = Path("cache")
    asked = load_squad("squad.json", version_2_with_negative=True)
    return squad_windows(asked, load_tokenizer(VOCABULARY), 24, 4, for_training=False).to_dict()


def recipe(file: str) -> Callable:
    def load():
        parsed = make_arguments(read_arguments([file], *ARGUMENTS), *ARGUMENTS)
        return [{name: value for name, value in vars(one).items() if name[0] != "_"} for one in parsed]

    return load


def study():
    found = load_study("study.yaml")
    return {**vars(found), "folder": None}, found.shapes, [run.key for run in found.runs([])]


def reported():
    return report_markdown(report_runs(["runs.jsonl"], "report"))


def resumed():
    run_glue(RESUMED)
    state = json.loads(Path("resumed/trainer_state.json").read_text())
    log = [{key: value for key, value in entry.items() if not timed(key)} for entry in state["log_history"]]
    return Path("resumed/model.safetensors").read_bytes(), log


def timed(name: str) -> bool:
    """Whether a metric is a time or a speed, other in every run."""
    return any(part in name for part in ("runtime", "per_second", "preparation_time"))


TXT = {"document_boundary": "blank_line"}
CHECKPOINT = "resumed.partial/checkpoint-2"
KINDS = {
    "config.json": Kind("model/config.json", "json", model("model")),
    "model.safetensors": Kind("model/model.safetensors", "safetensors", model("model")),
    "model.safetensors.index.json": Kind("model-shards/model.safetensors.index.json", "json", model("model-shards")),
    "pytorch_model.bin": Kind("model-bin/pytorch_model.bin", "torch", model("model-bin")),
    "tokenizer.json": Kind("model/tokenizer.json", "json", tokenizer("model")),
    "tokenizer_config.json": Kind("model/tokenizer_config.json", "json", tokenizer("model")),
    "vocab.txt": Kind(VOCABULARY, "text", tokenizer(VOCABULARY)),
    "convert: config.json": Kind("bert/config.json", "json", bert("bert")),
    "convert: model.safetensors": Kind("bert/model.safetensors", "safetensors", bert("bert")),
    "convert: pytorch_model.bin": Kind("bert-bin/pytorch_model.bin", "torch", bert("bert-bin")),
    "convert: tokenizer.json": Kind("bert/tokenizer.json", "json", converted, share=0.3),
    "convert: README.md": Kind("bert/README.md", "text", converted, share=0.3),
    "inspect: config.json": Kind("bert/config.json", "json", inspected, share=0.5),
    "inspect: model.safetensors": Kind("bert/model.safetensors", "safetensors", inspected, share=0.5),
    "push: config.json": Kind("pushed/config.json", "json", pushed),
    "push: model.safetensors": Kind("pushed/model.safetensors", "safetensors", pushed, share=0.5),
    "push: README.md": Kind("pushed/README.md", "text", pushed),
    "corpus: txt": Kind("corpus/whole.txt", "text", corpus("corpus/whole.txt")),
    "corpus: txt in blocks": Kind("corpus/blocks.txt", "text", corpus("corpus/blocks.txt", **TXT)),
    "corpus: jsonl": Kind("corpus/rows.jsonl", "jsonl", corpus("corpus/rows.jsonl")),
    "corpus: csv": Kind("corpus/rows.csv", "csv", corpus("corpus/rows.csv")),
    "corpus: tsv": Kind("corpus/rows.tsv", "tsv", corpus("corpus/rows.tsv")),
    "corpus: parquet": Kind("corpus/rows.parquet", "parquet", corpus("corpus/rows.parquet")),
    "corpus: txt.gz": Kind("corpus/blocks.txt.gz", "txt.gz", corpus("corpus/blocks.txt.gz", **TXT)),
    "corpus: txt.bz2": Kind("corpus/blocks.txt.bz2", "txt.bz2", corpus("corpus/blocks.txt.bz2", **TXT), share=0.5),
    "corpus: jsonl.gz": Kind("corpus/rows.jsonl.gz", "jsonl.gz", corpus("corpus/rows.jsonl.gz")),
    "corpus: csv.xz": Kind("corpus/rows.csv.xz", "csv.xz", corpus("corpus/rows.csv.xz"), share=0.5),
    "store: shard": Kind("store/store-*/shard-000000.arrow", "arrow", examples, written_by_load=True),
    "store: documents.npy": Kind("store/store-*/documents.npy", "npy", examples, written_by_load=True),
    "store: store.json": Kind("store/store-*/store.json", "json", examples, written_by_load=True),
    "store: plan": Kind("store/store-*/plans/pairs-*-0", "plan", examples, written_by_load=True),
    "rows: csv": Kind("rows.csv", "csv", rows("rows.csv"), share=1.5),
    "rows: tsv": Kind("rows.tsv", "tsv", rows("rows.tsv")),
    "rows: jsonl": Kind("rows.jsonl", "jsonl", rows("rows.jsonl"), share=1.5),
    "rows: json": Kind("rows.json", "json", rows("rows.json")),
    "rows: parquet": Kind("rows.parquet", "parquet", rows("rows.parquet")),
    "GLUE: train.tsv": Kind("glue/train.tsv", "tsv", glue_task),
    "SQuAD: json": Kind("squad.json", "json", questions("squad.json"), share=1.5),
    "SQuAD: jsonl": Kind("squad.jsonl", "jsonl", questions("squad.jsonl")),
    "SQuAD: parquet": Kind("squad.parquet", "parquet", questions("squad.parquet"), share=0.5),
    "features: texts": Kind("cache/fixedbert/*/features.arrow", "arrow", features, written_by_load=True),
    "features: windows": Kind("cache/fixedbert/*/features.arrow", "arrow", windows, written_by_load=True, share=0.5),
    "recipe: yaml": Kind("recipe.yaml", "yaml", recipe("recipe.yaml"), share=1.5),
    "recipe: json": Kind("recipe.json", "json", recipe("recipe.json"), share=0.5),
    "study: yaml": Kind("study.yaml", "yaml", study, share=1.5),
    "study: runs.jsonl": Kind("runs.jsonl", "jsonl", reported),
    "resume: command.json": Kind("resumed.partial/command.json", "json", resumed, share=0.5),
    "resume: trainer_state.json": Kind(f"{CHECKPOINT}/trainer_state.json", "json", resumed, share=0.5),
    "resume: model.safetensors": Kind(f"{CHECKPOINT}/model.safetensors", "safetensors", resumed, share=0.5),
    "resume: optimizer.pt": Kind(f"{CHECKPOINT}/optimizer.pt", "torch", resumed, share=0.5),
    "resume: scheduler.pt": Kind(f"{CHECKPOINT}/scheduler.pt", "torch", resumed, share=0.5),
    "resume: rng_state.pth": Kind(f"{CHECKPOINT}/rng_state.pth", "torch", resumed, share=0.5),
    "resume: logging_window.json": Kind(f"{CHECKPOINT}/logging_window.json", "json", resumed, share=0.3),
    "resume: checksums.json": Kind(f"{CHECKPOINT}/checksums.json", "json", resumed, share=0.3),
    "resume: training_args.bin": Kind(f"{CHECKPOINT}/training_args.bin", "torch", resumed, share=0.3),
}
