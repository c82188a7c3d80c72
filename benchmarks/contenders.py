"""What benchmarks.quality compares: stock BERT under a plain Trainer, and recipes of run_pretraining.py."""

import os
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
    What stock BERT can have as well as a recipe; by default as people run it. The schedule is not among them: the rate
    is chosen for each side.

    Args:
        dropout: in pretraining, of hidden states and of attention.
        optimizer: arguments of Trainer.
        keeps_memory: whether glibc keeps freed memory, see `keep_freed_memory`.
    """

    dropout: float = 0.1
    optimizer: dict[str, float] = field(default_factory=BERTS.copy)
    keeps_memory: bool = False

    def text(self) -> str:
        """What is another than as people run it; nothing if all is the same."""
        changed = {name: value for name, value in self.optimizer.items() if value != BERTS[name]}
        changed |= {} if self.dropout == Settings.dropout else {"dropout": self.dropout}
        words = ["memory"] if self.keeps_memory else []
        return ",".join([*words, *(f"{name}={value:g}" for name, value in changed.items())])


@dataclass(frozen=True)
class Stock:
    """BERT as transformers has it, and how it is trained: AdamW, a tenth of the time warm-up, then linear decay."""

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
    """What both train on, and in which precision."""
    use_cpu = not torch.accelerator.is_available()
    return {"use_cpu": use_cpu, "bf16": has_bf16(use_cpu)}


def data_folder() -> Path:
    if "FIXEDBERT_DATA" not in os.environ:
        raise InputError(
            "FIXEDBERT_DATA does not say where wikipedia/, books/ and vocab/ are: set it to their folder."
        )
    return Path(os.environ["FIXEDBERT_DATA"])


def vocabulary() -> str:
    folder = data_folder() / "vocab"
    return str(min(folder.glob("*.txt"), default=folder / "vocab.txt"))


def to_flags(arguments: dict) -> list[str]:
    words: list[str] = []
    for name, value in arguments.items():
        words += [f"--{name}", *(map(str, value) if isinstance(value, list) else [str(value)])]
    return words


def text_flags() -> list[str]:
    """The text, and what documents it has, which decide what is held out."""
    text = [str(data_folder() / "wikipedia"), str(data_folder() / "books")]
    files = {"train_file": text, "tokenizer_name": vocabulary()}
    options = {"document_boundary": "row", "validation_split_percentage": 5}
    return to_flags(files | options | {"do_lower_case": True})


def bert_examples(seed: int) -> tuple[PreTrainedTokenizerBase, Examples, Dataset]:
    """BERT's pairs of the text, 15 % of them masked: tokenizer, examples to train on, some of the held-out ones."""
    options = {"max_seq_length": LENGTH, "max_eval_samples": HELD_OUT, "seed": seed}
    given = read_arguments([*text_flags(), *to_flags(options)], *ARGUMENTS)
    return make_examples(*make_arguments(given, *ARGUMENTS), BertConfig(), None)[:3]


def held_out_batches(seed: int) -> list[Batch]:
    """Batches of the held-out examples, which are the same for every seed."""
    tokenizer, _, held_out = bert_examples(seed)
    return list(DataLoader(held_out, EVAL_BATCH, collate_fn=PretrainingCollator(tokenizer.pad_token_id)))


def parameters(auto_class, config: PreTrainedConfig) -> dict[str, int]:
    with torch.device("meta"):
        model = auto_class.from_config(config)
    return {"parameters": model.num_parameters(), "besides_embeddings": model.num_parameters(exclude_embeddings=True)}


@dataclass(frozen=True)
class Recipe:
    """
    A recipe of run_pretraining.py, to be trained for a time.

    Args:
        command: its flags. What follows in them wins: to train alone, for as long as it is let. The text is added
            when a side begins: its paths are this machine's, and do not belong in results.
        stages: of its schedule; without stages a single one.
        equal: its settings that stock BERT can have too.
    """

    command: list[str]
    stages: Stages
    equal: Settings


def title_of(recipe: str) -> str:
    """The comment in the first line, which says what a recipe changes, or else its name."""
    file = Path(recipe) if Path(recipe).exists() else RECIPES / Path(recipe).name
    first, *_ = file.read_text(encoding="utf-8").split("\n", 1)
    return first.lstrip("# ") if first.startswith("#") else file.stem


def read_recipe(recipe: str, tokenizer: PreTrainedTokenizerBase) -> tuple[Recipe, dict[str, int]]:
    """
    The recipe of a file, and its model's parameters at the end.

    Raises:
        InputError: it cannot be compared with the others, or makes no sense.
    """
    return recipe_of(recipe, to_flags(with_recipe(recipe, {})), tokenizer)


def read_trials(file: str, names: list[str], tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple]:
    """
    Recipes that share a file: a mapping from their names to their entries, and to `change`, which says what a recipe
    changes. What begins with a dot is no recipe, but what others take over by a merge key.

    Args:
        names: of those to read; none for all.

    Yields:
        Name, change, recipe and its model's parameters.

    Raises:
        InputError: as `read_recipe`; or there is no recipe of a name.
    """
    remedy = "a file of trials maps names to recipes, each with a `change`"
    trials = {name: trial for name, trial in read_yaml(Path(file)).items() if not name.startswith(".")}
    for name in names or trials:
        trial = trials.get(name)
        if not isinstance(trial, dict) or not isinstance(trial.get("change"), str):
            raise InputError(f"{file}: {name}: no recipe with a `change`; {remedy}.")
        entries = {key: value for key, value in trial.items() if key != "change"}
        yield name, trial["change"], *recipe_of(f"{file}: {name}", to_flags(entries), tokenizer)


def recipe_of(recipe: str, entries: list[str], tokenizer: PreTrainedTokenizerBase) -> tuple[Recipe, dict[str, int]]:
    """The one with these flags; `recipe` is what errors call it."""
    command = [*to_flags(device_options()), *entries]
    given = read_arguments([*command, *to_flags({"output_dir": "unused", "do_train": True})], *ARGUMENTS)
    arguments = make_arguments(given, *ARGUMENTS)
    check_comparable(recipe, *arguments)
    model_args, data_args, training_args = arguments
    stages = plan_stages(given)
    steps = stages[0].schedule_steps or training_args.max_steps
    if steps < 1:
        raise InputError(f"{recipe}: give max_steps; its learning rate's schedule is stretched over the time.")
    if not isinstance(scheduler_of(training_args, steps), LambdaLR):
        kind = SchedulerType(training_args.lr_scheduler_type).value
        raise InputError(f"{recipe}: lr_scheduler_type {kind} is no function of the step; give another.")
    run = {"do_train": True, "do_eval": False, "eval_strategy": "no", "eval_on_start": False, "save_strategy": "no"}
    run |= {"max_steps": MANY, "disable_tqdm": True, "report_to": "none"}
    run["use_cpu"] = device_options()["use_cpu"]  # whatever the recipe has: all on one device
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
    """Raises InputError where a recipe has its own text or weights, no masked tokens to predict, or is compiled."""
    for name, value in (
        ("model_name_or_path", model.model_name_or_path),
        ("dataset_name", data.dataset_name),
        ("validation_file", data.validation_file),
    ):
        if value is not None:
            raise InputError(f"{recipe}: {name}: all begin with random weights, on the same text; leave it out.")
    if data.objective == "clm":
        raise InputError(f"{recipe}: objective clm predicts no masked tokens; give mlm+nsp or mlm.")
    if training.torch_compile:
        raise InputError(f"{recipe}: torch_compile: padding is computed, and would not be counted; leave it out.")


def parts_of_time(stages: list[Stage], steps: int, predicted: float) -> Stages:
    """
    The part of the time, and the step of the schedule, at which each stage ends. A step is taken to last in proportion
    to its operations, so that no speed has to be measured beforehand.

    Args:
        steps: of all stages.
        predicted: the part of the tokens that goes through the masked-LM head.
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
    """New pairs and masks in each pass, as recipes have them; a plain Trainer asks for epoch 0 each time."""

    def __init__(self, examples: Examples):
        self.examples, self.taken = examples, 0

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> dict:
        epoch, self.taken = self.taken // len(self), self.taken + 1
        return self.examples[epoch * len(self) + index]


def train_stock(pipe: Connection, stock: Stock, folder: Path, seed: int, seconds: float, held_out: list[Batch]):
    """Train with what anybody has: a plain Trainer, padding to the longest row, eager attention where it is faster."""
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
    A process that leaves the model in `folder`, and what it prints in a log beside it.

    Args:
        most: minutes of a recipe's training, after which it is stopped; its schedule is one of `minutes`.
    """
    log, seconds = folder.with_name(f"{folder.name}.log"), 60 * minutes
    if isinstance(contender, Stock):
        return Side(train_stock, log, contender, folder, seed, seconds, held_out)
    command = [*contender.command, *text_flags(), *to_flags({"seed": seed, "output_dir": str(folder)})]
    return Side(train_recipe, log, command, seconds, contender.stages, held_out, most=60 * most)
