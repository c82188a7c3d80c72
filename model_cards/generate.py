"""
Writes a card for each preset beside this file.

    python model_cards/generate.py
"""

from pathlib import Path

from fixedbert import PRESETS
from fixedbert.model_card import preset_card


def main():
    for name in PRESETS:
        preset_card(name).save(Path(__file__).with_name(f"{name}.md"))


if __name__ == "__main__":
    main()
