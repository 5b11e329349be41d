"""Evaluation of judges on labelled cases: `clawrl judge eval`.

Other packages use `cases` (`JudgeCase`, `read_cases`), `outcomes` (`judge_cases`, `CaseOutcome`, what is stored of
them), `summary` (`summarise`, the shares with their confidence intervals) and `comparison` (two judges on the same
cases).
"""
