"""Terms of the losses, as functions of tensors: log-probabilities, KL to the base model, distillation, weights."""
