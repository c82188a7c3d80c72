"""
Sentences from Wikipedia with entity tags, for a tagger.

The tags come from rules, not from people. The first sentence of an article says whether its title is the name of a
person, a place or an organization. Other names are recognized by their first or last word, such as a first name or
"River", and later mentions of a person by the surname. Only sentences are used in which these rules explain all
capitalized words. The evaluation rows come from other articles than the training rows, and contain names that the
training rows do not.
"""

import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from fixedbert.data.sentences import split_document

TOKEN = re.compile(r"\w+(?:[-'’](?!s\b)\w+)*|['’]s\b|[^\w\s]")
MARKUP = re.compile(r"[<>|{}=\\]|http")
OPENING = 300  # characters of an article that tell what its title is
SENTENCE_BEGINS = '.?!:;"“(['  # a capital letter after these does not say that a word is a name
COUNTED = 2000  # characters of an article in which words are counted
TEXT = 8000  # characters of an article from which sentences are taken
PER_ARTICLE = 6  # sentences from an article
WORDS = range(5, 60)  # in a sentence
LONGEST = 6  # words in a title
INSIDE = {"of", "the", "de", "del", "la", "von", "van", "der", "and", "al", "bin", "du", "da", "di", "-", "'"}
HELD_OUT = 4  # one in so many names does not occur in the training rows

BORN = re.compile(
    r"\((?:[^()]{0,60}?[;,] )?(?:born|\d{1,2} \w+ \d{4} ?[–-]|\w+ \d{1,2}, \d{4} ?[–-]|c?\.? ?\d{4} ?[–-])"
)
VERB = re.compile(r"\b(?:is|was|are|were)\b")
KINDS = {
    "PER": "actor actress artist author bishop composer emperor engineer general guitarist king mathematician "
    "musician novelist painter philosopher physicist player poet politician pope queen saint scientist singer "
    "songwriter writer",
    "LOC": "city town village municipality commune district county province country state river lake island islands "
    "mountain suburb region township neighborhood neighbourhood hamlet peninsula community parish capital bay valley",
    "ORG": "company corporation university organization organisation band club party newspaper school college agency "
    "airline manufacturer team union bank broadcaster publisher institute society",
}
FIRST_WORDS = {"LOC": "Lake Mount Fort Cape San Santa Port", "ORG": "University"}
LAST_WORDS = {
    "LOC": "River Lake County Island Islands Street Valley Bay Mountains Mountain Province District Peninsula Sea "
    "Ocean Avenue Park Beach Desert Road City Township Hills Bridge Square",
    "ORG": "University College Company Corporation Party Club Association Institute Council Army Museum Orchestra Inc "
    "School Academy Bank Records Press Society Foundation Committee Department Ministry Times Group United FC "
    "Airlines Union Church Parliament Senate Court Navy Force Band Federation League",
}
DEMONYM = re.compile(r"[A-Z][a-z]+(?:an|ese|ish|ch|ss|eek|ic|li)")
NO_ENTITIES = (
    "January February March April May June July August September October November December Monday Tuesday Wednesday "
    "Thursday Friday Saturday Sunday I Mr Mrs Dr Sir"
)
KEYWORDS = {kind: re.compile(rf"\b(?:{'|'.join(words.split())})\b") for kind, words in KINDS.items()}
Row = dict[str, list[str]]


def tokens_of(text: str) -> list[str]:
    return TOKEN.findall(text)


def kind_of(title: str, text: str) -> str | None:
    """Returns what an article is about: PER, LOC, ORG or None for anything else."""
    opening = text[:OPENING]
    if opening.startswith(title.split()[0]) and BORN.search(opening[: len(title) + 120]):
        return "PER"
    if not (verb := VERB.search(opening)):
        return None
    found = {
        kind: match.start() for kind, words in KEYWORDS.items() if (match := words.search(opening[verb.end() :][:80]))
    }
    return min(found, key=lambda kind: found[kind]) if found else None


def name_of(title: str) -> tuple[str, ...]:
    """Returns the words of a title, without a remark in parentheses."""
    return tuple(tokens_of(title.split(" (")[0].split(",")[0]))


def is_usable(name: Sequence[str], kind: str) -> bool:
    """Whether a title is a name that is not too long. Single words and acronyms are not used as names of persons."""
    capitalized = all(is_capitalized(token) or token in INSIDE for token in name)
    if not name or name[0] == "The" or len(name) > LONGEST or not is_capitalized(name[0]) or not capitalized:
        return False
    return kind != "PER" or (len(name) > 1 and not any(len(token) > 1 and token.isupper() for token in name[:1]))


def is_capitalized(token: str) -> bool:
    return token[0].isupper()


class Rules:
    """
    Names of all articles, and the words that other names begin or end with.

    Args:
        articles: Titles and texts.
    """

    def __init__(self, articles: Sequence[tuple[str, str]]):
        self.names: dict[tuple[str, ...], str] = {}
        firsts, adjectives, self.lower, self.upper = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
        for title, text in articles:
            for before, token in pairwise(tokens_of(text[:COUNTED])):
                if before not in SENTENCE_BEGINS:
                    (self.upper if is_capitalized(token) else self.lower).update([token.lower()])
            adjectives.update(re.findall(r"\b(?:is|was) an? ([A-Z]\w+) \w", text[:OPENING]))
            name, kind = name_of(title), kind_of(title, text)
            if kind and is_usable(name, kind):
                self.names[name] = kind
                if kind == "PER":
                    firsts.update(name[:1])
        self.names = {name: kind for name, kind in self.names.items() if len(name) > 1 or self.is_name(name[0])}
        self.first_names = {name for name, count in firsts.items() if count > 1}
        self.adjectives = {word for word, count in adjectives.items() if count > 3 and DEMONYM.fullmatch(word)}

    def is_name(self, token: str) -> bool:
        """Whether a word is usually capitalized in the middle of a sentence."""
        return self.upper[token.lower()] > 2 * self.lower[token.lower()]

    def tags(self, tokens: Sequence[str], surnames: set[str]) -> list[str] | None:
        """
        Returns a tag for each token, or None if the rules do not explain all capitalized words.

        Args:
            surnames: Surnames of the persons mentioned earlier in the article. Those of this sentence are added.
        """
        tags, position = ["O"] * len(tokens), 0
        while position < len(tokens):
            end, kind = self.entity_at(tokens, position, surnames)
            if kind is None:
                return None
            if kind != "O":
                tags[position:end] = [f"B-{kind}"] + [f"I-{kind}"] * (end - position - 1)
                if kind == "PER" and end - position > 1:
                    surnames.add(tokens[end - 1])
            position = end
        return tags

    def entity_at(self, tokens: Sequence[str], begin: int, surnames: set[str]) -> tuple[int, str | None]:
        """Returns the end and the kind of the entity at a position: O if there is none, None if it is unknown."""
        token = tokens[begin]
        if not is_capitalized(token) or token in NO_ENTITIES.split():
            return begin + 1, "O"
        end = end_of_capitalized(tokens, begin)
        run = tokens[begin:end]
        if begin == 0 and not self.is_name(token) and tuple(run) not in self.names:
            return begin + 1, "O"
        if len(run) == 1 and token in surnames and token not in self.adjectives:
            return end, "PER"
        if kind := self.names.get(tuple(run)) or (self.kind_of_run(run) if len(run) > 1 else None):
            return end, kind
        if token in self.adjectives:
            return begin + 1, "MISC"
        return end, None

    def kind_of_run(self, run: Sequence[str]) -> str | None:
        """Returns the kind of a name of several words by its first or last word."""
        for kind in ("ORG", "LOC"):
            if run[-1] in LAST_WORDS[kind].split() or run[0] in FIRST_WORDS[kind].split():
                return kind
        return "PER" if run[0] in self.first_names and len(run) < 4 else None


def end_of_capitalized(tokens: Sequence[str], begin: int) -> int:
    """Returns the end of a sequence of capitalized tokens, which may contain "of" or "de" between them."""
    end = begin + 1
    while end < len(tokens):
        if is_capitalized(tokens[end]):
            end += 1
        elif tokens[end] in ("of", "de", "von", "van") and end + 1 < len(tokens) and is_capitalized(tokens[end + 1]):
            end += 2
        else:
            break
    return end


def is_held_out(name: str) -> bool:
    return zlib.crc32(name.lower().encode()) % HELD_OUT == 0


def names_in(row: Row) -> list[str]:
    """Returns the names with tags in a row."""
    names: list[list[str]] = []
    for token, tag in zip(row["tokens"], row["ner_tags"], strict=True):
        if tag.startswith("B-"):
            names.append([token])
        elif tag.startswith("I-"):
            names[-1].append(token)
    return [" ".join(name) for name in names]


def tagged_articles(articles: Sequence[tuple[str, str]]) -> Iterator[list[Row]]:
    """Yields the rows of each article: sentences with at least one entity."""
    rules = Rules(articles)
    for title, text in articles:
        surnames: set[str] = set()
        if rules.names.get(name_of(title)) == "PER":
            surnames.add(name_of(title)[-1])
        rows: list[Row] = []
        for sentence in split_document(text[:TEXT]):
            tokens = tokens_of(sentence)
            if len(tokens) not in WORDS or tokens[-1] != "." or MARKUP.search(sentence):
                continue
            tags = rules.tags(tokens, surnames)
            if tags and len(rows) < PER_ARTICLE and any(tag != "O" for tag in tags):
                rows.append({"tokens": tokens, "ner_tags": tags})
        yield rows


def tagged_sentences(articles: Sequence[tuple[str, str]], count: int) -> tuple[list[Row], list[Row]]:
    """Returns at most `count` training rows, and a quarter as many evaluation rows from other articles."""
    training: list[Row] = []
    validation: list[Row] = []
    for number, rows in enumerate(tagged_articles(articles)):
        if number % 6 == 0:
            validation += rows
        else:
            training += [row for row in rows if not any(map(is_held_out, names_in(row)))]
        if len(training) >= count and len(validation) >= count // 4:
            break
    return training[:count], validation[: count // 4]
