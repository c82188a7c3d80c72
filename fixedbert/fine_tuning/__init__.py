"""Fine-tuning: GLUE and other texts, SQuAD and other questions, sweeps, distillation from a teacher."""
