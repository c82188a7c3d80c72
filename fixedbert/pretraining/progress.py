"""The progress of pretraining, in one line."""

from tqdm.auto import tqdm
from transformers.trainer_callback import ProgressCallback


class ProgressLine(ProgressCallback):
    """One line with loss, accuracy of the predicted tokens, real tokens per second, fill ratio and time left."""

    def on_train_begin(self, args, state, control, **kwargs):
        self.current_step = state.global_step
        if state.is_world_process_zero:
            # The steps of an earlier stage or call took none of this bar's time.
            bar = tqdm(total=state.max_steps, initial=state.global_step, dynamic_ncols=True)
            self.training_bar = bar  # type: ignore[assignment]  # declared as None

    def on_log(self, args, state, control, logs=None, **kwargs):
        if self.training_bar is None:
            return
        if "loss" in logs and "fill_ratio" in logs:
            accuracy = next(value for name, value in logs.items() if name.endswith("_accuracy"))
            self.training_bar.set_postfix_str(
                f"loss {logs['loss']:.3f}, accuracy {accuracy:.1%}, {logs['tokens_per_second']:,.0f} tokens/s, "
                f"fill {logs['fill_ratio']:.0%}",
                refresh=False,  # with the next step
            )
        elif any(name.startswith("eval_") for name in logs):
            names = ("loss", "perplexity", "accuracy")
            shown = {name: value for name, value in logs.items() if name.endswith(names)}
            line = ", ".join(f"{name.removeprefix('eval_')} {value:.4g}" for name, value in shown.items())
            self.training_bar.write(f"step {state.global_step:,}, held out: {line}")
