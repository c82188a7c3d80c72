"""
Pretrains a BERT: masked LM with next-sentence prediction (as in BERT), masked LM only, or causal LM.

    python run_pretraining.py recipes/sample.yaml
    python run_pretraining.py --config_name mini --train_file corpus/ --do_train --do_eval --output_dir runs/mini
    accelerate launch --num_processes 4 run_pretraining.py recipe.yaml

See docs/pretraining.md for corpus formats, training on many devices, and costs.
"""

import fixedbert_cli

if __name__ == "__main__":
    fixedbert_cli.limit_openmp_spinning()

from fixedbert.pretraining.pretrain import main
from fixedbert.support.errors import exit_on_input_error

if __name__ == "__main__":
    exit_on_input_error(main)
