"""What a task is: columns, labels, rows of texts, words and questions, predictions and metrics."""
