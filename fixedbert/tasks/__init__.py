"""The flows from data to a trained model: pretraining, GLUE and other texts, SQuAD and other questions."""
