"""Weights that somebody else wrote: whatever loads a model takes all of its body from the file, or says what lacks."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from helpers.tiny_models import bert_of
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    BertConfig,
    BertModel,
    BertTokenizer,
    DistilBertConfig,
    DistilBertForMaskedLM,
    PreTrainedModel,
)

from fixedbert.conversion.checkpoints import load_bert
from fixedbert.data.corpora import Corpus, CorpusReader
from fixedbert.data.tokenizers import load_tokenizer
from fixedbert.fine_tuning import questions as squad
from fixedbert.fine_tuning.texts import load_files
from fixedbert.inspection.inspect import load as load_to_inspect
from fixedbert.support.errors import InputError
from fixedbert.training.arguments import ModelArguments
from fixedbert.training.loading import load_config, load_model

LAYER = "bert.encoder.layer.1."
QUERY = LAYER + "attention.self.query.weight"
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 440473133\n"


@pytest.fixture
def folder(tmp_path, vocabulary):
    """A BERT with the heads of pretraining, and its tokenizer."""
    tokenizer = BertTokenizer(vocab=vocabulary)
    bert_of("ForPreTraining", vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def tensors_in(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def write(folder: Path, tensors: dict[str, torch.Tensor]):
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def write_pickle(folder: Path, content: object):
    (folder / "model.safetensors").unlink(missing_ok=True)
    torch.save(content, folder / "pytorch_model.bin")


def configure(folder: Path, **fields):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def to_train(folder: Path, auto_class=AutoModelForSequenceClassification, train=True, **arguments) -> PreTrainedModel:
    """As run_glue, run_squad and run_pretraining load a model."""
    given = ModelArguments(model_name_or_path=str(folder), **arguments)
    return load_model(auto_class, given, load_config(given), BertTokenizer.from_pretrained(folder), train)


FLOWS = {
    "run_glue": to_train,
    "run_squad": lambda folder: to_train(folder, AutoModelForQuestionAnswering),
    "run_pretraining": lambda folder: to_train(folder, AutoModelForPreTraining),
    "convert, shrink, export": load_bert,
    "inspect": lambda folder: load_to_inspect(str(folder), 8),
}


def check_refused(folder: Path, *parts: str, flows=FLOWS):
    """Every command that loads a model ends with a sentence that begins with the place and has these parts."""
    for name in flows:
        with pytest.raises(InputError) as error:
            FLOWS[name](folder)
        sentence = str(error.value)
        assert sentence.startswith(str(folder)) and sentence.endswith("."), name
        assert all(part in sentence for part in parts), (name, sentence)


@pytest.mark.parametrize(
    "prefix", ["module.", "_orig_mod.", "module._orig_mod.", "model.", "bert.model.", "0.auto_model."]
)
def test_names_with_a_foreign_prefix(folder, prefix):
    """Guards: weights saved by DDP, torch.compile or another wrapper are refused with their prefix."""
    write(folder, {prefix + name: tensor for name, tensor in tensors_in(folder).items()})
    check_refused(
        folder,
        "there are no weights for ",
        f"; all 62 names in the file begin with {prefix!r}; save it again with names that lack it, as in "
        f"{{name.removeprefix({prefix!r}): tensor for name, tensor in tensors.items()}}.",
    )


def test_the_remedy_for_a_prefix_is_one(folder):
    """Guards: names without the prefix, as the sentence has them, load with every weight; of a bare BERT too."""
    tensors = tensors_in(folder)
    for names in (str, lambda name: name.removeprefix("bert.")):
        write(folder, {"module." + names(name): tensor for name, tensor in tensors.items()})
        check_refused(folder, "all 62 names in the file begin with 'module.'")
        write(folder, {name.removeprefix("module."): tensor for name, tensor in tensors_in(folder).items()})
        for model in (to_train(folder), load_bert(folder)):
            assert torch.equal(model.state_dict()[QUERY], tensors[QUERY])


def test_a_prefix_on_a_part_of_the_names(folder):
    """Guards: one layer wrapped by itself, as FSDP and checkpointing leave it, is missing, with the count of names."""
    write(folder, {name.replace(LAYER, "module." + LAYER): tensor for name, tensor in tensors_in(folder).items()})
    check_refused(folder, "attention.output.dense.bias' and 13 more; 16 of 62 names in the file begin with 'module.'")


def test_a_doubled_prefix(folder):
    """Guards: bert.bert., of which some classes would load a part, is refused by all with the one to strip."""
    tensors = tensors_in(folder)
    write(folder, {"bert." + name: tensor for name, tensor in tensors.items()})
    check_refused(folder, "55 of 62 names in the file begin with 'bert.bert.'", "name.removeprefix('bert.')")


def test_names_of_another_family(folder):
    """Guards: DistilBERT's and RoBERTa's names in a BERT's directory: no advice to strip a prefix that hides this."""
    tensors = tensors_in(folder)
    write(folder, {name.replace("bert.", "roberta.", 1): tensor for name, tensor in tensors.items()})
    check_refused(folder, "the file has 'roberta.embeddings.LayerNorm.bias'", "give the config.json that belongs to")
    renamed = {name.replace("bert.encoder.", "distilbert.transformer."): tensor for name, tensor in tensors.items()}
    write(folder, {name: tensor for name, tensor in renamed.items() if "cls" not in name})
    check_refused(folder, "there are no weights for ", "the file has 'distilbert.transformer.layer.0.attention")


def test_missing_parts_of_the_body(folder):
    """Guards: a layer, or one bias in all of them, that the file lacks is named, whatever heads it has."""
    tensors = tensors_in(folder)
    write(folder, {name: tensor for name, tensor in tensors.items() if not name.startswith(LAYER)})
    check_refused(folder, "encoder.layer.1.attention.output.LayerNorm.bias'", "13 more; the file is incomplete")
    write(folder, {name: tensor for name, tensor in tensors.items() if "query.bias" not in name})
    check_refused(folder, "'; the file is incomplete, or config.json belongs to another model.")
    write(folder, tensors)
    configure(folder, num_hidden_layers=4)
    check_refused(folder, "encoder.layer.3.attention.output.LayerNorm.bias'", "13 more; the file is incomplete")


def test_more_of_a_body_than_the_configuration_has(folder):
    """Guards: layers that config.json leaves out, relative positions, adapters: weights that would be dropped."""
    tensors = tensors_in(folder)
    configure(folder, num_hidden_layers=2)
    check_refused(
        folder, "has no place for 'bert.encoder.layer.2.attention.output.LayerNorm.bias'", "and 13 more; give"
    )
    write(folder, {name.removeprefix("bert."): tensor for name, tensor in tensors.items()})
    check_refused(folder, "has no place for 'encoder.layer.2.attention.output.LayerNorm.bias'")
    configure(folder, num_hidden_layers=3)
    for more in (LAYER + "attention.self.distance_embedding.weight", "bert.adapters.0.weight"):
        write(folder, tensors | {more: torch.ones(3, 3)})
        check_refused(folder, f"has no place for {more!r}")


def test_heads_may_be_missing_or_left_over(folder):
    """Guards: pretraining from a bare body, fine-tuning from heads, tied weights, old names and buffers all work."""
    tensors = tensors_in(folder)
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
           for name, tensor in tensors.items()}  # fmt: skip
    old["bert.embeddings.position_ids"] = old["bert.embeddings.token_type_ids"] = torch.arange(11)[None]
    bare = {name.removeprefix("bert."): tensor for name, tensor in tensors.items() if name.startswith("bert.")}
    no_pooler = {name: tensor for name, tensor in tensors.items() if "pooler" not in name}
    for names in (old, bare, no_pooler):
        write_pickle(folder, names)
        for auto_class in (AutoModelForPreTraining, AutoModelForMaskedLM, AutoModelForQuestionAnswering):
            model = to_train(folder, auto_class)
            assert torch.equal(model.state_dict()[QUERY], tensors[QUERY])
        load_to_inspect(str(folder), 8)
    write_pickle(folder, old)
    assert torch.equal(load_bert(folder).bert.embeddings.LayerNorm.bias, tensors["bert.embeddings.LayerNorm.bias"])


def test_models_of_other_families_are_fine_tuned(folder):
    """Guards: body and head are told apart by the model: DistilBERT has no pooler, and a prefix of its own."""
    config = DistilBertConfig(vocab_size=99, dim=32, n_layers=2, n_heads=4, hidden_dim=37)
    DistilBertForMaskedLM(config).save_pretrained(folder)
    tensors = tensors_in(folder)
    query = "distilbert.transformer.layer.1.attention.q_lin.weight"
    assert torch.equal(to_train(folder).state_dict()[query], tensors[query])
    del tensors[query]
    write(folder, tensors)
    check_refused(folder, f"no weights for {query!r}; the file is incomplete", flows=["run_glue", "run_squad"])


def test_the_body_has_its_shape(folder):
    """Guards: --ignore_mismatched_sizes, and a head for other labels, never draw weights of the body anew."""
    bert_of("ForSequenceClassification", num_labels=3).save_pretrained(folder)
    arguments = {"auto_class": AutoModelForSequenceClassification, "ignore_mismatched_sizes": True}
    with pytest.raises(InputError, match="classifier.bias has the shape .3,. where .2,. is needed; .*`ignore_mismatc"):
        to_train(folder, config_overrides={"num_labels": 2})
    model = to_train(folder, config_overrides={"num_labels": 2}, **arguments)
    assert model.classifier.weight.shape == (2, 32) and torch.equal(
        model.state_dict()[QUERY], tensors_in(folder)[QUERY]
    )
    with pytest.raises(
        InputError, match="layer.0.intermediate.dense.bias has the shape .37,. where the configuration"
    ):
        to_train(folder, config_overrides={"intermediate_size": 36}, **arguments)


@pytest.mark.parametrize("kind", ["relative_key", "relative_key_query"])
def test_relative_positions(folder, kind):
    """Guards: positions that transformers 5 dropped are refused by every command before weights are read."""
    configure(folder, position_embedding_type=kind)
    check_refused(folder, f"position_embedding_type '{kind}': a bert of transformers 5 has absolute positions alone")
    configure(folder, position_embedding_type="absolute")
    to_train(folder)


def test_precision_of_the_file_is_kept(folder, capsys):
    """Guards: a configuration of less precision than the file rounds nothing, and one line says so; more is obeyed."""
    tensors = tensors_in(folder)
    configure(folder, dtype="float16")
    for load in (FLOWS["run_pretraining"], load_bert):
        model = load(folder)
        line = (
            f"{folder}: config.json says float16 and the file holds float32; nothing is rounded, the model is float32."
        )
        assert capsys.readouterr().out.splitlines() == [line]
        assert torch.equal(model.state_dict()[QUERY], tensors[QUERY])
    half = {name: tensor.half() for name, tensor in tensors.items()}
    write(folder, half)
    assert load_bert(folder).dtype == torch.float16
    configure(folder, dtype="float32")
    assert load_bert(folder).dtype == torch.float32
    assert capsys.readouterr().out == ""
    configure(folder, dtype="float16")  # of a mixture, in which the first tensor says little
    write(folder, half | {QUERY: tensors[QUERY]})
    assert torch.equal(load_bert(folder).state_dict()[QUERY], tensors[QUERY])
    assert "the file holds float16, float32;" in capsys.readouterr().out
    configure(folder, dtype="bfloat16")
    write(folder, half)
    assert load_bert(folder).dtype == torch.float32  # either would lose bits of the other


@pytest.mark.parametrize(
    "dtype, name",
    [
        (torch.int8, QUERY),
        (torch.uint8, QUERY),
        (torch.float8_e4m3fn, QUERY),
        (torch.bool, LAYER + "intermediate.dense.bias"),
        (torch.int64, LAYER + "output.LayerNorm.weight"),
    ],
)
def test_weights_are_floating_point_numbers(folder, dtype, name):
    """Guards: integers, truth values and floats of 8 bits, which mean nothing without their scales, are named."""
    tensors = tensors_in(folder)
    write(folder, tensors | {name: tensors[name].to(dtype)})
    check_refused(folder, f"{name} holds ", ", no floating-point numbers of 16 bits or more; give")
    write_pickle(folder, tensors | {name: tensors[name].to(dtype)})
    check_refused(folder, f"{name} holds {str(dtype).removeprefix('torch.')}, no", flows=["run_glue"])


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_weights_are_finite(folder, number):
    """Guards: one number that is not finite in the body is named by every command that loads it."""
    tensors = tensors_in(folder)
    tensors[QUERY][3, 5] = number
    write(folder, tensors)
    check_refused(folder, "encoder.layer.1.attention.self.query.weight is not finite everywhere")


@pytest.mark.parametrize("name", ["state_dict", "model", "module"])
def test_weights_one_level_down(folder, name):
    """Guards: a trainer's checkpoint, whose weights have a name of their own, is refused with the line that helps."""
    write_pickle(folder, {"epoch": 3, name: tensors_in(folder), "optimizer": {}})
    remedy = f"torch.save(torch.load('pytorch_model.bin', weights_only=True)['{name}'], 'pytorch_model.bin')"
    check_refused(folder, f"the weights are one level down, under '{name}'; save them alone, by {remedy}.")
    file = folder / "pytorch_model.bin"
    torch.save(torch.load(file, weights_only=True)[name], file)
    to_train(folder)


@pytest.mark.parametrize("zipped", [True, False])
def test_pickles_of_other_things(folder, zipped):
    """Guards: objects, lists and numbers beside tensors are a sentence, and none advises to run the pickle's code."""
    tensors = tensors_in(folder)
    config = BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, vocab_size=99)
    write_pickle(folder, None)
    for content, part in (
        (BertModel(config), "the pickle is damaged or holds more than tensors; it was not run."),
        ([tensors], "holds no tensors with names, but list; save a state_dict."),
        (tensors | {"epoch": 3}, "'epoch' is no tensor, but int; save the tensors alone."),
    ):
        torch.save(content, folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
        check_refused(folder, part, flows=["run_glue", "convert, shrink, export", "inspect"])
    torch.save(tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    to_train(folder)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_not_run(folder):
    """Guards: a program in place of weights is named, without torch's advice to set weights_only=False."""
    write_pickle(folder, None)
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 3), torch.ones(1, 2)), folder / "pytorch_model.bin")
    check_refused(folder, "pytorch_model.bin: a TorchScript file, which is code; save the model ")


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "config.json", "tokenizer.json"])
def test_git_lfs_pointers(folder, name):
    """Guards: what a clone without Git LFS has in place of a file is named; one that nobody reads does no harm."""
    (folder / "tf_model.h5").write_text(POINTER)
    to_train(folder)
    if name == "pytorch_model.bin":
        (folder / name).write_text(POINTER)
        to_train(folder)  # from model.safetensors beside it
        (folder / "model.safetensors").unlink()
    (folder / name).write_text(POINTER)
    if name == "tokenizer.json":
        with pytest.raises(
            InputError, match="tokenizer.json: a Git LFS pointer, not the file itself; run git lfs pull"
        ):
            load_tokenizer(str(folder))
    else:
        check_refused(folder, f"{name}: a Git LFS pointer, not the file itself; run git lfs pull")


@pytest.mark.parametrize("name", ["vocab.txt", "train.csv", "corpus.txt", "dev.json"])
def test_git_lfs_pointers_as_files(tmp_path, name):
    """Guards: a vocabulary, rows, a corpus or questions that were not downloaded are no text of three lines."""
    readers = {
        "vocab.txt": load_tokenizer,
        "train.csv": lambda file: load_files({"train": file}),
        "corpus.txt": lambda file: list(CorpusReader(Corpus(file))),
        "dev.json": lambda file: squad.load_squad(file),
    }
    (tmp_path / name).write_text(POINTER)
    with pytest.raises(InputError, match=f"{name}: a Git LFS pointer, not the file itself; run git lfs pull"):
        readers[name](str(tmp_path / name))


def test_directories_without_a_configuration(folder):
    """Guards: no config.json is said as that, not as a model type that nobody has heard of."""
    (folder / "config.json").unlink()
    check_refused(folder, ": there is no config.json in it; copy the model's there.")


def test_shards_are_checked_like_one_file(folder):
    """Guards: weights in several files, by their index, have the same checks, and so has the index."""
    model = load_bert(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="20KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 2
    to_train(folder)
    save_file({"module." + name: tensor for name, tensor in load_file(shards[0]).items()}, shards[0], {"format": "pt"})
    check_refused(folder, " names in the file begin with 'module.'")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../model.safetensors"}}')
    check_refused(folder, "weight_map names no file beside it (../model.safetensors)")


def test_threads_load_and_others_are_heard(folder, caplog):
    """Guards: loading in several threads leaves transformers as it was: its logs, and that it ties embeddings."""
    logger, tie = logging.getLogger("transformers.modeling_utils"), PreTrainedModel.tie_weights
    before = (logging.getLogger("transformers").level, [*logger.filters])

    def load(_):
        return load_bert(folder, "BertModel").config.num_attention_heads

    with ThreadPoolExecutor(4) as pool:
        found = pool.map(load, range(13))
        logger.warning("of another thread")
        assert len({*found}) == 1
    assert before == (logging.getLogger("transformers").level, logger.filters)
    assert PreTrainedModel.tie_weights is tie
    assert [record.getMessage() for record in caplog.records if record.name == logger.name] == ["of another thread"]
