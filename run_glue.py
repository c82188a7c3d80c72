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

if __name__ == "__main__":
    fixedbert_cli.limit_openmp_spinning()

from fixedbert.fine_tuning.glue import main
from fixedbert.support.errors import exit_on_input_error

if __name__ == "__main__":
    exit_on_input_error(main)
