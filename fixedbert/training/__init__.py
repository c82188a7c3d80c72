"""What pretraining and fine-tuning share: arguments, output directories, the Trainer."""
