"""Experimental parameters of the trainers: measured with the bundled model alone."""

from dataclasses import dataclass, field

KL_ESTIMATORS = ("sampled", "exact")


@dataclass
class ExperimentalConfig:
    r"""
    Experimental parameters of every trainer, from which [`AsyncGRPOConfig`] inherits.

    They were measured with the bundled model of four million parameters and with no other, and may change or go. The
    presets use some of them.

    Parameters:
        > Parameters that control the pull to the base model

        kl_estimator (`str`, *optional*, defaults to `"sampled"`):
            How the divergence is taken by which `beta` holds the policy to the base:

            - `"sampled"`: TRL's estimate, from the tokens that were sampled and at their temperature.
            - `"exact"`: over the whole vocabulary at every trained token and at temperature 1, the estimator of
              [Amini et al.](https://huggingface.co/papers/2504.10637). Its variance is smaller, so that `beta` may be
              larger; it costs two more products with the head.

        support_coef (`float`, *optional*, defaults to `0.0`):
            Coefficient of a second pull to the base, with `kl_estimator="exact"`: the same sum with a slack, over the
            tokens alone that are likelier than with the base by more than `support_slack`. It keeps the policy off
            tokens that make no sense there and lets it choose freely among those that do.
        support_slack (`float`, *optional*, defaults to `5.0`):
            The slack, in nats; above 0.

        > Parameters that control credit

        baseline_window (`int`, *optional*, defaults to `0`):
            Scores of live turns, which have no group, are compared with those of the last so many trained ones: the
            baseline of [REINFORCE](https://doi.org/10.1007/BF00992696) as a moving average, in which missing ones
            count as 0. An approval among approvals then says little. It is never below 0: one more objection says as
            much as the first. Where none of them had a teacher, scores are all there is, and are compared with
            nothing, as with `0`: the advantage is the score.
    """

    kl_estimator: str = field(
        default="sampled",
        metadata={
            "help": "Experimental: how the divergence of --beta is taken: 'sampled' (TRL's estimate from the sampled "
            "tokens) or 'exact' (the whole vocabulary at every trained token, for two more products with the head)."
        },
    )
    support_coef: float = field(
        default=0.0,
        metadata={
            "help": "Experimental: coefficient of a second pull to the base, on those tokens alone that are likelier "
            "than with the base by more than --support_slack; needs --kl_estimator exact."
        },
    )
    support_slack: float = field(
        default=5.0,
        metadata={"help": "Experimental: how much likelier than with the base a token may be freely, in nats."},
    )
    baseline_window: int = field(
        default=0,
        metadata={
            "help": "Experimental: live turns' scores are compared with the mean of the last so many trained ones, if "
            "one of these had a teacher; 0: with nothing."
        },
    )

    def check_experimental(self) -> None:
        """Check the values.

        Raises:
            ValueError: If one is unknown, out of its range, or without effect beside another.
        """
        if self.kl_estimator not in KL_ESTIMATORS:
            raise ValueError(f"kl_estimator={self.kl_estimator!r} is unknown: use one of {KL_ESTIMATORS}")
        if self.support_coef < 0 or not self.support_slack > 0:
            raise ValueError(
                "support_coef can't be negative and support_slack must be above 0, got "
                f"{self.support_coef} and {self.support_slack}"
            )
        if self.support_coef and self.kl_estimator != "exact":
            raise ValueError(f"support_coef needs kl_estimator='exact', not {self.kl_estimator!r}; or set it to 0")
        if self.baseline_window < 0:
            raise ValueError(f"baseline_window can't be negative, got {self.baseline_window}")


@dataclass
class ExperimentalTeacherConfig:
    r"""
    Experimental parameters of the trainers with a teacher, from which [`OPDConfig`] inherits.

    Parameters:
        opd_accepted_prefix (`bool`, *optional*, defaults to `False`):
            Weigh each token's term by the probability that the teacher accepts all tokens before it, as in speculative
            sampling (see [`~clawrl_trl.credit.accepted_prefix`]): what the teacher says about the rest of a reply that
            it would have begun otherwise counts little.
    """

    opd_accepted_prefix: bool = field(
        default=False,
        metadata={
            "help": "Experimental: weigh each token's term by the probability that the teacher accepts all tokens "
            "before it, as in speculative sampling."
        },
    )
