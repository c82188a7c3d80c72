"""Measures what attention heads do on real text, and shows the results in a table, plots and an HTML page."""
