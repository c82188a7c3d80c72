"""Texts and fine-tuning data for a study."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fixedbert.support.errors import InputError
from fixedbert.tasks.questions import load_squad
from fixedbert.tasks.texts import load_task

from .studies import TASKS, Study

SQUAD_FILES = {"train_file": "train-v1.1.json", "validation_file": "dev-v1.1.json"}


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
        Reads the fine-tuning data, so that errors appear before hours of pretraining.

        Raises:
            InputError: If the study needs texts and there are none, or if data is missing or invalid.
        """
        on_text = any(study.objective_of(name) not in TASKS for name in study.series)
        if on_text and not (self.train_file or self.dataset_name):
            raise InputError(f"study {study.name}: no corpus: set `train_file` or `dataset_name`.")
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
