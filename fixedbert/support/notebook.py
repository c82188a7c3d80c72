"""What commands return, as a notebook shows it."""

import base64
import html
from pathlib import Path


def as_html(text: str, picture: Path | None = None) -> str:
    """A text with its line breaks, and under it a picture, if there is one in that file."""
    shown = f"<pre>{html.escape(text)}</pre>"
    if picture is not None and picture.is_file():
        data = base64.b64encode(picture.read_bytes()).decode("ascii")
        shown += f'<img alt="{html.escape(picture.stem)}" src="data:image/png;base64,{data}">'
    return shown
