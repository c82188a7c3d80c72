"""
Fine-tunes, evaluates and predicts on SQuAD, or on other questions whose answers are spans of a text.

    python run_squad.py --model_name_or_path runs/mini --train_file train-v1.1.json --validation_file dev-v1.1.json \
        --do_train --do_eval --output_dir runs/mini-squad
    python run_squad.py --model_name_or_path runs/mini --dataset_name rajpurkar/squad_v2 --version_2_with_negative \
        --null_score_diff_threshold best --do_train --do_eval --output_dir runs/mini-squad2
    accelerate launch --num_processes 4 run_squad.py recipe.yaml

docs/fine_tuning.md describes the arguments and the differences from transformers' script.
"""

import fixedbert_cli


def main(argv: list[str]):
    """Fine-tunes a model with command-line flags and prints the results."""
    fixedbert_cli.main(["squad", *argv])


if __name__ == "__main__":
    fixedbert_cli.entry_point("squad")
