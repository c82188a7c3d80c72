"""
Reduces the query and key size of trained language models, for comparison with models trained at the smaller sizes.

    python -m experiments.thin_keys thin-keys/runs.jsonl --train_file books/ --calibration_file novel.txt \\
        --output_dir reduced

Repeats the training of the study's models with queries and keys of size 32, at the learning rates in its records, and
then reduces the size with `fixedbert shrink`. Writes held-out perplexities by objective, size and seed to
reduced.json: right after the reduction, and after 10% more steps at a tenth of the learning rate.
"""

import argparse
import json
from functools import partial
from pathlib import Path

import fixedbert
from experiments.study.records import read_records
from experiments.study.run import flow_settings, pretrain
from experiments.study.shape_results import shapes_by_series
from experiments.study.sources import DataSources
from experiments.study.studies import Run, load_study

SIZES = (8, 16)
TRAINED_SIZE = 2  # index of size 32 in the series MLM and CLM
CALIBRATION_ROWS = 1500


def perplexity(run: Run, model: Path, sources: DataSources, output_dir: Path, **changes) -> float:
    """Evaluates a model in the same way as the runs of the study. Trains it first if `changes` require it."""
    stage = {name: value for name, value in run.pretraining[-1].items() if not name.startswith(("vocab", "tokenizer"))}
    settings = {"model_name_or_path": str(model), "objective": run.objective, "seed": run.seed, **stage}
    settings |= {**sources.settings(), **flow_settings(), "do_train": False, "output_dir": str(output_dir), **changes}
    return fixedbert.pretrain(**settings, store_dir=sources.store_dir).results["eval_perplexity"]


def reduce(run: Run, sources: DataSources, calibration_file: str, folder: Path) -> dict[str, dict[int, float]]:
    """Trains a model. Returns its perplexity by kind (reduced or retrained) and by the size of queries and keys."""
    trained, _ = pretrain(run, folder / "trained", sources)
    results: dict[str, dict[int, float]] = {"reduced": {}, "retrained": {}}
    results["reduced"][run.config.head_dim] = perplexity(run, trained, sources, folder / "trained-again")
    more = {
        "do_train": True,
        "max_steps": run.pretraining[-1]["max_steps"] // 10,
        "warmup_steps": 0,
        "learning_rate": run.learning_rate / 10,
    }
    for size in SIZES:
        model = folder / f"reduced-{size}"
        shrink = partial(
            fixedbert.shrink, trained, model, train_file=calibration_file, max_train_samples=CALIBRATION_ROWS
        )
        shrink(attention_head_size=size, value_head_size=run.config.value_head_sizes[0])
        results["reduced"][size] = perplexity(run, model, sources, folder / f"evaluated-{size}")
        results["retrained"][size] = perplexity(run, model, sources, folder / f"retrained-{size}", **more)
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", help="runs.jsonl of the study thin-keys")
    parser.add_argument("--train_file", nargs="+", required=True, help="the texts of the study")
    parser.add_argument("--calibration_file", required=True, help="text file with one calibration row per line")
    parser.add_argument("--store_dir", help="directory for tokenized corpora")
    parser.add_argument("--output_dir", type=Path, required=True, help="directory for the models and the record")
    args = parser.parse_args()
    study, sources = load_study("thin-keys", "hour"), DataSources(args.train_file, store_dir=args.store_dir)
    shapes = shapes_by_series(read_records([args.records]))
    record: dict = {}
    for objective in ("CLM", "MLM"):
        shape = next(shape for shape in shapes[objective] if shape["point"] == TRAINED_SIZE)
        for seed in study.seeds:
            run = study.run(objective, TRAINED_SIZE, shape["learning_rate"], seed)
            found = reduce(run, sources, args.calibration_file, args.output_dir / f"{objective}-{seed}")
            for kind, by_size in found.items():
                for size, value in by_size.items():
                    record.setdefault(objective, {}).setdefault(kind, {}).setdefault(size, {})[seed] = value
            (args.output_dir / "reduced.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
