"""Fine-tuning on GLUE, SQuAD or the user's own data, with sweeps over seeds and hyperparameters."""
