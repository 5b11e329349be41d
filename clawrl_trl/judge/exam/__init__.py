"""The exam of the base model as a judge, and the judge that follows its result: `--judge auto`.

Other packages use `auto_judge` (`AutoJudge`, `examining`), `result` (`ExamResult`) and `record` (the results that
a run folder holds). `groups` says which turns an exam's result holds for, `questions` which cases are asked.
"""
