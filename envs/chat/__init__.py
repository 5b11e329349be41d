"""The chat environments: a simulated user (`env.ChatEnv`) and recorded chats (`ledger_env.LedgerEnv`).

`personas` are simulated users with scripted words, `llm_persona` those whose words come from a language model;
`evaluation` scores first replies on held-out problems.
"""
