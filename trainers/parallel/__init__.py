"""Training in several processes: their group, weights that are divided among them, DeepSpeed's copies of weights.

The rest of the trainers sees whole tensors: a policy folder is the same whether one process wrote it or many.
"""
