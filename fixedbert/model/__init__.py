"""The model. Its files are copied into every checkpoint and import nothing from the package except each other."""
