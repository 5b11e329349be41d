"""The judge: scores replies by what happened after them, and writes hints for the teacher.

`python -m clawrl_trl.judge --run DIR` is a process that meets the others only in the ledger: it claims turns whose
next state is known, and writes verdict and sample in one transaction. No chat waits for it.

Other packages use `turn` (`JudgedTurn`, `Judgement`, the protocol `Judge`), `factory.open_judge`, `rules` and
`llm_judge` to examine a judge, and what cleans hints in `provenance`.
"""
