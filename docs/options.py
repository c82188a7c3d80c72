"""
Writes docs/options.md from fixedbert/options.py.

    python docs/options.py
"""

from collections import Counter
from pathlib import Path

from fixedbert_cli import commands, values

PAGE = Path(__file__).with_suffix(".md")
START = """# Options

Each command is `fixedbert COMMAND --option VALUE ...`. In [Python](reference.md), it is a function that takes the same
options as keyword arguments. Options without `--` are positional: pass the value without a name. For a list, pass one
or more values, separated by spaces. `--option` without a value means `--option true`. If no default is given, an
option that is true or false is false, and any other option is not set.

[fixedbert/options.py](../fixedbert/options.py) defines the options, and `python docs/options.py` writes this page.
"""
TRAINING_ARGUMENTS = "https://huggingface.co/docs/transformers/main_classes/trainer#transformers.TrainingArguments"
RECIPE = f"""The command also accepts the arguments of transformers' [TrainingArguments]({TRAINING_ARGUMENTS}).
The first argument can be a recipe: a YAML or JSON file with options. Options on the command line take precedence.
"""
GUIDES = {  # the page that explains each command
    "pretrain": "[Pretraining](pretraining.md)",
    "glue": "[Fine-tuning](fine_tuning.md)",
    "squad": "[Fine-tuning](fine_tuning.md#squad)",
    "convert": "[Converting](converting_and_publishing.md)",
    "shrink": "[Faster inference](faster_inference.md#5-shrink-the-model)",
    "compare": "[Faster inference](faster_inference.md)",
    "export": "[Loading and serving](loading_and_serving.md#serve-a-graph-without-pytorch)",
    "push": "[Publishing](converting_and_publishing.md#publish-a-model)",
    "inspect": "[Inspecting heads](inspecting_heads.md)",
}


def table(members) -> str:
    """Returns the table of a group of options."""
    lines = ["| option | value | default | meaning |", "|---|---|---|---|"]
    for each in members:
        name = f"`{each.name}`" if each.positional else f"`--{each.name}`"
        default = "required" if each.required else each.default
        lines.append(f"| {name} | {values.describe(each.hint)} | {default} | {each.help} |")
    return "\n".join(lines) + "\n"


def group(heading: str, rows: str, is_section: bool) -> str:
    """Returns a table with its heading. A note follows in parentheses."""
    title, _, note = heading.removesuffix(")").partition(" (")
    note = f"{note[:1].upper()}{note[1:]}.\n\n" if note else ""
    if is_section:
        return f"### {title}\n\n{note}{rows}"
    return f"**{title}.** {note}{rows}" if note else f"**{title}**\n\n{rows}"


def link(heading: str) -> str:
    """Returns a link to the section of a group."""
    title, _, _ = heading.removesuffix(")").partition(" (")
    return f"[{title}](#{title.lower().replace(' ', '-')})"


def page() -> str:
    """Returns the text of the page. Groups that several commands share are listed once, at the end."""
    groups = {
        name: [(heading, table(members)) for heading, members in commands.groups(command)]
        for name, command in commands.COMMANDS.items()
    }
    numbers = Counter(each for of_command in groups.values() for each in of_command)
    parts = [START]
    for name, command in commands.COMMANDS.items():
        summary = command.help[0].upper() + command.help[1:]
        parts.append(f"## {name}\n\n{summary}.\n\nPython: `fixedbert.{command.function}`. Guide: {GUIDES[name]}.\n")
        parts += [RECIPE] if command.trains else []
        parts += [group(*each, is_section=False) for each in groups[name] if numbers[each] == 1]
        if shared := [link(heading) for heading, rows in groups[name] if numbers[heading, rows] > 1]:
            parts.append(f"Shared options: {', '.join(shared)}.\n")
    parts.append("## Options of several commands\n")
    parts += [group(*each, is_section=True) for each, number in numbers.items() if number > 1]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
