"""The sides of benchmarks.quality: stock BERT under a plain Trainer, and recipes of run_pretraining.py."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset
from transformers import (
    AutoModelForPreTraining,
    BertConfig,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    SchedulerType,
    Trainer,
    TrainingArguments,
    set_seed,
)

from benchmarks.paired import data_directory
from benchmarks.sides import MANY, Batch, Side, Stages, Yardstick, scheduler_of
from fixedbert.counts import training_flops
from fixedbert.data.collator import PretrainingCollator
from fixedbert.data.examples import Examples
from fixedbert.pretraining.arguments import ARGUMENTS, PretrainingArguments, PretrainingDataArguments
from fixedbert.pretraining.examples import make_examples
from fixedbert.pretraining.pretrain import MODELS
from fixedbert.pretraining.pretrain import main as run_pretraining
from fixedbert.pretraining.stages import Stage, plan_stages
from fixedbert.support.errors import InputError
from fixedbert.support.files import read_yaml
from fixedbert.training.arguments import RECIPES, ModelArguments, make_arguments, read_arguments, with_recipe
from fixedbert.training.loading import load_model
from fixedbert.training.speed import has_bf16, keep_freed_memory

LENGTH, HELD_OUT, EVAL_BATCH = 128, 500, 50
BERTS = {"weight_decay": 0.01, "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8, "max_grad_norm": 1.0}


@dataclass(frozen=True)
class Settings:
    """
    Settings of a recipe that stock BERT can have too; the defaults are those that people use. The learning rate is
    chosen for each side.

    Args:
        dropout: dropout of hidden states and attention.
        optimizer: arguments of Trainer.
        keeps_memory: whether glibc keeps freed memory, see `keep_freed_memory`.
    """

    dropout: float = 0.1
    optimizer: dict[str, float] = field(default_factory=BERTS.copy)
    keeps_memory: bool = False

    def text(self) -> str:
        """Lists the settings that differ from the defaults."""
        changed = {name: value for name, value in self.optimizer.items() if value != BERTS[name]}
        changed |= {} if self.dropout == Settings.dropout else {"dropout": self.dropout}
        words = ["memory"] if self.keeps_memory else []
        return ",".join([*words, *(f"{name}={value:g}" for name, value in changed.items())])


@dataclass(frozen=True)
class Stock:
    """transformers' BERT with its training: AdamW, a warm-up over a tenth of the time, then linear decay."""

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

    def arguments(self, folder: Path, seed: int) -> TrainingArguments:
        return TrainingArguments(
            output_dir=str(folder),
            learning_rate=self.learning_rate,
            per_device_train_batch_size=self.batch,
            warmup_steps=0.1,
            max_steps=MANY,
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
    """Returns the device and precision of all sides."""
    use_cpu = not torch.accelerator.is_available()
    return {"use_cpu": use_cpu, "bf16": has_bf16(use_cpu)}


def vocabulary() -> str:
    folder = data_directory() / "vocab"
    return str(min(folder.glob("*.txt"), default=folder / "vocab.txt"))


def to_flags(arguments: dict) -> list[str]:
    words: list[str] = []
    for name, value in ((name, value) for name, value in arguments.items() if value is not None):
        words += [f"--{name}", *(map(str, value) if isinstance(value, list) else [str(value)])]
    return words


def text_flags() -> list[str]:
    """Returns the flags for the text and its documents, which determine the held-out pairs."""
    text = [str(data_directory() / "wikipedia"), str(data_directory() / "books")]
    files = {"train_file": text, "tokenizer_name": vocabulary()}
    options = {"document_boundary": "row", "validation_split_percentage": 5}
    return to_flags(files | options | {"do_lower_case": True})


def bert_examples(seed: int) -> tuple[PreTrainedTokenizerBase, Examples, Dataset]:
    """Returns the tokenizer, training examples and some held-out examples: segment pairs with 15 % masked tokens."""
    options = {"max_seq_length": LENGTH, "max_eval_samples": HELD_OUT, "seed": seed}
    given = read_arguments([*text_flags(), *to_flags(options)], *ARGUMENTS)
    return make_examples(*make_arguments(given, *ARGUMENTS), BertConfig(), None)[:3]


def held_out_batches(seed: int) -> list[Batch]:
    """Returns batches of the held-out examples, which are equal for all seeds."""
    tokenizer, _, held_out = bert_examples(seed)
    return list(DataLoader(held_out, EVAL_BATCH, collate_fn=PretrainingCollator(tokenizer.pad_token_id)))


def parameters(auto_class, config: PreTrainedConfig) -> dict[str, int]:
    with torch.device("meta"):
        model = auto_class.from_config(config)
    return {"parameters": model.num_parameters(), "besides_embeddings": model.num_parameters(exclude_embeddings=True)}


@dataclass(frozen=True)
class Recipe:
    """
    A recipe of run_pretraining.py that is trained for a time.

    Args:
        command: flags without the text, whose paths on this machine do not belong in results.
        stages: stages of the schedule.
        equal: settings that stock BERT can have too.
    """

    command: list[str]
    stages: Stages
    equal: Settings


def title_of(recipe: str) -> str:
    """Returns the comment in the first line of a recipe, which describes its changes, or else its name."""
    file = Path(recipe) if Path(recipe).exists() else RECIPES / Path(recipe).name
    first, *_ = file.read_text(encoding="utf-8").split("\n", 1)
    return first.lstrip("# ") if first.startswith("#") else file.stem


def read_recipe(recipe: str, tokenizer: PreTrainedTokenizerBase) -> tuple[Recipe, dict[str, int]]:
    """
    Returns the recipe in a file, and the number of parameters of its final model.

    Raises:
        InputError: the recipe cannot be compared with the others.
    """
    return recipe_of(recipe, to_flags(with_recipe(recipe, {})), tokenizer)


def read_trials(file: str, names: list[str], tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple]:
    """
    Yields name, change, recipe and number of parameters for the recipes in a file. Each has a `change`, which
    describes it; names that begin with a dot are for merge keys.

    Args:
        names: names of recipes; none for all.

    Raises:
        InputError: a recipe does not exist, or cannot be compared with the others.
    """
    trials = {name: trial for name, trial in read_yaml(Path(file)).items() if not name.startswith(".")}
    for name in names or trials:
        trial = trials.get(name)
        if not isinstance(trial, dict) or not isinstance(trial.get("change"), str):
            raise InputError(f"{file}: {name} is not a recipe with a `change`.")
        entries = {key: value for key, value in trial.items() if key != "change"}
        yield name, trial["change"], *recipe_of(f"{file}: {name}", to_flags(entries), tokenizer)


def recipe_of(recipe: str, entries: list[str], tokenizer: PreTrainedTokenizerBase) -> tuple[Recipe, dict[str, int]]:
    """Returns the recipe with these flags; `recipe` is its name in messages."""
    command = [*to_flags(device_options()), *entries]
    given = read_arguments([*command, *to_flags({"output_dir": "unused", "do_train": True})], *ARGUMENTS)
    arguments = make_arguments(given, *ARGUMENTS)
    check_comparable(recipe, *arguments)
    model_args, data_args, training_args = arguments
    stages = plan_stages(given)
    steps = stages[0].schedule_steps or training_args.max_steps
    if steps < 1:
        raise InputError(f"{recipe}: max_steps is missing; the learning-rate schedule is stretched over the time.")
    if not isinstance(scheduler_of(training_args, steps), LambdaLR):
        kind = SchedulerType(training_args.lr_scheduler_type).value
        raise InputError(f"{recipe}: lr_scheduler_type {kind} is not a function of the step.")
    run = {"do_train": True, "do_eval": False, "eval_strategy": "no", "eval_on_start": False, "save_strategy": "no"}
    run |= {"max_steps": MANY, "disable_tqdm": True, "report_to": "none"}
    run["use_cpu"] = device_options()["use_cpu"]
    if training_args.stages:
        del run["max_steps"]
        run["stages"] = [stage | {"steps": MANY // 100} for stage in training_args.stages]
    for stage in stages:
        stage.config.vocab_size = len(tokenizer)
    ends = parts_of_time(stages, steps, data_args.mlm_probability)
    of_model = parameters(MODELS[data_args.objective], stages[-1].config)
    optimizer = {name: getattr(training_args, name) for name in BERTS}
    equal = Settings(
        stages[0].config.hidden_dropout_prob, optimizer, keeps_memory=True
    )  # run_pretraining.py keeps it always
    return Recipe([*command, *to_flags(run)], ends, equal), of_model


def check_comparable(
    recipe: str, model: ModelArguments, data: PretrainingDataArguments, training: PretrainingArguments
):
    """Raises InputError if a recipe has its own text or weights, predicts no masked tokens, or is compiled."""
    if model.model_name_or_path or data.dataset_name or data.validation_file:
        raise InputError(f"{recipe}: all sides have the same text and random weights; remove its own.")
    if data.objective == "clm":
        raise InputError(f"{recipe}: objective clm predicts no masked tokens.")
    if training.torch_compile:
        raise InputError(f"{recipe}: torch_compile computes padding, which is not counted; remove it.")


def parts_of_time(stages: list[Stage], steps: int, predicted: float) -> Stages:
    """
    Returns the share of the time and the step of the schedule at which each stage ends, with times in proportion to
    operations.

    Args:
        steps: number of steps of all stages.
        predicted: share of the tokens that the masked-LM head predicts.
    """
    ends, costs = [*(stage.first_step for stage in stages[1:]), steps], []
    for stage, end in zip(stages, ends, strict=True):
        _, data_args, args = make_arguments(stage.arguments, *ARGUMENTS)
        length, examples = data_args.max_seq_length, args.train_batch_size * args.gradient_accumulation_steps
        flops = training_flops(stage.config, length, predicted * length)
        costs.append((end - stage.first_step) * examples * flops)
    total = sum(costs)
    return [(part / total, end) for part, end in zip(accumulate(costs), ends, strict=True)]


class EpochAfterEpoch(Dataset):
    """Examples with new pairs and masks in each epoch, as in recipes; a plain Trainer repeats epoch 0."""

    def __init__(self, examples: Examples):
        self.examples, self.taken = examples, 0

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> dict:
        epoch, self.taken = self.taken // len(self), self.taken + 1
        return self.examples[epoch * len(self) + index]


def train_stock(pipe: Connection, stock: Stock, folder: Path, seed: int, seconds: float, held_out: list[Batch]):
    """Train stock BERT with a plain Trainer, padding to the longest row, and eager attention on a CPU."""
    set_seed(seed)
    if stock.equal.keeps_memory:
        keep_freed_memory(torch.device("cpu" if stock.use_cpu else "cuda"))
    tokenizer, examples, _ = bert_examples(seed)
    model = load_model(AutoModelForPreTraining, ModelArguments(), stock.config(tokenizer), tokenizer)
    trainer = Trainer(
        model=model,
        args=stock.arguments(folder, seed),
        train_dataset=EpochAfterEpoch(examples),
        data_collator=PretrainingCollator(tokenizer.pad_token_id),
        processing_class=tokenizer,
        callbacks=[Yardstick(pipe, held_out, seconds, [(1.0, MANY)])],
    )
    trainer.train()
    trainer.save_model()


def train_recipe(pipe: Connection, command: list[str], seconds: float, stages: Stages, held_out: list[Batch]):
    run_pretraining(command, callbacks=[Yardstick(pipe, held_out, seconds, stages)])


def side_of(
    contender: Stock | Recipe, folder: Path, seed: int, minutes: float, held_out: list[Batch], most: float
) -> Side:
    """
    Returns the process that trains a side, with the model in `folder` and its output in `folder`.log.

    Args:
        most: minutes after which a recipe is stopped; its schedule is one of `minutes`.
    """
    log, seconds = folder.with_name(f"{folder.name}.log"), 60 * minutes
    if isinstance(contender, Stock):
        return Side(train_stock, log, contender, folder, seed, seconds, held_out)
    command = [*contender.command, *text_flags(), *to_flags({"seed": seed, "output_dir": str(folder)})]
    return Side(train_recipe, log, command, seconds, contender.stages, held_out, most=60 * most)
