"""What benchmarks.quality compares: stock BERT under a plain Trainer, and recipes of run_pretraining.py."""

import os
from dataclasses import dataclass
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

from benchmarks.sides import MANY, Batch, Side, Yardstick
from fixedbert.data.collator import PretrainingCollator
from fixedbert.data.epochs import Examples
from fixedbert.errors import InputError
from fixedbert.tasks.pretraining import MODELS
from fixedbert.tasks.pretraining import main as run_pretraining
from fixedbert.training.arguments import ModelArguments, flags, parse, with_recipe
from fixedbert.training.loading import load_config, load_model
from fixedbert.training.precision import has_bf16
from fixedbert.training.pretraining import PretrainingArguments
from fixedbert.training.pretraining_data import PretrainingDataArguments, make_examples

LENGTH, HELD_OUT, EVAL_BATCH = 128, 500, 50


@dataclass(frozen=True)
class Stock:
    """BERT as transformers has it, and how it is trained: AdamW, a tenth of the time warm-up, then linear decay."""

    layers: int
    width: int
    heads: int
    feed_forward: int
    learning_rate: float
    batch: int

    def config(self, tokenizer: PreTrainedTokenizerBase) -> BertConfig:
        return BertConfig(
            vocab_size=len(tokenizer),
            num_hidden_layers=self.layers,
            hidden_size=self.width,
            num_attention_heads=self.heads,
            intermediate_size=self.feed_forward,
            pad_token_id=tokenizer.pad_token_id,
        )

    def arguments(self, folder: Path, seed: int) -> TrainingArguments:
        return TrainingArguments(
            output_dir=str(folder),
            learning_rate=self.learning_rate,
            per_device_train_batch_size=self.batch,
            weight_decay=0.01,
            warmup_steps=0.1,
            max_steps=MANY,
            **device_options(),
            seed=seed,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=torch.accelerator.is_available(),
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


def text_flags() -> list[str]:
    """The text, and what documents it has: those that are held out follow from it."""
    text = [str(data_folder() / "wikipedia"), str(data_folder() / "books")]
    files = {"train_file": text, "tokenizer_name": vocabulary()}
    return flags(files | {"document_boundary": "row", "validation_split_percentage": 5, "do_lower_case": True})


def bert_examples(seed: int) -> tuple[PreTrainedTokenizerBase, Examples, Dataset]:
    """BERT's pairs of the text, 15 % of them masked: tokenizer, examples to train on, some of the held-out ones."""
    options = {"max_seq_length": LENGTH, "max_eval_samples": HELD_OUT, "seed": seed}
    arguments = parse([*text_flags(), *flags(options)], ModelArguments, PretrainingDataArguments, PretrainingArguments)
    return make_examples(*arguments, BertConfig(), None)[:3]


def held_out_batches(seed: int) -> list[Batch]:
    """Of the held-out examples, which are the same for every seed."""
    tokenizer, _, held_out = bert_examples(seed)
    return list(DataLoader(held_out, EVAL_BATCH, collate_fn=PretrainingCollator(tokenizer.pad_token_id)))


def recipe_flags(recipe: str, folder: Path, seed: int) -> list[str]:
    """The recipe's command; what follows it wins: the text, the seed, and to train alone, for as long as it is let."""
    run = {"seed": seed, "output_dir": str(folder), "max_steps": MANY, "disable_tqdm": True, "report_to": "none"}
    run |= {"do_train": True, "do_eval": False, "eval_strategy": "no", "save_strategy": "no"}
    run["use_cpu"] = device_options()["use_cpu"]  # whatever the recipe has: all on one device
    return [*flags(device_options()), *with_recipe([recipe]), *text_flags(), *flags(run)]


def parameters(auto_class, config: PreTrainedConfig) -> dict[str, int]:
    with torch.device("meta"):
        model = auto_class.from_config(config)
    return {"parameters": model.num_parameters(), "besides_embeddings": model.num_parameters(exclude_embeddings=True)}


def recipe_shape(recipe: str, tokenizer: PreTrainedTokenizerBase) -> tuple[int, dict[str, int]]:
    """
    The steps that the recipe's schedule is written for, and its model's parameters.

    Raises:
        InputError: the recipe has a text or weights of its own, stages, no number of steps, or no masked tokens to
            predict, or it is compiled.
    """
    command = [*flags(device_options()), *with_recipe([recipe]), *flags({"output_dir": "unused"})]
    model_args, data_args, training_args = parse(
        command, ModelArguments, PretrainingDataArguments, PretrainingArguments
    )
    for name, value in (
        ("model_name_or_path", model_args.model_name_or_path),
        ("dataset_name", data_args.dataset_name),
        ("validation_file", data_args.validation_file),
    ):
        if value is not None:
            raise InputError(f"{recipe}: {name}: all begin with random weights, on the same text; leave it out.")
    if data_args.objective == "clm":
        raise InputError(f"{recipe}: objective clm predicts no masked tokens; give mlm+nsp or mlm.")
    if training_args.stages:
        raise InputError(f"{recipe}: stages: their steps cannot be stretched over the time; give a single shape.")
    if training_args.torch_compile:
        raise InputError(f"{recipe}: torch_compile: padding is computed, and would not be counted; leave it out.")
    if training_args.max_steps < 1:
        raise InputError(f"{recipe}: give max_steps; its learning rate's schedule is stretched over the time.")
    config = load_config(model_args)
    config.vocab_size = len(tokenizer)
    return training_args.max_steps, parameters(MODELS[data_args.objective], config)


class EpochAfterEpoch(Dataset):
    """New pairs and masks in each pass, as recipes have them; a plain Trainer asks for those of epoch 0 each time."""

    def __init__(self, examples: Examples):
        self.examples, self.taken = examples, 0

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> dict:
        epoch, self.taken = self.taken // len(self), self.taken + 1
        return self.examples[epoch * len(self) + index]


def train_stock(pipe: Connection, stock: Stock, folder: Path, seed: int, seconds: float, held_out: list[Batch]):
    """With what anybody has: a plain Trainer, padding to a batch's longest row, eager attention where it is faster."""
    set_seed(seed)
    tokenizer, examples, _ = bert_examples(seed)
    model = load_model(AutoModelForPreTraining, ModelArguments(), stock.config(tokenizer), tokenizer)
    trainer = Trainer(
        model=model,
        args=stock.arguments(folder, seed),
        train_dataset=EpochAfterEpoch(examples),
        data_collator=PretrainingCollator(tokenizer.pad_token_id),
        processing_class=tokenizer,
        callbacks=[Yardstick(pipe, held_out, seconds, MANY)],
    )
    trainer.train()
    trainer.save_model()


def train_recipe(pipe: Connection, command: list[str], seconds: float, steps: int, held_out: list[Batch]):
    run_pretraining(command, callbacks=[Yardstick(pipe, held_out, seconds, steps)])


def side_of(side: dict, folder: Path, held_out: list[Batch]) -> Side:
    seconds, settings, log = 60 * side["minutes"], side["settings"], folder.with_name(f"{folder.name}.log")
    if side["stock"]:
        return Side(train_stock, log, Stock(**settings), folder, side["seed"], seconds, held_out)
    return Side(train_recipe, log, settings["command"], seconds, settings["steps"], held_out)
