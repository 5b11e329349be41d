"""Passes: a micro-batch is forwarded and differentiated in parts that fit a budget of tokens and the memory there is.

The trainers use `PassRunner`. Grouping (`grouping`), what a lack of memory is (`memory`), gradients of a pass that may
fail (`gradients`), metrics of several passes (`metrics`) and the rate of part batches (`step_rate`) have
a module each.
"""
