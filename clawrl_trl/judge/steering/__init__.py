"""Attempts to steer the judge: text that speaks to it, that nobody sees, or that nobody reads at sight.

The rest of the judge uses `talk` (`cut_verdict_talk`), `invisible` (`cut_invisible`) and `encoded`
(`holds_encoded_text`).
"""
