"""Training and evaluation with Trainer, with everything written down."""

from transformers import Trainer


def train(trainer: Trainer, checkpoint: str | None):
    """Train, from `checkpoint` on if there is one; save weights, tokenizer, log and metrics."""
    result = trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model()
    trainer.save_state()
    report(trainer, "train", result.metrics)


def report(trainer: Trainer, split: str, metrics: dict[str, float]):
    """Print metrics and put them into all_results.json."""
    trainer.log_metrics(split, metrics)
    trainer.save_metrics(split, metrics)
