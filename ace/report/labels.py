"""Names of the variants and of the grids for people.

A variant that has no name here, such as one that a user adds, gets a readable one from its own: ace_my_way -> "ACE, my way".
"""

SWEEP = ("01", "02", "04", "08")  # how K is written in the names of variants
LABELS = {
    "do_nothing": "Do nothing",
    "reconnect": "Reconnect lines",
    "greedy": "Greedy look-ahead",
    "sac": "SAC",
    "ace": "ACE",
    "ace_no_actor": "ACE without f_LLM",
    "ace_no_critic": "ACE without g_LLM",
    "ace_literal": "ACE, the paper's loss alone",
    "expert_sac": "SAC + expert",
    "random_refine": "SAC + random refinement",
    "frequency_refine": "SAC + lookup table",
    "dc_argmin": "DC look-ahead in the set",
    "llm_only": "Language model at every decision",
    "llm4teach": "LLM4Teach",
    "camel": "CAMEL",
    "camel_random": "CAMEL, random regions",
    "camel_frequency": "CAMEL, frequent substations",
    "camel_ace": "ACE + CAMEL",
    "camel_poor": "CAMEL, poor model",
    "also": "LLM-ALSO",
    "also_random": "LLM-ALSO, random configurations",
    "also_untested": "LLM-ALSO, untested",
    "also_pretrained": "LLM-ALSO, pretrained model",
    "also_sparse": "LLM-ALSO, sparse reward",
    "ace_guarded": "ACE, g_LLM tested in branches",
    # ablations; the tables show the setting itself with the label
    "ace_query_high": "ACE, f_LLM often",
    "ace_query_low": "ACE, f_LLM rarely",
    "ace_rbar_neg": "ACE, lower threshold",
    "ace_rbar_zero": "ACE, same threshold, all bad cases",
    "ace_rbar_pos": "ACE, higher threshold",
    "ace_no_finetune": "ACE without LoRA",
    "ace_lora_1": "ACE, LoRA rarely",
    "ace_lora_3": "ACE, LoRA often",
    "ace_critic_high": "ACE, g_LLM often",
    "ace_critic_low": "ACE, g_LLM rarely",
    "ace_select_state": "ACE, selection by state",
    "ace_select_action": "ACE, selection by action, described",
    "ace_select_action_index": "ACE, selection by action, bare index",
    **{f"ace_K{k}": f"ACE, K = {k[0]}.{k[1:]}" for k in SWEEP},
    **{f"ace_random_K{k}": f"ACE, random shaping, K = {k[0]}.{k[1:]}" for k in SWEEP},
    "ace_no_bad_case": "ACE without bad cases",
    "ace_rounds_1": "ACE, one round",
    "ace_shape_rl": "ACE, judgements in D_RL",
    "ace_no_recover": "ACE without recovery",
    "ace_pretrained": "ACE, pretrained model",
    "ace_pretrained_frozen": "ACE, pretrained model, no LoRA rounds",
    "pretrained_only": "Pretrained model alone",
    "ace_own_answers": "ACE, LoRA on own answers",
    "ace_random_lessons": "ACE, unjudged lessons",
    "ace_before": "ACE as up to 63061d2",
    "ace_rounds_3": "ACE, three rounds",
    "ace_sparse": "ACE, sparse reward",
    "ace_sparse_sac": "SAC, sparse reward",
    "ace_half_query_high": "ACE on half of the scenarios, f_LLM often",
    "ace_half_query_low": "ACE on half of the scenarios, f_LLM rarely",
    "ace_half_sac": "SAC on half of the scenarios",
    "ace_elsewhere": "ACE, new substation each round",
    "expert_100k": "SAC + expert, trained longer",
    "sac_40k": "SAC, 40,000 decisions",
    "ace_40k": "ACE, 40,000 decisions",
    "expert_40k": "SAC + expert, 40,000 decisions",
}
LONGER = {"sac_40k": "sac", "ace_40k": "ace", "expert_40k": "expert_sac"}
"""Methods trained for longer: they stand beside the same method in no figure."""

GRIDS = {"wcci2020": "WCCI 2020", "neurips2020": "NeurIPS 2020", "wcci2022": "WCCI 2022"}
WORDS = {"ace": "ACE", "sac": "SAC", "llm": "LLM", "dc": "DC", "lora": "LoRA", "api": "API"}


def grid_label(env):
    """Name of an environment for people; one that has none here keeps its own."""
    return GRIDS.get(env, env)


def method(variant):
    """The variant whose method this is: itself, unless it is that method trained for longer."""
    return LONGER.get(variant, variant)


def label(variant):
    """Name of a variant for people."""
    if variant in LABELS:
        return LABELS[variant]
    first, *rest = (WORDS.get(word, word) for word in variant.split("_") if word)
    if first in ("ACE", "SAC"):
        return ", ".join(filter(None, [first, " ".join(rest)]))
    return " ".join([first[0].upper() + first[1:], *rest])
