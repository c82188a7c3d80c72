"""Pretrain: masked-LM with next-sentence prediction (BERT, the paper), masked-LM alone, or causal LM."""

import gc
import sys
from collections.abc import Sequence
from dataclasses import replace
from shutil import rmtree

from accelerate import PartialState
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForPreTraining, TrainerCallback, set_seed
from transformers.trainer_callback import ProgressCallback
from transformers.trainer_pt_utils import AcceleratorConfig

from ..data.masking import tokens_inside_words
from ..errors import InputError
from ..training.arguments import ModelArguments, keep_token, parse, with_recipe
from ..training.interruption import train
from ..training.loading import load_config, load_model
from ..training.output import check_same_data, output_directory
from ..training.pretraining import PretrainingArguments
from ..training.pretraining_data import (
    PretrainingDataArguments,
    make_collator,
    make_examples,
    print_corpus,
    print_pairs,
)
from ..training.progress import ProgressLine
from ..training.results import publish, record_metrics, write_summary
from ..training.speed import keep_freed_memory, predict_labelled_tokens_only, skip_padding
from ..training.stages import (
    BEGIN,
    StageTrainer,
    Throughput,
    begin_stage,
    data_leads,
    place_of,
    stage_text,
    stages_of,
    step_reached,
)

MODELS = {"mlm+nsp": AutoModelForPreTraining, "mlm": AutoModelForMaskedLM, "clm": AutoModelForCausalLM}


def main(argv: list[str] | None = None, prog: str | None = None, callbacks: Sequence[TrainerCallback] = ()):
    """
    From a corpus to weights, a picture and a summary in the output directory.

    Args:
        argv: flags, perhaps after a recipe; by default sys.argv's.
        prog: what the help calls the program.
        callbacks: of Trainer, besides those that it has here anyway. One that stops the training in
            on_step_end ends its stage; such a run cannot be continued after an interruption.
    """
    command = with_recipe(sys.argv[1:] if argv is None else argv)
    model_args, data_args, training_args = parse(
        command, ModelArguments, PretrainingDataArguments, PretrainingArguments, prog=prog
    )
    if not (training_args.do_train or training_args.do_eval):
        raise InputError("nothing to do: give --do_train, --do_eval or both.")
    keep_token(training_args)
    objective = data_args.objective
    config = load_config(model_args, is_decoder=objective == "clm")
    if data_args.separate_documents and config.model_type != "fixed_head_bert":
        raise InputError(f"--separate_documents: a model of the type {config.model_type} cannot keep documents apart.")
    stages = stages_of(config, data_args.max_seq_length, training_args)
    data_args.max_seq_length = stages[-1].max_seq_length  # of held-out examples, from the first stage on
    set_seed(training_args.seed)
    keep_freed_memory(training_args.device)
    training_args.dataloader_pin_memory &= training_args.device.type != "cpu"
    assert isinstance(training_args.accelerator_config, AcceleratorConfig)  # TrainingArguments makes one
    training_args.accelerator_config.non_blocking |= training_args.dataloader_pin_memory

    with output_directory(training_args, command) as checkpoint:
        tokenizer, examples, held_out, corpus = make_examples(model_args, data_args, training_args, config, checkpoint)
        check_same_data(training_args.folder, corpus["fingerprint"])
        print_corpus(corpus)
        rows = [examples.of_length(stage.max_seq_length) for stage in stages]
        print_pairs(rows)
        devices = training_args.world_size * max(training_args.n_gpu, 1)
        throughput = Throughput()
        for place in range(place_of(checkpoint, stages), len(stages)):
            stage = stages[place]
            training_args.per_device_train_batch_size, training_args.gradient_accumulation_steps = stage.batch
            if checkpoint and place and step_reached(checkpoint) == stages[place - 1].end:
                checkpoint = begin_stage(checkpoint, stage, MODELS[objective], training_args)
            if place and model_args.model_name_or_path:  # which has another shape than this stage and its checkpoint
                model_args = replace(model_args, model_name_or_path=checkpoint)
            model = load_model(MODELS[objective], model_args, stage.config, tokenizer, training_args.do_train)
            skip_padding(model)
            predict_labelled_tokens_only(model)
            parameters = {
                "all": model.num_parameters(),
                "besides embeddings": model.num_parameters(exclude_embeddings=True),
            }
            PartialState().print(
                f"{stage_text(stages, place)}{parameters['all']:,} parameters, "
                f"{parameters['besides embeddings']:,} of them besides the embeddings"
            )
            trainer = StageTrainer(
                model=model,
                args=training_args,
                callbacks=callbacks,
                stages=stages[place:],
                throughput=throughput,
                data_lead=data_leads(stages, [len(of_stage) for of_stage in rows], devices)[place],
                objective=objective,
                inside_word=tokens_inside_words(tokenizer) if objective == "clm" else None,
                train_dataset=rows[place],
                eval_dataset=held_out,
                data_collator=make_collator(tokenizer, model, data_args, training_args),
                processing_class=tokenizer,
            )
            if not training_args.disable_tqdm:
                trainer.remove_callback(ProgressCallback)
                trainer.add_callback(ProgressLine)
            last = place == len(stages) - 1
            if training_args.do_train:
                train(trainer, checkpoint, last)
                checkpoint = str(training_args.folder / f"checkpoint-{trainer.state.global_step}")
                if trainer.is_world_process_zero():
                    rmtree(training_args.folder / BEGIN, ignore_errors=True)
                stages[place] = replace(stage, end=trainer.state.global_step)  # a callback can end it before its step
            if not last:
                del model, trainer  # before there is a larger one
                gc.collect()  # a trainer and its callbacks refer to each other
        if training_args.do_eval:
            record_metrics(trainer, "eval", trainer.evaluate())
        if trainer.is_world_process_zero():
            write_summary(trainer, corpus, parameters, [stage.examples_of_step(devices) for stage in stages], command)
        if training_args.do_train:
            trainer.create_model_card()
    publish(trainer)
