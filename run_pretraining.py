"""
Pretrains a BERT: masked LM with next-sentence prediction (as in BERT), masked LM only, or causal LM.

    python run_pretraining.py recipes/mini.yaml --train_file corpus/
    python run_pretraining.py --config_name mini --train_file corpus/ --do_train --do_eval --output_dir runs/mini
    accelerate launch --num_processes 4 run_pretraining.py recipe.yaml

See docs/pretraining.md for corpus formats, training on many devices, and costs.
"""

import fixedbert_cli


def main(argv: list[str]):
    """Pretrains a model with command-line flags and prints the results."""
    fixedbert_cli.main(["pretrain", *argv])


if __name__ == "__main__":
    fixedbert_cli.entry_point("pretrain")
