"""Pretraining: masked LM with next-sentence prediction (as in BERT), masked LM only, or causal LM."""

import gc
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForPreTraining, TrainerCallback, set_seed

from ..conversion.growing import to_fixed_head_bert
from ..data.collator import PretrainingCollator
from ..option_values import make
from ..publishing.model_card import versions
from ..support.errors import InputError
from ..support.files import to_json
from ..support.machine import hardware_name
from ..training.arguments import with_recipe
from ..training.interruption import train
from ..training.models import load_config, load_model
from ..training.output import (
    Trained,
    already_complete,
    check_same_command,
    check_same_data,
    is_complete_checkpoint,
    output_directory,
    read_result,
    record_metrics,
)
from ..training.plots import draw_pretraining
from ..training.speed import enable_unpadding, keep_freed_memory
from .arguments import ARGUMENTS, corpora_of
from .examples import make_examples, make_tokenizer
from .stages import Stage, plan_stages
from .trainer import PretrainingTrainer

MODELS = {"mlm+nsp": AutoModelForPreTraining, "mlm": AutoModelForMaskedLM, "clm": AutoModelForCausalLM}


def pretrain(
    recipe: str | Path | None = None, *, callbacks: Sequence[TrainerCallback] = (), **arguments: Any
) -> Trained:
    """
    Pretrains a model on a corpus and saves weights, metrics and a plot to the output directory.

    Args:
        recipe: YAML file with arguments, such as recipes/mini.yaml. Keyword arguments take precedence.
        callbacks: Additional callbacks for Trainer, used in every stage.
        arguments: The flags of run_pretraining.py, listed by `fixedbert pretrain --help`. The most common ones are
            `train_file`, `do_train=True`, `do_eval=True`, `output_dir`, `max_steps` or `num_train_epochs`,
            `learning_rate`, `per_device_train_batch_size` and `logging_steps`. The sizes of a new model are
            `hidden_size`, `num_hidden_layers`, `num_attention_heads`, `attention_head_size` and `intermediate_size`.

    Returns:
        The output directory and the metrics.

    Raises:
        InputError: If an argument or file is invalid.
        KeyboardInterrupt: After Ctrl-C. The run first saves a checkpoint, from which the same call resumes.
    """
    arguments = with_recipe(recipe, arguments, *ARGUMENTS)
    *earlier, last = plan_stages(arguments)
    if already_complete(last.arguments.get("output_dir"), arguments):
        return read_result(Path(last.arguments["output_dir"]))
    for stage in earlier:
        directory = Path(stage.arguments["output_dir"])
        if is_complete_checkpoint(directory):
            check_same_command(directory, arguments)
        else:
            run_stage(stage, arguments, callbacks)
            gc.collect()  # frees the trainer and its callbacks, which refer to each other
    return run_stage(last, arguments, callbacks)


def run_stage(stage: Stage, arguments: dict[str, Any], callbacks: Sequence[TrainerCallback]) -> Trained:
    """
    Trains one stage in its own output directory.

    Args:
        arguments: Arguments of the command, which are saved in command.json.
    """
    model_args, data_args, training_args = make(stage.arguments, *ARGUMENTS)
    if not (training_args.do_train or training_args.do_eval):
        raise InputError("nothing to do: set `do_train`, `do_eval` or both.")
    corpora_of(data_args, model_args)  # raises InputError before the model is loaded
    set_seed(training_args.seed)
    keep_freed_memory(training_args.device)

    with output_directory(training_args, arguments) as checkpoint:
        config = load_config(model_args, is_decoder=data_args.objective == "clm")
        tokenizer = make_tokenizer(model_args, data_args, config, checkpoint)
        model = load_model(MODELS[data_args.objective], model_args, config, tokenizer, training_args.do_train)
        if stage.growth:
            saved_dtype = vars(model).get("saved_dtype")
            model = to_fixed_head_bert(model, **stage.growth, seed=training_args.seed)
            vars(model)["saved_dtype"] = saved_dtype
        examples, held_out, corpus = make_examples(model_args, data_args, training_args, tokenizer)
        check_same_data(training_args.directory, corpus["fingerprint"])
        enable_unpadding(model)
        vars(model)["sparse_prediction"] = True  # without changing the configuration that is saved
        PartialState().print(
            f"{corpus['training']['examples']:,} examples for training, {corpus['held_out']['examples']:,} held out; "
            f"{model.num_parameters(exclude_embeddings=True):,} parameters excluding embeddings"
        )
        trainer = PretrainingTrainer(
            model=model,
            args=training_args,
            callbacks=[*callbacks],
            objective=data_args.objective,
            first_step=stage.first_step,
            schedule_steps=stage.schedule_steps,
            train_dataset=examples,
            eval_dataset=held_out,
            data_collator=PretrainingCollator(tokenizer.pad_token_id),
            processing_class=tokenizer,
        )
        if training_args.do_train:
            train(trainer, checkpoint)
        if training_args.do_eval:
            record_metrics(trainer, "eval", trainer.evaluate())
        if trainer.is_world_process_zero():
            write_summary(trainer, corpus)
        if training_args.do_train:
            trainer.create_model_card()
    return read_result(training_args.directory)


def write_summary(trainer: PretrainingTrainer, corpus: dict):
    """Writes summary.json to the output directory, and pretraining.png if the run included training."""
    output, args, model = trainer.args.directory, trainer.args, trainer.model
    counts = {"all": model.num_parameters(), "besides embeddings": model.num_parameters(exclude_embeddings=True)}
    batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    summary = {
        "objective": trainer.objective,
        "parameters": counts,
        "corpus": corpus,
        "steps": trainer.state.global_step,
        "examples in a step": batch,
        "real tokens seen": trainer.state.num_input_tokens_seen,
        "results": json.loads((output / "all_results.json").read_text()),
        "hardware": hardware_name(),
        "processes": args.world_size,
        "versions": versions(),
    }
    (output / "summary.json").write_text(to_json(summary, indent=1, default=str) + "\n")
    if args.do_train:
        title = f"{trainer.objective}, {counts['all'] / 1e6:.1f} M parameters, {batch} examples per step"
        draw_pretraining(trainer.state.log_history, trainer.objective[:3], title, output / "pretraining.png")
