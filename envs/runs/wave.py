"""Waves of episodes: the turns that are played at a time, all with one policy version or nearly so.

A turn may be trained `max_staleness` versions after it was sampled, and a version takes a fixed number of samples. So
of a wave only as many turns are trained as those versions take; what is beyond is played for nothing.
"""

from dataclasses import dataclass

from clawrl_trl.errors import UserError

LEAD = 2
"""Versions' worth of samples that may wait when a group begins: one in training, and the next."""


@dataclass(frozen=True)
class Wave:
    """The episodes that are under way at a time.

    Args:
        size (`int`): Episodes, in whole groups: a group's turns become samples when its last episode has ended.
        actions (`int`): Most actions of an episode, each a turn.
        group (`int`): Episodes of a group.
    """

    size: int
    actions: int
    group: int

    @property
    def turns(self) -> int:
        """Turns of the wave, if every episode takes all its actions."""
        return self.size * self.actions

    def find_publish_steps(self, step_samples: int, max_staleness: int) -> int:
        """Find the optimizer steps a version with which the wave is trained before it is stale.

        Args:
            step_samples (`int`): Samples of an optimizer step.
            max_staleness (`int`): Versions that a sample may be behind.
        """
        # One version less than the bound allows: when a wave begins, a version's worth may wait to be trained first.
        return max(1, -(-self.turns // (step_samples * max(1, max_staleness))))

    def find_lead(self, version_samples: int, max_staleness: int) -> int:
        """Find the versions' worth of samples that may wait when a group begins, so that the wave is trained in time.

        A wave that doesn't fit anyway gains nothing by waiting.
        """
        room = max_staleness + 1 - -(-self.turns // version_samples)
        return LEAD if room < 0 else min(LEAD, max(1, room))

    def check(self, step_samples: int, publish_steps: int, max_staleness: int) -> None:
        """Check that the whole wave can be trained.

        Raises:
            UserError: If a part of it would be dropped as stale, with values that would do.
        """
        version_samples = step_samples * publish_steps
        trained = version_samples * (max_staleness + 1)
        if self.turns <= trained:
            return
        remedies = [f"--publish_steps {self.find_publish_steps(step_samples, max_staleness)}"]
        groups = trained // (self.actions * self.group)
        if groups:
            remedies.append(f"--parallel_envs {groups * self.group}")
        if trained >= self.size:
            remedies.append(f"--env_max_steps {trained // self.size}")
        raise UserError(
            f"{self.size} episodes at a time of at most {self.actions} actions are {self.turns:,} turns, of which "
            f"{max_staleness + 1} versions of {version_samples} samples (--max_staleness {max_staleness}) would train "
            f"{trained:,} and drop the rest: use {' or '.join(remedies)}."
        )
