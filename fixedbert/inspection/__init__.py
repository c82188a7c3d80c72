"""Measures what a checkpoint's attention heads do on real text. Reports it in a table, a plot and an HTML page."""
