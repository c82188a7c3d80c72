"""Texts and fine-tuning data for a study, and the validation of all arguments before the first run starts."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fixedbert.fine_tuning.fine_tune import FineTuningTask
from fixedbert.fine_tuning.glue import TextClassification
from fixedbert.fine_tuning.squad import QuestionAnswering
from fixedbert.fine_tuning.squad_questions import load_squad
from fixedbert.fine_tuning.texts import load_task
from fixedbert.pretraining.arguments import ARGUMENTS
from fixedbert.support.errors import InputError, error_context
from fixedbert.training.arguments import check_types

from .studies import Study

SQUAD_FILES = {"train_file": "train-v1.1.json", "validation_file": "dev-v1.1.json"}
FINE_TUNED: dict[str, type[FineTuningTask]] = {"mnli": TextClassification, "squad": QuestionAnswering}


@dataclass(frozen=True)
class DataSources:
    """
    The texts for a study, as arguments of run_pretraining.py, and directories with fine-tuning data.

    Args:
        glue_dir: Directory with the files of the GLUE download. By default, MNLI comes from the Hub.
        squad_dir: Directory with train-v1.1.json and dev-v1.1.json. By default, SQuAD comes from the Hub.
    """

    train_file: list[str] | None = None
    validation_file: list[str] | None = None
    dataset_name: list[str] | None = None
    dataset_config_name: list[str] | None = None
    document_boundary: list[str] | None = None
    tokenizer_name: str | None = None
    store_dir: str | None = None
    glue_dir: str | None = None
    squad_dir: str | None = None

    def check(self, study: Study):
        """
        Checks the arguments of all scripts, and reads the fine-tuning data.

        Raises:
            InputError: If an argument does not exist or has an invalid type, or if data is missing or invalid.
        """
        stages = study.stages_on_text()
        if stages and not (self.train_file or self.dataset_name):
            raise InputError(f"study {study.name}: no corpus: set `train_file` or `dataset_name`.")
        for place, stage in stages:
            with error_context(f"study {study.name}, {place}"):
                check_types(stage, *ARGUMENTS)
        for task, arguments in study.fine_tuning.items():
            given = {name: value for name, value in arguments.items() if name != "train_batch_size"}
            with error_context(f"study {study.name}, fine_tuning: {task}"):
                check_types(given, *FINE_TUNED[task].arguments)
        if "squad" in study.fine_tuning and self.squad_dir:
            for name in SQUAD_FILES.values():
                load_squad(str(Path(self.squad_dir, name)))
        if "mnli" in study.fine_tuning and self.glue_dir:
            load_task("mnli", self.glue_dir)

    def settings(self) -> dict[str, str | list[str]]:
        """Returns the pretraining arguments that determine the texts."""
        return {name: value for name, value in asdict(self).items() if value is not None and not name.endswith("_dir")}

    def fine_tuning_data(self, task: str) -> dict[str, Any]:
        """Returns the arguments that specify the data for a fine-tuning task."""
        if task == "mnli":
            return {"task_name": ["mnli"]} | ({"data_dir": self.glue_dir} if self.glue_dir else {})
        if self.squad_dir is None:
            return {"dataset_name": "rajpurkar/squad"}
        return {name: str(Path(self.squad_dir, file)) for name, file in SQUAD_FILES.items()}
