"""What may load as something else without a word, by kinds and changes, and why. All else that does is a fault."""

TEXTS = ("corpus: txt*", "corpus: jsonl", "corpus: csv", "corpus: tsv", "rows: csv", "rows: tsv", "rows: json*",
         "GLUE:*", "SQuAD: json*", "recipe:*", "study:*", "*config.json", "*tokenizer*.json", "*.index.json",
         "vocab.txt", "*README.md", "resume: trainer_state.json", "resume: command.json")  # fmt: skip
WEIGHTS = ("*model.safetensors", "*pytorch_model.bin", "*parquet")
IN_PLACES = ("bits flipped", "cut off", "beginning cut off", "a block *", "noise *", "NUL put in", "byte order mark",
             "CRLF")  # fmt: skip
LINES = ("line *", "long line", "other text", "many quotation marks", "control characters")
EXPLAINED = (
    (TEXTS, IN_PLACES, "what is still a text of its format is another text: nothing says what it was"),
    (("corpus: txt*", "*README.md"), LINES, "other text"),
    (
        ("corpus: *.gz", "corpus: *.bz2", "corpus: *.xz"),
        tuple(f"inside: {change}" for change in (*IN_PLACES, *LINES, "text becomes text", "a quote")),
        "other text in a compressed file that is whole",
    ),
    (
        ("corpus: *", "rows: *", "GLUE: *"),
        ("*text becomes text", "*sentence? becomes text", "*label becomes text", "score becomes text",
         "many quotation marks", "line twice", "a quote"),
        "other text, or another label",
    ),
    (
        ("rows: json*",),
        ("*label becomes a number", "*label becomes true", "*label becomes false", "*gone", "*[*] twice"),
        "a label may be a number or a truth value; a row less is another file",
    ),
    (
        ("rows: *", "GLUE: *"),
        ("labels: words", "labels: whole numbers", "labels: fractions", "labels: row numbers", "label: numbers",
         "label: fractions", "label: a dictionary"),
        "other labels",
    ),
    (
        ("rows: *",),
        ("column sentence? renamed", "sentence?: gone", "sentence?: name", "*sentence? renamed"),
        "the text columns may have any names, and which are taken is printed",
    ),
    (
        ("SQuAD: *",),
        ("*context becomes text", "*question becomes text", "*id becomes *", "*title*", "*is_impossible gone",
         "*is_impossible renamed", "*is_impossible becomes true", "*[*] twice", "*gone", "*text becomes text"),
        "another question; an id may be a number; a title is shown to nobody",
    ),
    (WEIGHTS, (*IN_PLACES, "not UTF-8"), "weights and columns of foreign formats carry no checksums"),
    (
        WEIGHTS,
        ("*a tensor NaN", "*a tensor of half precision", "*a tensor of whole numbers", "*a tensor transposed"),
        "other values of the right shape; NaN ends training at its first step",
    ),
    (
        ("*pytorch_model.bin", "resume: *.p*"),
        ("* becomes *", "* gone", "* renamed", "* twice", "*a tensor *"),
        "written whole by another program, with the checksums of a whole file",
    ),
    (("*tokenizer*.json",), ("*",), "another tokenizer"),
    (
        ("config.json", "convert: config.json", "inspect: config.json", "push: config.json", "*.index.json"),
        ("keys twice",),
        "transformers reads them, and to JSON's reader the last of two values counts",
    ),
    (("GLUE: *",), ("a field less",), "lines of the download are too short: they are left out, counted and named"),
    (("corpus: *",), ("text: a missing one",), "an empty document, which is counted"),
    (("vocab.txt",), ("line gone", *LINES[1:]), "another vocabulary"),
    (("*README.md",), ("missing", "empty"), "the card of a source is not needed"),
    (("study: runs.jsonl",), ("hardware becomes text", "commit becomes text", "texts becomes text"), "another text"),
    (("convert: config.json",), ("dtype *",), "weights have their own type"),
    (("convert: README.md",), ("not UTF-8", "directory", "link to itself"), "a warning says that the card is lost"),
    (
        ("recipe:*", "study: yaml"),
        ("* gone", "* renamed", "*[*] twice", "digits", "* becomes a number", "* becomes text", "* becomes true",
         "* becomes false", "* becomes null", "* becomes a list", "output_dir becomes *"),
        "another value that the field may have",
    ),
    (
        ("*config.json",),
        ("* gone", "*auto_map*", "*architectures*", "*id2label.? becomes text", "*label2id.*",
         "*_prob becomes a number", "*layer_norm_eps becomes a number", "*initializer_range becomes a number",
         "*transformers_version*", "digits", "*_token_id becomes *", "*hidden_act becomes text"),
        "another configuration that a model may have",
    ),
    (("recipe: yaml",), ("a date",), "a date is a text"),
    (("*trainer_state.json",), ("log_history*",), "another record of what was"),
)  # fmt: skip
