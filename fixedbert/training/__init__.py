"""Arguments, output directories and the Trainer for pretraining and fine-tuning."""
