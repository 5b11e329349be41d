"""Terms of the losses, as functions of tensors.

The trainers use them: log-probabilities (`logprobs`, `lm_head`), the pull to the base model (`kl`), distillation over
candidates (`topk`), importance weights (`importance`) and means over a step (`averaging`). Shapes are in each
docstring; B sequences, T tokens, V vocabulary, K candidates.
"""
