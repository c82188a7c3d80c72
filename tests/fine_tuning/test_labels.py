"""Labels in the data get the model's ids by name, or the model gets a new head."""

import numpy as np
import pytest
from transformers import BertConfig, EvalPrediction

from fixedbert.fine_tuning.glue import GlueEvaluation
from fixedbert.fine_tuning.labels import align_labels, default_names, label_names, submitted_names
from fixedbert.support.errors import InputError

MNLI = ("entailment", "neutral", "contradiction")
FINE_TUNED = {"architectures": ["BertForSequenceClassification"]}


def config_with(*names, **fields):
    id2label = dict(enumerate(names))
    return BertConfig(id2label=id2label, label2id={name: number for number, name in id2label.items()}, **fields)


@pytest.mark.parametrize(
    "names, known, label_ids",
    [
        (["no", "yes"], ("YES", "perhaps", "NO"), {"no": 2, "yes": 0}),
        (["entailment", "not_entailment"], ("Not-Entailment", "ENTAILMENT"), {"entailment": 1, "not_entailment": 0}),
        (["entailment", "not_entailment"], ("not entailment", "Entailment"), {"entailment": 1, "not_entailment": 0}),
        (["-1", "1"], ("1", "-1"), {"-1": 1, "1": 0}),  # a sign is not a hyphen between words
        (["a", "A"], ("A", "a"), {"a": 1, "A": 0}),  # different labels, though similar
        (None, ("yes", "no"), {"yes": 0, "no": 1}),
    ],
)
def test_labels_are_matched_by_name(names, known, label_ids):
    """Guards: labels get the model's ids regardless of case and separators; head and label names are kept."""
    config = config_with(*known, **FINE_TUNED)
    assert align_labels(names, config, train=False) == (label_ids, False)
    assert default_names(config) == [*known] and config.problem_type == "single_label_classification"


def test_other_labels_need_a_new_head(capsys):
    """Guards: different labels need a new head, which is printed, or refused without training."""
    config = config_with(*MNLI)
    assert align_labels(["entailment", "not_entailment"], config, train=True)[1]
    assert config.num_labels == 2 and config.id2label == {0: "entailment", 1: "not_entailment"}
    told = capsys.readouterr().out
    assert "head for entailment, neutral, contradiction with a new one for entailment, not_entailment" in told
    assert align_labels([], config, train=True) == ({}, True)
    assert config.num_labels == 1 and config.problem_type == "regression"
    assert align_labels([], config, train=True) == ({}, False)
    assert not align_labels([], BertConfig(), train=True)[1]  # there was no head before
    with pytest.raises(
        InputError, match="the model predicts scores, but the labels in the data are entailment, not_en"
    ):
        align_labels(["entailment", "not_entailment"], config, train=False)
    with pytest.raises(InputError, match="the labels are unknown"):
        align_labels(None, BertConfig(), train=False)


@pytest.mark.parametrize(
    "names, label_ids, after",
    [
        (["yes", "no"], {"yes": 0, "no": 1}, ["yes", "no", "LABEL_2"]),
        (["0", "2"], {"0": 0, "2": 2}, ["0", "LABEL_1", "2"]),  # numbers are ids, even if 1 is absent
        (["label-2", "label-0"], {"label-2": 2, "label-0": 0}, None),  # by name
    ],
)
def test_order_of_unnamed_labels_is_assumed_and_printed(capsys, names, label_ids, after):
    """Guards: for LABEL_0, LABEL_1, ... the order of the labels in the data is assumed, which is printed."""
    config = config_with("LABEL_0", "LABEL_1", "LABEL_2", **FINE_TUNED)
    assert align_labels(names, config, train=False) == (label_ids, False)
    told = capsys.readouterr().out
    assert default_names(config) == (after or ["LABEL_0", "LABEL_1", "LABEL_2"])
    assert (told != "") == bool(after)
    assert not after or f"the model's labels have no names; assuming LABEL_0 = {names[0]!r}" in told


def test_unnamed_labels_that_do_not_fit():
    """Guards: more labels than classes, and scores, are refused; without labels, predictions are LABEL_n."""
    config = config_with("LABEL_0", "LABEL_1", **FINE_TUNED)
    assert not align_labels(None, config, train=False)[1] and default_names(config) == ["LABEL_0", "LABEL_1"]
    for names, listed in ((["a", "b", "c"], "a, b, c"), ([], "scores")):
        with pytest.raises(InputError, match=f"predicts LABEL_0, LABEL_1, but the labels in the data are {listed};"):
            align_labels(names, config, train=False)
    assert label_names(config_with("LABEL_0", **FINE_TUNED)) == []  # a single output is a score
    assert align_labels(["no", "yes"], config, train=True) == ({"no": 0, "yes": 1}, False)  # training decides
    assert default_names(config) == ["no", "yes"]


def test_metrics_and_submissions_use_the_numbers_of_the_task():
    """Guards: F1 is for GLUE's positive class, and submissions have GLUE's names, for any label ids of the model."""
    names = ["EQUIVALENT", "NOT_EQUIVALENT"]
    evaluation = GlueEvaluation("mrpc", names)
    logits = np.eye(2)[[0, 0, 1, 1, 1]]
    found = evaluation(EvalPrediction(logits, np.array([0, 1, 1, 1, 0])))
    assert found == {"accuracy": 0.6, "f1": 0.5, "combined_score": 0.55}
    assert submitted_names("mrpc", names) == ["1", "0"]
    assert submitted_names("rte", ["not entailment", "Entailment"]) == ["not_entailment", "entailment"]
    assert submitted_names("cola", ["LABEL_0", "LABEL_1"]) == ["LABEL_0", "LABEL_1"]
