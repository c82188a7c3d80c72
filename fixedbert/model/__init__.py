"""The model. Its files travel with every checkpoint and import nothing of the package but each other."""
