"""
Pretrain a FixedHeadBert: masked-LM with next-sentence prediction (BERT, the paper), masked-LM alone, or causal LM.

    python run_pretraining.py recipes/sample.yaml
    python run_pretraining.py --config_name mini --train_file corpus/ --do_train --do_eval --output_dir runs/mini
    accelerate launch --num_processes 4 run_pretraining.py recipe.yaml

docs/pretraining.md says how to name a corpus, how a run is spread over many devices, and what it costs.
"""

import sys

import fixedbert_start

if __name__ == "__main__":
    fixedbert_start.leave_quietly()

from accelerate import PartialState
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForPreTraining, set_seed
from transformers.trainer_callback import ProgressCallback

import fixedbert  # noqa: F401  registers the model
from fixedbert.data.collator import PretrainingCollator
from fixedbert.data.masking import tokens_inside_words
from fixedbert.errors import InputError, exit_on_input_error
from fixedbert.training.arguments import ModelArguments, check_length, load_config, load_model, parse, with_recipe
from fixedbert.training.memory import keep_freed_memory
from fixedbert.training.output import check_same_data, output_directory
from fixedbert.training.pretraining import PretrainingArguments, PretrainingTrainer
from fixedbert.training.pretraining_data import DataArguments, make_examples, tell
from fixedbert.training.progress import ProgressLine
from fixedbert.training.reporting import publish, report, train
from fixedbert.training.summary import write_summary

MODELS = {"mlm+nsp": AutoModelForPreTraining, "mlm": AutoModelForMaskedLM, "clm": AutoModelForCausalLM}


def main(argv: list[str] | None = None):
    command = with_recipe(sys.argv[1:] if argv is None else argv)
    model_args, data_args, training_args = parse(command, ModelArguments, DataArguments, PretrainingArguments)
    if not (training_args.do_train or training_args.do_eval):
        raise InputError("nothing to do: give --do_train, --do_eval or both.")
    objective = data_args.objective
    config = load_config(model_args, is_decoder=objective == "clm")
    check_length(data_args.max_seq_length, config)
    if data_args.separate_documents and config.model_type != "fixed_head_bert":
        raise InputError(f"--separate_documents: a model of the type {config.model_type} cannot keep documents apart.")
    training_args.reach_total_train_batch_size()
    set_seed(training_args.seed)
    keep_freed_memory(training_args.device)
    training_args.dataloader_pin_memory &= training_args.device.type != "cpu"

    with output_directory(training_args, command) as checkpoint:
        tokenizer, examples, held_out, corpus = make_examples(model_args, data_args, training_args, config, checkpoint)
        check_same_data(training_args.output_dir, corpus["fingerprint"])
        tell(corpus)
        model = load_model(MODELS[objective], model_args, config, tokenizer, training_args.do_train)
        model.sparse_prediction = True  # the same loss for a fraction of the work; stock BERT takes no notice
        parameters = {
            "all": model.num_parameters(),
            "besides embeddings": model.num_parameters(exclude_embeddings=True),
        }
        PartialState().print(
            f"{parameters['all']:,} parameters, {parameters['besides embeddings']:,} of them besides the embeddings"
        )
        trainer = PretrainingTrainer(
            model=model,
            args=training_args,
            objective=objective,
            inside_word=tokens_inside_words(tokenizer) if objective == "clm" else None,
            train_dataset=examples,
            eval_dataset=held_out,
            data_collator=PretrainingCollator(tokenizer.pad_token_id),
            processing_class=tokenizer,
        )
        if not training_args.disable_tqdm:
            trainer.remove_callback(ProgressCallback)
            trainer.add_callback(ProgressLine)
        if training_args.do_train:
            train(trainer, checkpoint)
        if training_args.do_eval:
            report(trainer, "eval", trainer.evaluate())
        if trainer.is_world_process_zero():
            write_summary(trainer, corpus, parameters, command)
        if training_args.do_train:
            trainer.create_model_card()
    publish(trainer)


if __name__ == "__main__":
    exit_on_input_error(main)
