"""Trains and compares models of many shapes under the same conditions: `python -m experiments.study`."""

from argparse import ArgumentParser

import torch
from accelerate import PartialState

from experiments.study import DataSources, load_study, report_markdown, report_runs, run_study, study_cost_text
from fixedbert.support.errors import InputError, exit_on_input_error
from fixedbert_cli import limit_openmp_spinning

OPTIONS = {  # options that take one value
    "output_dir": "directory for the report and the records of all runs",
    "scale": "lesson, tiny, hour or day for two CPU cores, small for one GPU, paper for many GPUs",
    "share": "shapes to train on this machine: 1/2 trains the first of every two shapes, 2/2 the second",
    "tokenizer_name": "directory or Hub id of a tokenizer, or a vocab.txt file; default: train a new tokenizer",
    "store_dir": "directory for tokenized corpora",
    "glue_dir": "directory with GLUE tasks, for MNLI; default: download from the Hub",
    "squad_dir": "directory with train-v1.1.json and dev-v1.1.json; default: download from the Hub",
}
LISTS = {  # options that take several values, as in run_pretraining.py
    "train_file": "files with training texts",
    "validation_file": "files with held-out texts",
    "dataset_name": "datasets on the Hub",
    "dataset_config_name": "configurations of the datasets on the Hub",
    "document_boundary": "document boundary of each corpus, as for fixedbert pretrain",
}


def main(argv: list[str] | None = None):
    parser = ArgumentParser(prog="python -m experiments.study", description=__doc__, allow_abbrev=False)
    parser.add_argument("name", help="a study such as `heads`, a YAML file, or `report` followed by record files")
    parser.add_argument("files", nargs="*", help="for `report`: runs.jsonl files from one study on several machines")
    for name, text in OPTIONS.items():
        parser.add_argument(f"--{name}", help=text)
    for name, text in LISTS.items():
        parser.add_argument(f"--{name}", nargs="+", help=text)
    parser.add_argument("--processes", type=int, help="number of concurrent runs; default: one per GPU or CPU core")
    parser.add_argument("--dry_run", action="store_true", help="only print the shapes and the cost of all runs")
    parser.add_argument(
        "--take_over_output_dir", action="store_true", help="continue a study that crashed on a different machine"
    )
    study(**vars(parser.parse_args(argv)))


def study(
    name: str,
    files: list[str],
    output_dir: str | None,
    scale: str | None,
    share: str | None,
    processes: int | None,
    dry_run: bool,
    take_over_output_dir: bool,
    **sources,
):
    share = share or "1/1"
    if name != "report" and files:
        raise InputError(f"{files[0]}: only 'report' takes files; run one study at a time.")
    selected = None if name == "report" else load_study(name, scale)
    if selected and dry_run:
        return print(study_cost_text(selected, share))
    if output_dir is None:
        raise InputError("is required: the directory for the report and the records of all runs.", "output_dir")
    if selected is None:
        return print(report_markdown(report_runs(files, output_dir)))
    state = PartialState(cpu=not torch.accelerator.is_available())
    state.print(study_cost_text(selected, share), flush=True)
    report = run_study(selected, output_dir, DataSources(**sources), processes, share, take_over_output_dir)
    state.print(report_markdown(report))


if __name__ == "__main__":
    limit_openmp_spinning()  # in the worker processes
    exit_on_input_error(main)
