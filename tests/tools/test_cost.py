"""The picture of cost."""

from PIL import Image

from benchmarks.cost import draw_cost


def test_picture_of_cost(monkeypatch, tmp_path):
    """Guards: calculated and measured cost are drawn on the same axes."""
    growing = {"heads": ("h", (1, 2)), "tokens in a row": ("length", (8, 16))}
    monkeypatch.setattr("benchmarks.cost.GROWING", growing)
    draw_cost(tmp_path / "cost.png")
    with Image.open(tmp_path / "cost.png") as picture:
        assert picture.width > 1000
