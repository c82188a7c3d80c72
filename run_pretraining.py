"""
Pretrain a FixedHeadBert: masked-LM with next-sentence prediction (BERT, the paper), masked-LM alone, or causal LM.

    python run_pretraining.py recipes/sample.yaml
    python run_pretraining.py --config_name mini --train_file corpus/ --do_train --do_eval --output_dir runs/mini
    accelerate launch --num_processes 4 run_pretraining.py recipe.yaml

docs/pretraining.md says how to name a corpus, how a run is spread over many devices, and what it costs.
"""

import fixedbert_cli

if __name__ == "__main__":
    fixedbert_cli.limit_openmp_spinning()

from fixedbert.pretraining.pretrain import main
from fixedbert.support.errors import exit_on_input_error

if __name__ == "__main__":
    exit_on_input_error(main)
