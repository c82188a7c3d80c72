"""Tiny inputs for the options generator: models, rows, questions and a corpus, and command lines that use them."""

import csv
import json
import random
from pathlib import Path

import torch
import transformers
from transformers import BertTokenizer

import fixedbert

WORDS = "the a function takes returns list string file read write what does one two three four five six".split()
AUTO_CLASSES = {
    "Model": transformers.AutoModel,
    "ForPreTraining": transformers.AutoModelForPreTraining,
    "ForMaskedLM": transformers.AutoModelForMaskedLM,
    "ForCausalLM": transformers.AutoModelForCausalLM,
    "LMHeadModel": transformers.AutoModelForCausalLM,
    "ForSequenceClassification": transformers.AutoModelForSequenceClassification,
    "ForQuestionAnswering": transformers.AutoModelForQuestionAnswering,
}


class Inputs:
    """Where the inputs are."""

    directory: Path

    def __getitem__(self, name: str) -> str:
        return str(self.directory / name)


INPUTS = Inputs()
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 5, "attention_head_size": 6}
SHAPE |= {"intermediate_size": 37}
DATA = ("train_file", "validation_file", "test_file")
# Values for options with texts that mean something. @NAME is an input.
FILES = ("@rows.csv", "@scores.csv", "@tags.csv", "@questions.json", "@corpus", "@missing.csv", "@model/config.json")
MODELS = ("@model", "@classifier", "@answers", "@bert", "@missing", "@rows.csv")
COLUMNS = ("text", "label", "text,other", "other", "missing", "text,text", "text,other,label", ",")
TEXT_VALUES = {
    **dict.fromkeys(("model_name_or_path", "model", "models", "compare", "folder"), MODELS),
    **dict.fromkeys(("train_file", "validation_file", "test_file"), FILES),
    "config_name": ("tiny", "@model", "@missing"),
    "config_overrides": ("num_attention_heads=3", "hidden_dropout_prob=2", "nonsense=1", "vocab_size=7", "{}", "a=[1"),
    "tokenizer_name": ("@model", "@model/vocab.txt", "@missing", "@rows.csv"),
    "attn_implementation": ("eager", "sdpa", "flash_attention_2", "flex_attention"),
    "architecture": ("BertForMaskedLM", "FixedHeadBertForMaskedLM", "BertModel", "BertForNothing", "GPT2Model"),
    "task_name": ("rte", "stsb", "mnli", "ax", "all"),
    "data_dir": ("@glue", "@missing", "@rows.csv"),
    **dict.fromkeys(("text_column_names", "label_column_name", "text_column_name"), COLUMNS),
    "class_weights": ("balanced", "1,5", "1,-1", "0,0", "1", "nan,1"),
    "null_score_diff_threshold": ("best", "-3"),
    "language": ("en", "de", "ja", "xx"),
    "dataset_name": ("user/missing",),
    "runtime": ("torch", "torch-unpadded", "torch-bf16", "onnxruntime"),
    "output_dir": ("out", "@rows.csv", "@rows.csv/out", "@model", "out/deep/er", "@missing/out"),
    **dict.fromkeys(("store_dir", "cache_dir"), ("cache", "@rows.csv", "@rows.csv/x")),
    "repo_id": ("user/name", "name", "a/b/c", "user name"),
    "license": ("apache-2.0", "nonsense"),
    "params": ("110M", "1e6", "20k", "1", "1e30", "-5"),
    "report_to": ("none", "all", "tensorboard", "wandb"),
    "metric_for_best_model": ("accuracy", "loss", "eval_loss", "f1"),
    "optim_args": ("a=1", "betas=1"),
    "optim_target_modules": ("all-linear", "attention"),
    "lr_scheduler_kwargs": ('{"num_cycles": 2}', '{"a": 1}', "a=1"),
    "torch_compile_backend": ("eager",),
    "gradient_checkpointing_kwargs": ("use_reentrant=true", "a=1"),
    "include_num_input_tokens_seen": ("yes", "no", "all", "non_padding"),
    "log_level": ("debug", "info", "warning", "error", "critical", "passive"),
    "log_level_replica": ("debug", "passive"),
    "include_for_metrics": ("inputs", "loss"),
    "train_sampling_strategy": ("random", "sequential", "group_by_length", "batch"),
    "accelerator_config": ('{"split_batches": true}', '{"even_batches": false}', '{"a": 1}', "@rows.csv"),
    "dataloader_multiprocessing_context": ("fork", "spawn"),
    "ddp_backend": ("gloo", "nccl"),
    "fsdp": ("full_shard", "offload"),
    "fsdp_config": ('{"min_num_params": 1}', "@missing"),
    "deepspeed": ("@missing", "{}"),
    "debug": ("underflow_overflow",),
    "stages": ('{"steps":1}', '{"steps":1,"max_seq_length":16}', '{"max_seq_length":16}', '{"steps":0}'),
}


class Texts:
    """Maps options to texts, with the paths of inputs."""

    def get(self, name: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        values = TEXT_VALUES.get(name, default)
        return tuple(INPUTS[value[1:]] if value.startswith("@") else value for value in values)


TEXTS = Texts()


def base(name: str, rng: random.Random) -> dict[str, str]:
    """Returns the arguments of a command that succeeds on tiny inputs, to which a case adds options."""
    quick = {"use_cpu": "true", "max_steps": "2", "per_device_train_batch_size": "4", "disable_tqdm": "true"}
    quick |= {"do_train": "true", "do_eval": "true", "output_dir": "out", "bf16": "false"}
    tuned = {"model_name_or_path": INPUTS["model"], "max_seq_length": "32"}
    files = {"train_file": INPUTS["rows.csv"], "validation_file": INPUTS["rows.csv"]}
    questions = {"train_file": INPUTS["questions.json"], "validation_file": INPUTS["questions.json"]}
    calibration = {"train_file": INPUTS["rows.csv"], "max_seq_length": "32"}
    shape = ",".join(f"{field}={value}" for field, value in SHAPE.items())
    new = {"config_name": "tiny", "config_overrides": shape, "tokenizer_name": INPUTS["model"]}
    corpus = {"train_file": INPUTS["corpus"], "store_dir": INPUTS["store"], "max_seq_length": "32"}
    target = rng.choice([{"attention_head_size": "4"}, {"params": "9000"}, {"num_attention_heads": "3 2"}])
    rows = [
        files,
        {name: INPUTS["tags.csv"] for name in files} | {"label_column_name": "a,b"},
        {name: INPUTS["scores.csv"] for name in files},
        files | {"test_file": INPUTS["rows.csv"], "do_predict": "true"},
        {"task_name": "rte", "data_dir": INPUTS["glue"]},
    ]
    lines = {
        "pretrain": corpus | rng.choice([new, {"model_name_or_path": INPUTS["model"]}]) | quick,
        "glue": tuned | rng.choice(rows) | quick,
        "squad": tuned | {"doc_stride": "8"} | questions | quick,
        "convert": {"model": INPUTS[rng.choice(["model", "classifier", "bert"])], "output_dir": "out"},
        "shrink": {"model": INPUTS["classifier"], "output_dir": "out", **calibration, **target},
        "compare": {"models": INPUTS["classifier"], "validation_file": INPUTS["rows.csv"], "max_seq_length": "32"}
        | {"runtime": "torch", "output_dir": "out"},
        "export": {"model": INPUTS["classifier"], "output_dir": "out"},
        "push": {"folder": INPUTS["classifier"], "repo_id": "user/name", "dry_run": "true"},
        "inspect": {"model": INPUTS["model"], "output_dir": "out", "validation_file": INPUTS["corpus"]}
        | {"max_seq_length": "16", "max_eval_samples": "6"},
    }
    return lines[name]


def write_inputs(directory: Path):
    """Writes all inputs."""
    directory.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    write_models(directory)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(1, 17))) for _ in range(60)]
    rows = [(texts[n], texts[-n - 1], ("bad", "good")[n % 2], n % 3 / 2, n % 2, (n + 1) % 2) for n in range(20)]
    write_csv(directory / "rows.csv", ("text", "other", "label"), [row[:3] for row in rows])
    write_csv(directory / "scores.csv", ("text", "label"), [(row[0], row[3] + 0.25) for row in rows])
    write_csv(directory / "tags.csv", ("text", "a", "b"), [(row[0], *row[4:]) for row in rows])
    glue = directory / "glue" / "RTE"
    glue.mkdir(parents=True, exist_ok=True)
    for split in ("train", "dev", "test"):
        lines = [(n, texts[n], texts[-n - 1], ("entailment", "not_entailment")[n % 2]) for n in range(13)]
        names = ("index", "sentence1", "sentence2", "label")[: 3 if split == "test" else 4]
        write_csv(glue / f"{split}.tsv", names, [line[: len(names)] for line in lines], "\t")
    (directory / "corpus").mkdir(exist_ok=True)
    for number in range(12):
        sentences = [f"{rng.choice(texts).capitalize()}." for _ in range(9)]
        (directory / "corpus" / f"{number:02}.txt").write_text(" ".join(sentences))
    paragraphs = []
    for number in range(13):
        words = rng.choices(WORDS, k=rng.randint(3, 40))
        index = rng.randrange(len(words))
        answer = {"text": words[index], "answer_start": len(" ".join([*words[:index], ""]))}
        question = {"id": f"q{number}", "question": " ".join(rng.choices(WORDS, k=4)), "answers": [answer]}
        paragraphs.append({"context": " ".join(words), "qas": [question]})
    content = {"version": "1.1", "data": [{"title": "a", "paragraphs": paragraphs}]}
    (directory / "questions.json").write_text(json.dumps(content))


def write_csv(file: Path, columns: tuple[str, ...], rows: list, delimiter: str = ","):
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream, delimiter=delimiter)
        writer.writerow(columns)
        writer.writerows(rows)


def write_models(directory: Path):
    """Saves a pretrained model, a classifier, a model for questions and a BERT, all with the same tokenizer."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS, *letters, *(f"##{x}" for x in letters)]
    vocabulary = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = BertTokenizer(vocab=vocabulary)
    common = {"vocab_size": len(vocabulary), "max_position_embeddings": 128, "initializer_range": 0.2}
    config = fixedbert.FixedHeadBertConfig(**SHAPE, **common)
    shape = {name: value for name, value in SHAPE.items() if name != "attention_head_size"}
    torch.manual_seed(0)
    labels = {"id2label": {0: "bad", 1: "good"}, "label2id": {"bad": 0, "good": 1}}
    labelled = fixedbert.FixedHeadBertConfig(**SHAPE, **common, **labels, problem_type="single_label_classification")
    models = {
        "model": fixedbert.FixedHeadBertForPreTraining(config),
        "classifier": fixedbert.FixedHeadBertForSequenceClassification(labelled),
        "answers": fixedbert.FixedHeadBertForQuestionAnswering(config),
        "bert": transformers.BertForMaskedLM(transformers.BertConfig(**shape | {"num_attention_heads": 4}, **common)),
    }
    for name, model in models.items():
        model.save_pretrained(directory / name)
        tokenizer.save_pretrained(directory / name)
        (directory / name / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
