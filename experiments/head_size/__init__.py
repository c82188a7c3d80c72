"""What a head size can express: theorems in numbers, and tasks with a predicted threshold."""
