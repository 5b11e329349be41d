"""Flags of TRL and transformers that have no effect on live training, each with the reason.

They are the fields of TRL's configuration that steer its own generation, its data set or its evaluation; here replies
come from the engine that serves the run, and samples from its ledger. A training script refuses them and leaves them
out of `--help`.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from clawrl_trl.errors import UserError

_GENERATION = "the trainer generates nothing, the engine that serves the run does"
_ENGINE = "it is for TRL's own vLLM; the engine that serves the run is named by --engine, and takes --vllm_args"
_CORRECTION = "it corrects the samples of TRL's own vLLM; see --importance_sampling"
_REWARD = "a reply has one score, that of the judge or of the environment"
_BATCH = "it follows from --per_device_train_batch_size and --gradient_accumulation_steps"
_REFERENCE = "the policy is held to the base model, which stays as it is"
_PRINTING = "the trainer generates nothing to show; see 'clawrl inspect'"
_EVALUATION = "the trainer evaluates nothing; see --eval_problems"
_LOADING = "samples are leased from the ledger for each step, and none is loaded ahead"
_LABELS = "the loss has no labels"
_SCRIPT = "it is for transformers' own scripts"

_IDLE = (
    (f"{_GENERATION}; for --env see --group_size", "num_generations num_generations_eval"),
    (_GENERATION, "top_p top_k min_p repetition_penalty generation_kwargs chat_template_kwargs cache_implementation"),
    (_GENERATION, "ds3_gather_for_generation max_tool_calling_iterations mask_truncated_completions"),
    (_GENERATION, "use_transformers_continuous_batching transformers_continuous_batching_config"),
    (_GENERATION, "use_transformers_paged"),
    (f"TRL would start a second vLLM in the trainer's process; {_ENGINE}", "use_vllm"),
    ("an engine that sleeps answers no chat; it is for TRL's own vLLM", "vllm_enable_sleep_mode"),
    (_ENGINE, "vllm_mode vllm_model_impl vllm_structured_outputs_regex"),
    (_ENGINE, "vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout vllm_group_port"),
    (f"{_ENGINE}; see --max_model_len", "vllm_max_model_length"),
    (_CORRECTION, "vllm_importance_sampling_correction vllm_importance_sampling_mode vllm_importance_sampling_cap"),
    (_CORRECTION, "vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min"),
    (_REWARD, "reward_weights multi_objective_aggregation scale_rewards"),
    (_BATCH, "generation_batch_size steps_per_generation"),
    (_REFERENCE, "sync_ref_model ref_model_mixup_alpha ref_model_sync_steps"),
    (_PRINTING, "log_completions log_multimodal num_completions_to_print log_unique_prompts"),
    ("it would publish people's chats", "log_completions_hub_repo"),
    (_EVALUATION, "eval_strategy eval_steps eval_delay eval_on_start eval_accumulation_steps eval_do_concat_batches"),
    (_EVALUATION, "eval_use_gather_object per_device_eval_batch_size prediction_loss_only include_for_metrics"),
    (_EVALUATION, "batch_eval_metrics load_best_model_at_end metric_for_best_model greater_is_better"),
    (_LOADING, "shuffle_dataset data_seed train_sampling_strategy length_column_name remove_unused_columns"),
    (_LOADING, "dataloader_drop_last dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers"),
    (_LOADING, "dataloader_prefetch_factor dataloader_in_order dataloader_multiprocessing_context ignore_data_skip"),
    (_LABELS, "label_names label_smoothing_factor"),
    (_SCRIPT, "do_train do_eval do_predict"),
    ("a live run has no epochs; see --max_steps, --interactions and --episodes", "num_train_epochs"),
    ("a live run has no known length to show", "disable_tqdm"),
)

IDLE_FLAGS = {name: reason for reason, names in _IDLE for name in names.split()}
"""Reasons by the names of the flags."""

LOSS_FLAGS = {
    "max_completion_length": "dr_grpo",
    **dict.fromkeys(("sapo_temperature_neg", "sapo_temperature_pos"), "sapo"),
    **dict.fromkeys(("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"), "vespo"),
}
"""Flags that one `--loss_type` of TRL reads and no other."""


def refuse_idle(values: Mapping[str, Any], reasons: Mapping[str, str], kinds: list[type]) -> None:
    """Reject values of flags without effect, unless they are the defaults.

    Raises:
        UserError: For the first of them.
    """
    for each in (each for kind in kinds for each in fields(kind)):
        if each.name in values and each.name in reasons:
            default = each.default if each.default_factory is MISSING else each.default_factory()
            # A file may spell out what is the default anyway: that misleads nobody.
            if values[each.name] != default:
                raise UserError(f"--{each.name} has no effect here: {reasons[each.name]}.")
