"""What a model's shape costs."""
