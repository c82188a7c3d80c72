"""Conversion: any BERT to FixedHeadBert and back, every format of weights read, models made larger exactly."""
