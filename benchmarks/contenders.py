"""The sides in benchmarks.quality: stock BERT trained with Trainer, and recipes for run_pretraining.py."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import (
    AutoModelForPreTraining,
    BertConfig,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
    set_seed,
)

import fixedbert_cli
from benchmarks.paired import data_directory
from benchmarks.sides import MAX_STEPS, Batch, Side, Stages, TimedTraining
from fixedbert.counts import training_flops
from fixedbert.data.collator import PretrainingCollator
from fixedbert.data.examples import Examples
from fixedbert.option_values import make
from fixedbert.options import ModelOptions, PretrainingDataOptions
from fixedbert.pretraining.arguments import ARGUMENTS, PretrainingArguments
from fixedbert.pretraining.examples import make_examples, make_tokenizer
from fixedbert.pretraining.pretrain import MODELS, pretrain
from fixedbert.pretraining.stages import Stage, plan_stages
from fixedbert.support.errors import InputError
from fixedbert.support.files import read_yaml
from fixedbert.support.machine import has_bf16
from fixedbert.training.arguments import with_recipe
from fixedbert.training.models import load_model
from fixedbert.training.speed import keep_freed_memory

LENGTH, HELD_OUT, EVAL_BATCH = 128, 500, 50
BERT_OPTIMIZER = {
    "weight_decay": 0.01,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "max_grad_norm": 1.0,
}


@dataclass(frozen=True)
class Settings:
    """
    Settings other than the learning rate that stock BERT and recipes both support. The defaults are common choices.

    Args:
        dropout: Dropout rate for hidden states and attention.
        optimizer: Arguments for Trainer.
        keeps_memory: If True, glibc keeps freed memory (see `keep_freed_memory`).
    """

    dropout: float = 0.1
    optimizer: dict[str, float] = field(default_factory=BERT_OPTIMIZER.copy)
    keeps_memory: bool = False

    def text(self) -> str:
        """Lists the settings that differ from the defaults."""
        changed = {name: value for name, value in self.optimizer.items() if value != BERT_OPTIMIZER[name]}
        changed |= {} if self.dropout == Settings.dropout else {"dropout": self.dropout}
        changes = ["memory"] if self.keeps_memory else []
        return ",".join([*changes, *(f"{name}={value:g}" for name, value in changed.items())])


@dataclass(frozen=True)
class Stock:
    """transformers' BERT, trained with AdamW, warm-up for the first 10% of the time and linear decay."""

    layers: int
    width: int
    heads: int
    feed_forward: int
    learning_rate: float
    batch: int
    use_cpu: bool
    bf16: bool
    equal: Settings = Settings()

    @property
    def name(self) -> str:
        return "-".join(filter(None, ["stock", f"{self.learning_rate:g}", self.equal.text()]))

    def config(self, tokenizer: PreTrainedTokenizerBase) -> BertConfig:
        return BertConfig(
            vocab_size=len(tokenizer),
            num_hidden_layers=self.layers,
            hidden_size=self.width,
            num_attention_heads=self.heads,
            intermediate_size=self.feed_forward,
            hidden_dropout_prob=self.equal.dropout,
            attention_probs_dropout_prob=self.equal.dropout,
            pad_token_id=tokenizer.pad_token_id,
        )

    def arguments(self, directory: Path, seed: int) -> TrainingArguments:
        return TrainingArguments(
            output_dir=str(directory),
            learning_rate=self.learning_rate,
            per_device_train_batch_size=self.batch,
            warmup_steps=0.1,
            max_steps=MAX_STEPS,
            use_cpu=self.use_cpu,
            bf16=self.bf16,
            seed=seed,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=torch.accelerator.is_available(),
            **self.equal.optimizer,
        )


def device_options() -> dict[str, bool]:
    """Returns the arguments for the device and precision, which are the same for all sides."""
    use_cpu = not torch.accelerator.is_available()
    return {"use_cpu": use_cpu, "bf16": has_bf16(use_cpu)}


def vocabulary() -> str:
    return str(min((data_directory() / "vocab").glob("*.txt")))


def to_flags(arguments: dict) -> list[str]:
    flags: list[str] = []
    for name, value in ((name, value) for name, value in arguments.items() if value is not None):
        flags += [f"--{name}", *(map(str, value) if isinstance(value, list) else [str(value)])]
    return flags


def text_flags() -> list[str]:
    """Returns the flags for the corpora and how to split them, which determine the held-out pairs."""
    text = [str(data_directory() / "wikipedia"), str(data_directory() / "books")]
    files = {"train_file": text, "tokenizer_name": vocabulary()}
    options = {"document_boundary": "row", "validation_split_percentage": 5}
    return to_flags(files | options | {"do_lower_case": True})


def bert_examples(seed: int) -> tuple[PreTrainedTokenizerBase, Examples, Dataset]:
    """Returns the tokenizer, training examples and held-out examples: segment pairs with 15% masked tokens."""
    options = {"max_seq_length": LENGTH, "max_eval_samples": HELD_OUT, "seed": seed}
    given = fixedbert_cli.read("pretrain", [*text_flags(), *to_flags(options)])
    model_args, data_args, training_args = make(given, *ARGUMENTS)
    tokenizer = make_tokenizer(model_args, data_args, BertConfig(), None)
    examples, held_out, _ = make_examples(model_args, data_args, training_args, tokenizer)
    return tokenizer, examples, held_out


def held_out_batches(seed: int) -> list[Batch]:
    """Returns batches of the held-out examples, which are the same for all seeds."""
    tokenizer, _, held_out = bert_examples(seed)
    return list(DataLoader(held_out, EVAL_BATCH, collate_fn=PretrainingCollator(tokenizer.pad_token_id)))


def parameters(auto_class, config: PreTrainedConfig) -> dict[str, int]:
    """Returns the number of parameters, both in total and without embeddings."""
    with torch.device("meta"):
        model = auto_class.from_config(config)
    return {"parameters": model.num_parameters(), "besides_embeddings": model.num_parameters(exclude_embeddings=True)}


@dataclass(frozen=True)
class Recipe:
    """
    A recipe for run_pretraining.py.

    Args:
        command: Flags other than those for the corpora, which would add local paths to the results.
        stages: Stages of the schedule.
        equal: Settings that stock BERT also supports.
    """

    command: list[str]
    stages: Stages
    equal: Settings


def read_recipe(recipe: str, tokenizer: PreTrainedTokenizerBase) -> tuple[Recipe, dict[str, int]]:
    """Returns the recipe in a file and the parameter counts of its final model."""
    return make_recipe(recipe, to_flags(with_recipe(recipe, {}, *ARGUMENTS)), tokenizer)


def read_trials(file: str, names: list[str], tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple]:
    """
    Yields the name, change, recipe and parameter counts of each recipe in a file, or only of those in `names`.

    The field `change` describes a recipe. Entries whose names begin with a dot exist only for YAML merge keys.
    """
    trials = {name: trial for name, trial in read_yaml(Path(file)).items() if not name.startswith(".")}
    for name in names or trials:
        trial = trials.get(name)
        if not isinstance(trial, dict) or not isinstance(trial.get("change"), str):
            raise InputError(f"{file}: {name} must be a recipe with a field `change`.")
        entries = {key: value for key, value in trial.items() if key != "change"}
        yield name, trial["change"], *make_recipe(f"{file}: {name}", to_flags(entries), tokenizer)


def make_recipe(recipe: str, entries: list[str], tokenizer: PreTrainedTokenizerBase) -> tuple[Recipe, dict[str, int]]:
    """Returns the recipe with the flags `entries`, and its parameter counts. `recipe` is its name in messages."""
    command = [*to_flags(device_options()), *entries]
    given = fixedbert_cli.read("pretrain", [*command, *to_flags({"output_dir": "unused", "do_train": True})])
    arguments = make(given, *ARGUMENTS)
    check_comparable(recipe, *arguments)
    model_args, data_args, training_args = arguments
    stages = plan_stages(given)
    steps = stages[0].schedule_steps or training_args.max_steps
    if steps < 1:
        raise InputError(f"{recipe}: set max_steps, which the learning-rate schedule requires.")
    run = {"do_train": True, "do_eval": False, "eval_strategy": "no", "eval_on_start": False, "save_strategy": "no"}
    run |= {"max_steps": MAX_STEPS, "disable_tqdm": True, "report_to": "none"}
    run["use_cpu"] = device_options()["use_cpu"]
    if training_args.stages:
        del run["max_steps"]
        run["stages"] = [stage | {"steps": MAX_STEPS // 100} for stage in training_args.stages]
    for stage in stages:
        stage.config.vocab_size = len(tokenizer)
    ends = divide_time(stages, steps, data_args.mlm_probability)
    sizes = parameters(MODELS[data_args.objective], stages[-1].config)
    optimizer = {name: getattr(training_args, name) for name in BERT_OPTIMIZER}
    equal = Settings(stages[0].config.hidden_dropout_prob, optimizer, keeps_memory=True)  # as in run_pretraining.py
    return Recipe([*command, *to_flags(run)], ends, equal), sizes


def check_comparable(recipe: str, model: ModelOptions, data: PretrainingDataOptions, training: PretrainingArguments):
    """Raises InputError if a recipe sets corpora or initial weights, predicts no masked tokens or is compiled."""
    if model.model_name_or_path or data.dataset_name or data.validation_file:
        raise InputError(f"{recipe}: all sides use the same corpora and random weights; remove its dataset and model.")
    if data.objective == "clm":
        raise InputError(f"{recipe}: objective clm is not supported, because it predicts no masked tokens.")
    if training.torch_compile:
        raise InputError(f"{recipe}: torch_compile is not supported, because FLOPs for padding are not counted.")


def divide_time(stages: list[Stage], steps: int, predicted: float) -> Stages:
    """
    Returns where each stage ends, as a fraction of the total time and as a step of the schedule.

    The time for each stage is proportional to its FLOPs.

    Args:
        steps: Total number of steps in all stages.
        predicted: Fraction of the tokens that the masked-LM head predicts.
    """
    ends, costs = [*(stage.first_step for stage in stages[1:]), steps], []
    for stage, end in zip(stages, ends, strict=True):
        _, data_args, args = make(stage.arguments, *ARGUMENTS)
        length, examples = data_args.max_seq_length, args.train_batch_size * args.gradient_accumulation_steps
        flops = training_flops(stage.config, length, predicted * length)
        costs.append((end - stage.first_step) * examples * flops)
    total = sum(costs)
    return [(cost / total, end) for cost, end in zip(accumulate(costs), ends, strict=True)]


class NewExamplesEachEpoch(Dataset):
    """Dataset with new pairs and masks in each epoch, as in recipes. Trainer alone would repeat epoch 0."""

    def __init__(self, examples: Examples):
        self.examples, self.taken = examples, 0

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> dict:
        epoch, self.taken = self.taken // len(self), self.taken + 1
        return self.examples[epoch * len(self) + index]


def train_stock(pipe: Connection, stock: Stock, directory: Path, seed: int, seconds: float, held_out: list[Batch]):
    """Trains stock BERT with Trainer. Batches are padded to their longest row, and attention on a CPU is eager."""
    set_seed(seed)
    if stock.equal.keeps_memory:
        keep_freed_memory(torch.device("cpu" if stock.use_cpu else "cuda"))
    tokenizer, examples, _ = bert_examples(seed)
    model = load_model(AutoModelForPreTraining, ModelOptions(), stock.config(tokenizer), tokenizer)
    trainer = Trainer(
        model=model,
        args=stock.arguments(directory, seed),
        train_dataset=NewExamplesEachEpoch(examples),
        data_collator=PretrainingCollator(tokenizer.pad_token_id),
        processing_class=tokenizer,
        callbacks=[TimedTraining(pipe, held_out, seconds, [(1.0, MAX_STEPS)])],
    )
    trainer.train()
    trainer.save_model()


def train_recipe(pipe: Connection, command: list[str], seconds: float, stages: Stages, held_out: list[Batch]):
    pretrain(**fixedbert_cli.read("pretrain", command), callbacks=[TimedTraining(pipe, held_out, seconds, stages)])


def make_side(
    contender: Stock | Recipe, directory: Path, seed: int, held_out: list[Batch], minutes: float, max_minutes: float
) -> Side:
    """
    Returns a process that trains a side, writes the model to `directory` and logs to `directory`.log.

    Args:
        minutes: Duration of the schedule.
        max_minutes: Time after which a recipe is stopped.
    """
    log, seconds = directory.with_name(f"{directory.name}.log"), 60 * minutes
    if isinstance(contender, Stock):
        return Side(train_stock, log, contender, directory, seed, seconds, held_out)
    command = [*contender.command, *text_flags(), *to_flags({"seed": seed, "output_dir": str(directory)})]
    return Side(train_recipe, log, command, seconds, contender.stages, held_out, max_seconds=60 * max_minutes)
