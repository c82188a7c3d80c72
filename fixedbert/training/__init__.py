"""What the scripts share: arguments, output directories, and the Trainer of pretraining."""
