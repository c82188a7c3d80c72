import fixedbert  # noqa: F401  before torch, whose threads then spin no longer than in training, for both sides
