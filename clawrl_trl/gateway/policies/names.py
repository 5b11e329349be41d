"""Model names that clients may ask for, and the policy versions they stand for."""

from collections.abc import Collection, Mapping, Sequence

from clawrl_trl.gateway.errors import invalid
from clawrl_trl.gateway.policies.version import Version
from clawrl_trl.policy_names import BASE_MODEL, parse_policy_name

LONGEST_REPEATED_NAME = 100
"""Characters of an unknown name that an error repeats."""


class ModelNames:
    """The names that mean the serving version, beside those of single versions.

    Args:
        aliases (`Sequence[str]`): Names of the serving version, the first for those who ask for none.
        any_name (`bool`, defaults to `False`): Every unknown name means it too, but for those of policy versions.
    """

    def __init__(self, aliases: Sequence[str], *, any_name: bool = False) -> None:
        self.aliases, self._any_name = tuple(aliases), any_name

    def list_names(self, versions: Mapping[int, Version]) -> list[str]:
        """List every model name that has a meaning of its own, the aliases first."""
        return [*self.aliases, *(version.name for _, version in sorted(versions.items()))]

    def resolve(
        self,
        name: str | None,
        versions: Mapping[int, Version],
        serving: Version,
        pruned: Collection[int] = (),
    ) -> Version:
        """Return the version a model name stands for.

        Args:
            name (`str`, *optional*): The name; `None` if the request has none.
            versions (`Mapping[int, Version]`): The versions that can be asked for.
            serving (`Version`): The one that serves.
            pruned (`Collection[int]`, defaults to none): Versions whose weights were removed from the disk.

        Raises:
            ApiError: 404 in OpenAI's shape that lists what exists.
        """
        if name is None or name in self.aliases:
            return serving
        # Names of versions mean themselves even with `any_name`: a pinned version must not turn into the newest
        # unseen.
        number = 0 if name == BASE_MODEL else parse_policy_name(name)
        if number is None and self._any_name:
            return serving
        if number is None or number not in versions:
            message = self._explain_unknown(name, number, versions, number in pruned)
            raise invalid(message, param="model", status=404, code="model_not_found")
        return versions[number]

    def _explain_unknown(self, name: str, number: int | None, versions: Mapping[int, Version], is_pruned: bool) -> str:
        excerpt = name[:LONGEST_REPEATED_NAME]
        # The base always exists; an engine that holds another whole model in its place can't be asked for it.
        absence = "is not in the engine" if number == 0 else "was pruned" if is_pruned else "does not exist"
        explanation = f"The model {excerpt!r} {absence}; there are: {', '.join(self.list_names(versions))}."
        if number is not None:
            return explanation
        # The remedy is pasted into a shell, and a name with a line break in it would be two commands.
        names = ",".join([*self.aliases, excerpt.replace("\n", " ")])
        return f"{explanation} Serve it with --served_model_name {names}, or any name with --any_model_name."
