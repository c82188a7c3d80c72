"""Lines of a benchmark's table: what was found, whether that is right, or why it was left out."""

from dataclasses import dataclass, field

WIDTH = 58


@dataclass
class Line:
    """`right` is None where there is no right or wrong; `values` are the numbers behind the text."""

    title: str
    found: str = ""
    right: bool | None = None
    left_out: str | None = None
    values: dict = field(default_factory=dict)

    def __str__(self) -> str:
        if self.left_out is not None:
            return f"{self.title:<{WIDTH}} left out: {self.left_out}"
        return f"{self.title:<{WIDTH}} {self.found}" + ("  WRONG" if self.right is False else "")
