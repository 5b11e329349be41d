"""Options of a training script, from its flags, its YAML file and a preset.

`examples/train.py` is one such script; another may share its flags. `arguments` has the script's own flags,
`selection` chooses the preset, `precision` the computing type, and `parse` reads them all at once. The arguments say
what to do, not how: nothing here loads a model or starts a process. A flag that could have no effect is refused.
"""

from clawrl_trl.script.arguments import CHAT, TEACHING, ScriptArguments
from clawrl_trl.script.parse import parse

__all__ = ["CHAT", "TEACHING", "ScriptArguments", "parse"]
