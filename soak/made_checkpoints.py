"""Small checkpoints of many kinds, in the layouts of transformers and sentence-transformers."""

import json
import random
from dataclasses import dataclass
from pathlib import Path

import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import BertTokenizer, PreTrainedModel, PreTrainedTokenizerBase, TokenizersBackend

import fixedbert
from fixedbert.loading.families import FAMILIES, ROBERTAS

LENGTH = 90  # maximum number of tokens
WORDS = "the cat sat on mat dog ran where who of and town letter blue old river stone wrote never under".split()
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
PIECES = [*WORDS, ".", "?", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
BERT_TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
ROBERTA_TOKENS = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
UNSUPPORTED = {"albert": "Albert", "mpnet": "MPNet", "convbert": "ConvBert", "modernbert": "ModernBert"}
DTYPES = ("float32", "float32", "float64", "float16", "bfloat16")
FLOATS = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
# Fields in config.json that transformers does not know, such as those of sentence-transformers' rerankers.
UNKNOWN_FIELDS = {
    "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.1.0"},
    "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity",
    "finetuning_task": "reviews",
    "thresholds": {"spam": [0.25, 0.5]},
}
MODULES = {  # names of modules in sentence-transformers before version 6, and since
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
    "Dense": "sentence_transformers.base.modules.dense.Dense",
}
OLD_POOLING = {
    "cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens", "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "weightedmean": "weightedmean_tokens", "lasttoken": "lasttoken",
}  # fmt: skip


@dataclass(frozen=True)
class Checkpoint:
    """
    What a checkpoint is. See `draw`.

    Attributes:
        family, head: The class, such as "bert" and "ForMaskedLM".
        kind: The task. Several tasks share a class, such as "regression" and "reranker".
        fields: Fields of the configuration.
        tokenizer: "WordPiece", "BPE" or "Unigram".
        files: Files of the tokenizer: "tokenizer.json" or "vocab.txt".
        added: Number of tokens that were added to the tokenizer.
        layout: "plain", or a layout of sentence-transformers: "old", "new" or "nested".
        modes: Pooling modes.
        modules: Modules of sentence-transformers after the pooling.
        prompt: Name of the default prompt, or "".
        unknown: Names of the UNKNOWN_FIELDS in config.json.
        damage: Name in DAMAGE of damaged_checkpoints.py, or "".
    """

    family: str
    head: str
    kind: str
    fields: dict
    tokenizer: str
    files: str
    added: int
    dtype: str
    format: str
    names: str
    layout: str
    modes: tuple[str, ...]
    modules: tuple[str, ...]
    prompt: str
    unknown: tuple[str, ...]
    damage: str = ""

    @property
    def pairs(self) -> bool:
        """Whether the model reads pairs of texts."""
        return self.kind in ("reranker", "classes of pairs", "ForNextSentencePrediction")

    @property
    def prefix(self) -> str:
        return {**FAMILIES, **UNSUPPORTED}[self.family]

    @property
    def library(self) -> str:
        """The class of sentence-transformers that opens the model, or "" if it is not from there."""
        if self.kind == "reranker":
            return "CrossEncoder"
        return "" if self.layout == "plain" else "SentenceTransformer"


KINDS = {  # the task heads of these tasks
    "classes": "ForSequenceClassification", "classes of pairs": "ForSequenceClassification",
    "labels": "ForSequenceClassification", "regression": "ForSequenceClassification",
    "reranker": "ForSequenceClassification", "words": "ForTokenClassification", "questions": "ForQuestionAnswering",
    "embeddings": "Model", "encoder": "Model", "MLM": "ForMaskedLM", "ForPreTraining": "ForPreTraining",
    "ForMultipleChoice": "ForMultipleChoice", "ForNextSentencePrediction": "ForNextSentencePrediction",
    "LMHeadModel": "LMHeadModel",
}  # fmt: skip


def draw(rng: random.Random) -> Checkpoint:
    """Draws a checkpoint at random."""
    families = [
        *FAMILIES,
        "bert",
        "bert",
        "bert",
        "roberta",
        "distilbert",
        "fixed_head_bert",
        rng.choice([*UNSUPPORTED]),
    ]
    family = rng.choice(families)
    kinds = [kind for kind, head in KINDS.items() if model_class(family, head) is not None]
    weights = [3 if kind in ("classes", "embeddings", "reranker", "words", "questions") else 1 for kind in kinds]
    (kind,) = rng.choices(kinds, weights)
    tokenizer = rng.choice(["WordPiece"] * (5 if family not in ROBERTAS else 1) + ["BPE", "Unigram"])
    has_vocabulary = tokenizer == "WordPiece" and family in ("bert", "distilbert", "electra")
    layout = {"embeddings": rng.choice(["old", "new", "nested"]), "reranker": rng.choice(["plain", "new"])}.get(
        kind, "plain"
    )
    others = rng.choice([["weightedmean"], ["lasttoken"], ["mean_sqrt_len_tokens"], ["mean", "max"], ["cls", "mean"]])
    modes = rng.choice([["mean"], ["cls"], ["max"], ["mean"], others]) if kind == "embeddings" else []
    modules = rng.choice([(), (), ("Normalize",), ("Normalize",), ("Dense",)]) if kind == "embeddings" else ()
    unknown = rng.sample([*UNKNOWN_FIELDS][0 if kind == "reranker" else 2 :], rng.randint(0, 2))
    names = ["own"] * 4 + [
        "with base prefix" if KINDS[kind] == "Model" else "without base prefix",
        "LayerNorm.gamma",
        "buffers",
    ]
    return Checkpoint(
        family=family, head=KINDS[kind], kind=kind, fields=draw_fields(rng, family, kind), tokenizer=tokenizer,
        files="vocab.txt" if has_vocabulary and rng.random() < 0.4 else "tokenizer.json",
        added=rng.choice([0, 0, 0, 2]), dtype="float32" if family in UNSUPPORTED else rng.choice(DTYPES),
        format=rng.choice(["safetensors", "safetensors", "shards", "pickle", "pickled shards", "legacy pickle"]),
        names=rng.choice(names), layout=layout, modes=tuple(modes), modules=modules,
        prompt=rng.choice(["", "query"]) if kind == "embeddings" else "", unknown=tuple(unknown),
    )  # fmt: skip


def draw_fields(rng: random.Random, family: str, kind: str) -> dict:
    """Returns fields of the configuration, with BERT's names."""
    fields = {
        "hidden_act": rng.choice(["gelu", "gelu", "relu", "gelu_new", "silu", "gelu_pytorch_tanh"]),
        "layer_norm_eps": rng.choice([1e-12, 1e-5]),
        "type_vocab_size": 2 if kind not in ("encoder", "MLM") and family not in ROBERTAS else rng.choice([1, 2, 3]),
        "num_attention_heads": rng.choice([1, 2, 4, 8]),
        "intermediate_size": rng.choice([37, 41]),
    }
    if family == "fixed_head_bert":
        fields |= rng.choice(
            [
                {"num_attention_heads": 5, "attention_head_size": 6},
                {"num_attention_heads": 4, "attention_head_size": 8},
                {"num_attention_heads": 4, "attention_head_size": [8, 3], "layer_attention_heads": [4, 3]},
                {"num_attention_heads": 2, "attention_head_size": 13, "head_embedding": "add"},
                {"num_attention_heads": 3, "attention_head_size": 5, "value_head_size": 7, "qk_norm": True},
            ]
        )
    elif family == "electra":
        fields["embedding_size"] = rng.choice([32, 32, 32, 16])
    elif family == "distilbert":
        fields["sinusoidal_pos_embds"] = rng.random() < 0.3
    if kind in ("MLM", "ForPreTraining", "LMHeadModel"):
        fields |= {"tie_word_embeddings": rng.random() < 0.6, "is_decoder": kind == "LMHeadModel"}
    labels = {
        "classes": rng.choice([2, 3]),
        "classes of pairs": 3,
        "labels": 4,
        "words": 5,
        "reranker": 1,
        "regression": 1,
    }
    if kind in labels:
        names = [f"L{number}" for number in range(labels[kind])]
        rng.shuffle(names)
        fields |= {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}
    if kind in ("labels", "regression"):
        fields["problem_type"] = "multi_label_classification" if kind == "labels" else "regression"
    return fields


def model_class(family: str, head: str) -> type[PreTrainedModel] | None:
    prefix = {**FAMILIES, **UNSUPPORTED}[family]
    heads = (head, "ForCausalLM") if head == "LMHeadModel" else (head,)
    library = fixedbert if family == "fixed_head_bert" else transformers
    return next((getattr(library, prefix + one) for one in heads if hasattr(library, prefix + one)), None)


def make_tokenizer(kind: str, family: str, texts: list[str], added: int) -> PreTrainedTokenizerBase:
    """Trains a tokenizer with the special tokens of BERT or RoBERTa."""
    is_roberta = family in ROBERTAS
    roles = ROBERTA_TOKENS if is_roberta else BERT_TOKENS
    special = [*roles.values()]
    backend, options = {
        "BPE": (models.BPE(unk_token=roles["unk"]), {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}),
        "Unigram": (models.Unigram(), {"unk_token": roles["unk"], "initial_alphabet": LETTERS}),
        "WordPiece": (
            models.WordPiece({x: i for i, x in enumerate([*special, *PIECES])}, unk_token=roles["unk"]),
            None,
        ),
    }[kind]
    tokenizer = tokenizers.Tokenizer(backend)
    if kind == "WordPiece" and not is_roberta:
        result = BertTokenizer(vocab={x: i for i, x in enumerate([*special, *PIECES])})
    else:
        if kind == "WordPiece":
            tokenizer.normalizer, tokenizer.pre_tokenizer = (
                normalizers.BertNormalizer(),
                pre_tokenizers.BertPreTokenizer(),
            )
            tokenizer.decoder = decoders.WordPiece()
        elif kind == "BPE":
            tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
        else:
            tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        if options is not None:
            trainer = {"BPE": trainers.BpeTrainer, "Unigram": trainers.UnigramTrainer}[kind]
            size = {"BPE": 300, "Unigram": 90}[kind]
            tokenizer.train_from_iterator(
                texts, trainer(vocab_size=size, special_tokens=special, show_progress=False, **options)
            )
        cls, sep = roles["cls"], roles["sep"]
        pair = f"{cls} $A {sep} {sep} $B {sep}" if is_roberta else f"{cls} $A {sep} $B:1 {sep}:1"
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{cls} $A {sep}", pair=pair, special_tokens=[(x, tokenizer.token_to_id(x)) for x in (cls, sep)]
        )
        names = ["input_ids", "attention_mask", *["token_type_ids"] * (not is_roberta)]
        result = TokenizersBackend(
            tokenizer_object=tokenizer, model_input_names=names, **{f"{role}_token": x for role, x in roles.items()}
        )
    result.model_max_length = LENGTH
    result.add_tokens([f"[E{number}]" for number in range(added)])
    return result


def make_model(checkpoint: Checkpoint, tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    """Returns a model in float32, with random weights that the checkpoint's dtype can represent."""
    cls = model_class(checkpoint.family, checkpoint.head)
    assert cls is not None
    torch.manual_seed(seed)
    names = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
             "intermediate_size": "hidden_dim", "hidden_act": "activation"}  # fmt: skip
    offset = tokenizer.pad_token_id + 1 if checkpoint.family in (*ROBERTAS, "mpnet") else 0
    fields = {
        "vocab_size": len(tokenizer), "hidden_size": 32, "num_hidden_layers": 2,
        "max_position_embeddings": LENGTH + offset, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None,
        "eos_token_id": None, "use_cache": False, **checkpoint.fields,
    }  # fmt: skip
    if checkpoint.family == "distilbert":
        fields = {names.get(name, name): value for name, value in fields.items()}
    model = cls(cls.config_class(**fields)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            scale = 0.1 if "LayerNorm" in name or "layer_norm" in name else 0.25
            weight.add_(torch.randn_like(weight) * scale)
    return model.to(FLOATS[checkpoint.dtype]).float()


def change_json(file: Path, changes: dict):
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def write(checkpoint: Checkpoint, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, directory: Path):
    """Writes a model in the checkpoint's layout, undamaged."""
    body = directory / "0_Transformer" if checkpoint.layout == "nested" else directory
    tokenizer.save_pretrained(body)
    if checkpoint.files == "vocab.txt":
        tokens = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
        kept = [token for token, _ in tokens[: len(tokens) - checkpoint.added]]
        (body / "vocab.txt").write_text("\n".join(kept) + "\n")
        (body / "tokenizer.json").unlink()
        config = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": LENGTH}
        added = {str(len(kept) + n): token_entry(f"[E{n}]") for n in range(checkpoint.added)}
        config |= {"added_tokens_decoder": added} if added else {}
        (body / "tokenizer_config.json").write_text(json.dumps(config))
    stored = model.to(FLOATS[checkpoint.dtype])
    stored.save_pretrained(body)
    model.float()
    change_json(body / "config.json", {name: UNKNOWN_FIELDS[name] for name in checkpoint.unknown})
    write_weights(body, renamed(load_file(body / "model.safetensors"), checkpoint, model), checkpoint.format)
    if checkpoint.layout != "plain":
        write_modules(checkpoint, directory)


def token_entry(token: str) -> dict:
    return {
        "content": token,
        "lstrip": False,
        "normalized": True,
        "rstrip": False,
        "single_word": False,
        "special": False,
    }


def renamed(tensors: dict[str, Tensor], checkpoint: Checkpoint, model: PreTrainedModel) -> dict[str, Tensor]:
    prefix = f"{model.base_model_prefix}."
    if checkpoint.names == "with base prefix":
        return {prefix + name: tensor for name, tensor in tensors.items()}
    if checkpoint.names == "without base prefix" and model.base_model is not model:
        return tensors  # only an encoder has no prefix
    if checkpoint.names == "LayerNorm.gamma":
        olds = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        for new, old in olds.items():
            tensors = {name.replace(new, old): tensor for name, tensor in tensors.items()}
    if checkpoint.names == "buffers" and checkpoint.family in FAMILIES:
        start = prefix if model.base_model is not model else ""
        tensors = {**tensors, f"{start}embeddings.position_ids": torch.arange(LENGTH)[None]}
    return tensors


def write_weights(directory: Path, tensors: dict[str, Tensor], form: str):
    for file in [*directory.glob("*.safetensors"), *directory.glob("*.bin"), *directory.glob("*.index.json")]:
        file.unlink()
    save = {
        "pickle": torch.save, "pickled shards": torch.save,
        "legacy pickle": lambda content, file: torch.save(content, file, _use_new_zipfile_serialization=False),
    }.get(form, lambda content, file: save_file(content, file, {"format": "pt"}))  # fmt: skip
    stem, ending = ("pytorch_model", "bin") if "pickle" in form else ("model", "safetensors")
    if "shards" not in form:
        save(tensors, directory / f"{stem}.{ending}")
        return
    parts = [dict(list(tensors.items())[index::3]) for index in range(3)]
    index = {}
    for number, part in enumerate(parts, start=1):
        file = f"{stem}-{number:05}-of-00003.{ending}"
        save(part, directory / file)
        index |= dict.fromkeys(part, file)
    (directory / f"{stem}.{ending}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def write_modules(checkpoint: Checkpoint, directory: Path):
    """Writes the files of sentence-transformers."""
    is_new = checkpoint.layout == "new"
    kinds = ["Transformer", *["Pooling"] * bool(checkpoint.modes), *checkpoint.modules]
    modules = []
    for number, kind in enumerate(kinds):
        path = f"{number}_{kind}" if number or checkpoint.layout == "nested" else ""
        name = MODULES[kind] if is_new else f"sentence_transformers.models.{kind}"
        modules.append({"idx": number, "name": str(number), "path": path, "type": name})
        (directory / path).mkdir(exist_ok=True)
    (directory / "modules.json").write_text(json.dumps(modules, indent=2))
    body = directory / modules[0]["path"]
    settings: dict = {"max_seq_length": 17, "do_lower_case": False}
    if is_new:
        is_pair = checkpoint.kind == "reranker"
        task, result = ("sequence-classification", "scores") if is_pair else ("feature-extraction", "token_embeddings")
        output = "logits" if is_pair else "last_hidden_state"
        settings = {"transformer_task": task, "module_output_name": result}
        settings["modality_config"] = {"text": {"method": "forward", "method_output_name": output}}
        prompts = {} if is_pair else {"query": "who of ", "document": ""}
        info = {"model_type": checkpoint.library, "prompts": prompts, "default_prompt_name": checkpoint.prompt or None}
        info |= {"activation_fn": "torch.nn.modules.activation.Sigmoid"} if is_pair else {}
        (directory / "config_sentence_transformers.json").write_text(json.dumps(info))
    (body / "sentence_bert_config.json").write_text(json.dumps(settings))
    if checkpoint.modes:
        (mode, *others) = checkpoint.modes
        pooling: dict = {
            "embedding_dimension": 32,
            "pooling_mode": [mode, *others] if others else mode,
            "include_prompt": True,
        }
        if not is_new:
            pooling = {"word_embedding_dimension": 32}
            pooling |= {f"pooling_mode_{old}": name in checkpoint.modes for name, old in OLD_POOLING.items()}
        (directory / "1_Pooling/config.json").write_text(json.dumps(pooling))
    if "Dense" in checkpoint.modules:
        (directory / "2_Dense/config.json").write_text(
            json.dumps(
                {
                    "in_features": 32 * len(checkpoint.modes),
                    "out_features": 13,
                    "bias": True,
                    "activation_function": "torch.nn.modules.activation.Tanh",
                }
            )
        )
        save_file(
            {"linear.weight": torch.ones(13, 32 * len(checkpoint.modes)), "linear.bias": torch.ones(13)},
            directory / "2_Dense/model.safetensors",
        )
