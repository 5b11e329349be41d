"""The chat environments: a simulated user (`env.ChatEnv`) and recorded chats (`ledger_env.LedgerEnv`).

Other packages use these two, `personas` (simulated users with scripted words), `llm_persona` and `user_model` (those
whose words come from a language model), `persona_file` (either, by name or file), `evaluation` (scores of first
replies to held-out problems) and `problems` (the word problems, also those of the bundled model's recipe).
"""
