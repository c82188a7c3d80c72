"""Inspection: what the heads of a checkpoint do with real text, in numbers, a picture and a page."""
