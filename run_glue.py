"""
Fine-tunes, evaluates and predicts on texts or text pairs from GLUE, a dataset on the Hub or your own files.

    python run_glue.py --model_name_or_path runs/mini --task_name mnli --data_dir glue/ --do_train --do_eval \
        --output_dir runs/mini-mnli
    python run_glue.py --model_name_or_path runs/mini --task_name all --seeds 1 2 3 --do_train --do_eval \
        --output_dir runs/mini-glue
    accelerate launch --num_processes 4 run_glue.py recipe.yaml

docs/fine_tuning.md describes the arguments and the differences from transformers' script.
"""

import fixedbert_cli


def main(argv: list[str]):
    """Fine-tunes a model with command-line flags and prints the results."""
    fixedbert_cli.main(["glue", *argv])


if __name__ == "__main__":
    fixedbert_cli.entry_point("glue")
