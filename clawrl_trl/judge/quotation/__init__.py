"""The owner's own words in a message that may hold quotations, pasted pages and other people's texts.

The rest of the judge uses `own_words` (`extract_own_words`, `OwnWords`) and the pattern of a chat export's line in
`patterns`.
"""
