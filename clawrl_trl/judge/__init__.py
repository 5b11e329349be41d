"""The judge: scores replies by what happened after them, and writes hints for the teacher.

The judge is a process of its own that meets the others only in the ledger: it claims turns whose next state is
known, and writes verdict and sample in one transaction. Nothing here is on the way of a chat.

Others use `factory.open_judge`, the types in `turn` (a judge's input, output and protocol), and what cleans hints in
`provenance`.
"""
