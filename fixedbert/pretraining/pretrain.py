"""Pretrain: masked-LM with next-sentence prediction (BERT, the paper), masked-LM alone, or causal LM."""

import gc
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from shutil import rmtree
from typing import Any

from accelerate import PartialState
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    PreTrainedModel,
    TrainerCallback,
    set_seed,
)
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK
from transformers.trainer_pt_utils import AcceleratorConfig

from ..conversion.convert import describe_shape
from ..conversion.families import FAMILIES
from ..data.examples import tokens_inside_words
from ..publishing.model_card import hardware_name, versions
from ..support.errors import InputError
from ..support.files import to_json
from ..training.arguments import make_arguments, read_arguments, with_recipe
from ..training.interruption import train
from ..training.loading import load_config, load_model
from ..training.output import check_same_data, output_directory, without_secrets
from ..training.results import Trained, publish, record_metrics, trained
from ..training.speed import enable_sparse_prediction, enable_unpadding, keep_freed_memory
from .arguments import ARGUMENTS
from .examples import (
    make_collator,
    make_examples,
    print_corpus,
    print_pairs,
)
from .picture import draw_pretraining
from .progress import ProgressLine
from .stages import (
    BEGIN,
    Stage,
    StageTrainer,
    Throughput,
    begin_stage,
    data_leads,
    place_of,
    stage_text,
    stages_of,
    step_reached,
)
from .trainer import PretrainingTrainer

MODELS = {"mlm+nsp": AutoModelForPreTraining, "mlm": AutoModelForMaskedLM, "clm": AutoModelForCausalLM}


def main(argv: list[str] | None = None, prog: str | None = None, callbacks: Sequence[TrainerCallback] = ()):
    """What `pretrain` does. `argv` are flags, as in `read_arguments`."""
    found = pretrain(callbacks=callbacks, **read_arguments(argv, *ARGUMENTS, prog=prog))
    PartialState().print(found)


def pretrain(recipe: str | Path | None = None, *, callbacks: Sequence[TrainerCallback] = (), **given: Any) -> Trained:
    """
    Pretrain a model: from a corpus to weights, a picture and a summary in the output directory.

    Args:
        recipe: a YAML file of arguments, such as recipes/mini.yaml; those of the call win.
        callbacks: of Trainer, besides those that it has here anyway. One that stops the training in
            on_step_end ends its stage; such a run cannot be continued after an interruption.
        given: the flags of run_pretraining.py. `fixedbert pretrain --help` lists them all; the usual ones are
            `train_file`, `do_train=True`, `do_eval=True`, `output_dir`, `max_steps` or `num_train_epochs`,
            `learning_rate`, `per_device_train_batch_size`, `logging_steps`, and for the shape of a new model
            `hidden_size`, `num_hidden_layers`, `num_attention_heads`, `attention_head_size`, `intermediate_size`.

    Returns:
        The output directory, with the metrics.

    Raises:
        InputError: arguments that contradict each other, or input that cannot be used.
        KeyboardInterrupt: Ctrl-C, after a checkpoint; the message says from where the same call goes on.
    """
    given = with_recipe(recipe, given)
    model_args, data_args, training_args = make_arguments(given, *ARGUMENTS)
    if not (training_args.do_train or training_args.do_eval):
        raise InputError("nothing to do: give `do_train`, `do_eval` or both.")
    config = load_config(model_args, is_decoder=data_args.objective == "clm")
    if data_args.separate_documents and config.model_type != "fixed_head_bert":
        raise InputError(f"`separate_documents`: a model of the type {config.model_type} cannot keep documents apart.")
    stages = stages_of(config, data_args.max_seq_length, training_args)
    data_args.max_seq_length = stages[-1].max_seq_length  # of held-out examples, from the first stage on
    set_seed(training_args.seed)
    keep_freed_memory(training_args.device)
    training_args.dataloader_pin_memory &= training_args.device.type != "cpu"
    assert isinstance(training_args.accelerator_config, AcceleratorConfig)  # TrainingArguments makes one
    training_args.accelerator_config.non_blocking |= training_args.dataloader_pin_memory

    with output_directory(training_args, given) as checkpoint:
        data = make_examples(model_args, data_args, training_args, config, checkpoint)
        corpus = data[-1]
        check_same_data(training_args.directory, corpus["fingerprint"])
        print_corpus(corpus)
        run = StagedTraining(model_args, data_args, training_args, stages, *data[:-1])
        print_pairs(run.rows)
        for place in range(place_of(checkpoint, stages), len(stages)):
            trainer = run.trainer(place, checkpoint, callbacks)
            if training_args.do_train:
                checkpoint = run.train(trainer, place)
            if place < len(stages) - 1:
                del trainer  # before there is a larger one
                gc.collect()  # a trainer and its callbacks refer to each other
        if training_args.do_eval:
            record_metrics(trainer, "eval", trainer.evaluate())
        if trainer.is_world_process_zero():
            sizes = [stage.examples_of_step(run.devices) for stage in stages]
            write_summary(trainer, corpus, parameter_counts(trainer.model), sizes, given)
        if training_args.do_train:
            trainer.create_model_card()
    publish(trainer)
    return trained(training_args.directory)


class StagedTraining:
    """
    A pretraining: a Trainer for each stage, which continues from the checkpoint of the one before.

    `rows` has the examples of each stage. `checkpoint` is where the trainer that was made last begins, if anywhere.
    """

    def __init__(self, model_args, data_args, training_args, stages: list[Stage], tokenizer, examples, held_out):
        self.model_args, self.data_args, self.training_args = model_args, data_args, training_args
        self.stages, self.tokenizer, self.held_out = stages, tokenizer, held_out
        self.rows = [examples.with_max_seq_length(stage.max_seq_length) for stage in stages]
        self.devices = training_args.world_size * max(training_args.n_gpu, 1)
        self.throughput = Throughput()
        self.checkpoint: str | None = None

    def trainer(self, place: int, checkpoint: str | None, callbacks: Sequence[TrainerCallback]) -> StageTrainer:
        """The trainer of the stage at `place`, which begins at `checkpoint`: that of the stage itself or before it."""
        stage, objective, arguments = self.stages[place], self.data_args.objective, self.training_args
        arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps = stage.batch
        if checkpoint and place and step_reached(checkpoint) == self.stages[place - 1].end:
            checkpoint = begin_stage(checkpoint, stage, MODELS[objective], arguments)
        if place and self.model_args.model_name_or_path:  # another shape than this stage and its checkpoint
            self.model_args = replace(self.model_args, model_name_or_path=checkpoint)
        self.checkpoint = checkpoint
        model = load_model(MODELS[objective], self.model_args, stage.config, self.tokenizer, arguments.do_train)
        enable_unpadding(model)
        enable_sparse_prediction(model)
        parameters = parameter_counts(model)
        shape = f"{describe_shape(model)}: " if model.config.model_type in FAMILIES else ""
        PartialState().print(
            f"{stage_text(self.stages, place)}{shape}{parameters['all']:,} parameters, "
            f"{parameters['besides embeddings']:,} of them besides the embeddings"
        )
        trainer = StageTrainer(
            model=model,
            args=arguments,
            callbacks=callbacks,
            stages=self.stages[place:],
            throughput=self.throughput,
            data_lead=data_leads(self.stages, [len(rows) for rows in self.rows], self.devices)[place],
            objective=objective,
            inside_word=tokens_inside_words(self.tokenizer) if objective == "clm" else None,
            train_dataset=self.rows[place],
            eval_dataset=self.held_out,
            data_collator=make_collator(self.tokenizer, model, self.data_args, arguments),
            processing_class=self.tokenizer,
        )
        if not arguments.disable_tqdm:
            trainer.remove_callback(DEFAULT_PROGRESS_CALLBACK)
            trainer.add_callback(ProgressLine)
        return trainer

    def train(self, trainer: StageTrainer, place: int) -> str:
        """Train a stage to its end, and return its last checkpoint."""
        folder = self.training_args.directory
        train(trainer, self.checkpoint, last=place == len(self.stages) - 1)
        if trainer.is_world_process_zero():
            rmtree(folder / BEGIN, ignore_errors=True)
        # A callback can end it before its step.
        self.stages[place] = replace(self.stages[place], end=trainer.state.global_step)
        return str(folder / f"checkpoint-{trainer.state.global_step}")


def parameter_counts(model: PreTrainedModel) -> dict[str, int]:
    return {"all": model.num_parameters(), "besides embeddings": model.num_parameters(exclude_embeddings=True)}


def write_summary(trainer: PretrainingTrainer, corpus: dict, parameters: dict, batches: list[int], given: dict):
    """
    Write summary.json and, after training, pretraining.png beside the model.

    Args:
        batches: examples in a step, of each stage.
    """
    output, args = trainer.args.directory, trainer.args
    summary = {
        "objective": trainer.objective,
        "config": trainer.model.config.to_diff_dict(),
        "parameters": parameters,
        "corpus": corpus,
        "steps": trainer.state.global_step,
        "examples in a step": batches[0] if len(set(batches)) == 1 else batches,
        "real tokens seen": trainer.state.num_input_tokens_seen,
        "results": json.loads((output / "all_results.json").read_text()),
        "arguments": without_secrets(given),
        "hardware": hardware_name(),
        "processes": args.world_size,
        "versions": versions(),
    }
    (output / "summary.json").write_text(to_json(summary, indent=1) + "\n")
    if args.do_train:
        size = " then ".join(str(batch) for batch, _ in groupby(batches))
        title = f"{trainer.objective}, {parameters['all'] / 1e6:.1f} M parameters, {size} examples a step"
        draw_pretraining(trainer.state.log_history, trainer.objective[:3], title, output / "pretraining.png")
