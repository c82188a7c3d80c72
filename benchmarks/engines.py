"""
python -m benchmarks.engines

Every engine with every shape of heads, as a table in Markdown: the largest difference of its embeddings to torch's,
and its texts a second beside torch, by turns in the same run; or the sentence that it says. Models are random, of
--hidden_size and --num_hidden_layers. Engines that are not installed say so, and nothing is downloaded. README.md in
this folder says how to read it.
"""

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
import transformers
from onnxruntime import InferenceSession, SessionOptions
from torch import Tensor
from torch.nn.functional import normalize
from transformers import AutoModel, AutoTokenizer, BertTokenizer, PreTrainedTokenizerBase, pipeline

from benchmarks.machine import description
from benchmarks.turns import in_turns, ratio
from fixedbert import FixedHeadBertConfig, FixedHeadBertModel, convert
from fixedbert.publishing.export import GRAPH, QUANTIZED, export_onnx, quiet
from fixedbert.publishing.pooling import SentencePooling
from fixedbert.support.files import reason_of

LONGEST, BATCH = 64, 32  # tokens of a text; texts
HEAD = 32  # the size of stock heads, as MiniLM's
Embed = Callable[[list[str]], Tensor]  # texts to embeddings (texts, D) of length 1
POOLING = SentencePooling(["mean"], normalize=True)


def shapes(hidden_size: int, layers: int) -> dict[str, dict[str, Any]]:
    heads = hidden_size // HEAD

    def repeat(*values: int) -> list[int]:
        return [values[layer % len(values)] for layer in range(layers)]

    return {
        "stock heads": {"num_attention_heads": heads, "attention_head_size": HEAD},
        "larger heads": {"num_attention_heads": heads, "attention_head_size": 2 * HEAD},
        "many heads": {"num_attention_heads": 3 * heads, "attention_head_size": HEAD},
        "shrunk, values of another size": {
            "num_attention_heads": heads,
            "attention_head_size": HEAD // 4,
            "value_head_size": HEAD // 2,
        },
        "a size for each layer": {
            "num_attention_heads": heads + 1,
            "layer_attention_heads": repeat(heads + 1, heads, heads - 1),
            "attention_head_size": repeat(HEAD, HEAD // 4, HEAD - 3),
            "value_head_size": repeat(HEAD // 2, HEAD, HEAD + 5),
        },
    }


def texts_of(count: int) -> list[str]:
    """Paragraphs of Python's documentation, of different lengths."""
    paragraphs = (" ".join(part.split()) for text in topics.values() for part in text.split("\n\n"))
    return [text for text in paragraphs if text][:count]


def save_model(folder: Path, texts: list[str], shape: dict[str, Any], hidden_size: int, layers: int):
    """A sentence-transformers directory of a random model; large weights, so that what is wrong is seen."""
    words = sorted({word for text in texts for word in re.findall(r"\w+|[^\w\s]", text.lower())})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    config = FixedHeadBertConfig(
        vocab_size=len(vocabulary),
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        intermediate_size=4 * hidden_size,
        max_position_embeddings=LONGEST,
        initializer_range=0.1,
        **shape,
    )
    FixedHeadBertModel(config).save_pretrained(folder)
    numbers = {word: number for number, word in enumerate(vocabulary)}
    BertTokenizer(vocab=numbers, model_max_length=LONGEST).save_pretrained(folder)
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, path) in enumerate(
            [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
        )
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    for module in modules[1:]:
        (folder / module["path"]).mkdir()
    pooling = {"word_embedding_dimension": hidden_size, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))


def tokens_of(tokenizer: PreTrainedTokenizerBase, texts: list[str]):
    return tokenizer(texts, padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")


def of_a_model(folder: Path, model: torch.nn.Module | None = None, **options) -> Embed:
    """torch's embeddings by `model`, or by the one in the folder, loaded with these options."""
    model = AutoModel.from_pretrained(folder, **options) if model is None else model
    model, tokenizer = model.eval(), AutoTokenizer.from_pretrained(folder)

    def embed(texts: list[str]) -> Tensor:
        batch = tokens_of(tokenizer, texts)
        return POOLING(model(**batch).last_hidden_state, batch["attention_mask"])

    return embed


def stock_twin(folder: Path) -> Embed:
    """transformers' BERT, for engines with a BERT of their own, where one of the same width has the function."""
    convert(folder, folder / "bert", bert=True)
    return of_a_model(folder / "bert")


def by_torchao(folder: Path) -> Embed:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model = AutoModel.from_pretrained(folder)
    quantize_(model, Int8WeightOnlyConfig())
    return of_a_model(folder, model)


def by_bitsandbytes(folder: Path) -> Embed:
    import bitsandbytes  # noqa: F401  # transformers' own message has several lines

    options = transformers.BitsAndBytesConfig(load_in_8bit=True)
    return of_a_model(folder, quantization_config=options, device_map="cpu", dtype=torch.float32)


def by_pipeline(folder: Path) -> Embed:
    """Text by text: the pipeline does not say where a batch has padding."""
    extract = pipeline("feature-extraction", str(folder), tokenize_kwargs={"truncation": True})

    def embed(texts: list[str]) -> Tensor:
        return normalize(torch.stack([torch.tensor(states[0]).mean(dim=0) for states in extract(texts)]), dim=-1)

    return embed


def by_onnxruntime(folder: Path, file: str) -> Embed:
    tokenizer, options = AutoTokenizer.from_pretrained(folder), SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = InferenceSession(exported(folder) / file, options, providers=["CPUExecutionProvider"])

    def embed(texts: list[str]) -> Tensor:
        batch = tokens_of(tokenizer, texts)
        inputs = {given.name: batch[given.name].numpy() for given in session.get_inputs()}
        return torch.from_numpy(session.run(["sentence_embedding"], inputs)[0])

    return embed


def exported(folder: Path) -> Path:
    """The directory with the graphs of a model, written when it is first asked for."""
    graphs = folder.with_name(f"{folder.name}-onnx")
    if not graphs.exists():
        export_onnx(folder, graphs, int8=True)
    return graphs


def by_sentence_transformers(folder: Path) -> Embed:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")

    def embed(texts: list[str]) -> Tensor:
        return torch.from_numpy(model.encode(texts, batch_size=BATCH, show_progress_bar=False))

    return embed


TORCH = "torch, sdpa"
ENGINES: dict[str, Callable[[Path], Embed]] = {
    TORCH: of_a_model,
    "torch, eager": partial(of_a_model, attn_implementation="eager"),
    "torch, without padding": partial(of_a_model, unpad_inputs=True),
    "torchao, weights in int8": by_torchao,
    "bitsandbytes, int8": by_bitsandbytes,
    "transformers' pipeline": by_pipeline,
    "sentence-transformers": by_sentence_transformers,
    "onnxruntime": partial(by_onnxruntime, file=GRAPH),
    "onnxruntime, int8": partial(by_onnxruntime, file=QUANTIZED),
    "BERT, by fixedbert convert --bert": stock_twin,
}


def opened(engine: Callable[[Path], Embed], folder: Path, texts: list[str]) -> Embed | str:
    """The engine with the model, after a first batch; or why it does not work, in its own words."""
    try:
        embed = engine(folder)
        embed(texts[:BATCH])
    except ModuleNotFoundError as error:
        return f"not installed: {error.name}"
    except Exception as error:  # of any kind, as engines vary
        return reason_of(error).removeprefix(f"{folder}: ").replace("|", "\\|")
    return embed


def in_all_batches(embed: Embed, texts: list[str]) -> Tensor:
    return torch.cat([embed(texts[begin : begin + BATCH]) for begin in range(0, len(texts), BATCH)])


def texts_a_second(embed: Embed, texts: list[str]) -> float:
    began = time.perf_counter()
    in_all_batches(embed, texts)
    return len(texts) / (time.perf_counter() - began)


@torch.no_grad()
def column(folder: Path, texts: list[str], rounds: int) -> dict[str, str]:
    """What is found for a model, by engine."""
    found = {name: opened(engine, folder, texts) for name, engine in ENGINES.items()}
    engines = {name: embed for name, embed in found.items() if not isinstance(embed, str)}
    expected = in_all_batches(engines[TORCH], texts)
    rates = in_turns({name: partial(texts_a_second, embed, texts) for name, embed in engines.items()}, rounds)
    cells = {}
    for name, embed in found.items():
        if isinstance(embed, str):
            cells[name] = embed
            continue
        difference = float((in_all_batches(embed, texts) - expected).abs().max())
        cells[name] = f"{difference:.0e}, {ratio(rates[name], rates[TORCH])}"
    cells[TORCH] = f"{sorted(rates[TORCH])[rounds // 2]:,.0f}/s"
    return cells


def print_table(columns: dict[str, dict[str, str]]):
    """A row for each engine. What engines say is below, numbered, as it is long and often the same."""
    said: list[str] = []
    print("| engine | " + " | ".join(columns) + " |")
    print("|---" * (1 + len(columns)) + "|")
    for name in ENGINES:
        cells = [cells[name] for cells in columns.values()]
        for place, cell in enumerate(cells):
            if not re.match(r"[\d.,]+(e|/s|$)", cell):
                if cell not in said:
                    said.append(cell)
                cells[place] = f"[{said.index(cell) + 1}]"
        print(f"| {name} | " + " | ".join(cells) + " |")
    print("\n" + "\n".join(f"{number}. {sentence}" for number, sentence in enumerate(said, start=1)))


def main(argv: list[str] | None = None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines", description=__doc__)
    parser.add_argument("--hidden_size", type=int, default=2 * HEAD, help=f"a multiple of {HEAD}, at least two")
    parser.add_argument("--num_hidden_layers", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=int, default=96)
    arguments = parser.parse_args(argv)
    if arguments.hidden_size % HEAD or arguments.hidden_size < 2 * HEAD:
        sys.exit(f"error: --hidden_size {arguments.hidden_size}: a multiple of {HEAD} is needed, at least {2 * HEAD}.")
    transformers.utils.logging.disable_progress_bar()
    print(f"{description()}\n")
    texts, size, layers = texts_of(arguments.texts), arguments.hidden_size, arguments.num_hidden_layers
    columns = {}
    with quiet(), tempfile.TemporaryDirectory() as folder:
        for number, (name, shape) in enumerate(shapes(size, layers).items()):
            torch.manual_seed(number)
            save_model(Path(folder) / str(number), texts, shape, size, layers)
            columns[name] = column(Path(folder) / str(number), texts, arguments.rounds)
    print_table(columns)


if __name__ == "__main__":
    main()
