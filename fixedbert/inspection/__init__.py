"""Measures what a checkpoint's attention heads do on real text and shows it in a table, plots and an HTML page."""
