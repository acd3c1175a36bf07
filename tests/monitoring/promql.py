"""Names of metrics in PromQL, and in what exporters tell."""

from __future__ import annotations

import re

FUNCTIONS = {
    "abs", "absent", "absent_over_time", "avg", "avg_over_time", "bottomk", "ceil", "changes", "clamp", "clamp_max", "clamp_min", "count",
    "count_over_time", "delta", "deriv", "exp", "floor", "histogram_quantile", "idelta", "increase", "irate", "label_join", "label_replace",
    "label_values", "last_over_time", "max", "max_over_time", "min", "min_over_time", "predict_linear", "quantile", "quantile_over_time",
    "rate", "resets", "round", "scalar", "sort", "sort_desc", "stddev", "sum", "sum_over_time", "time", "timestamp", "topk", "vector",
}  # fmt: skip
WORDS = {"and", "or", "unless", "bool", "offset", "inf", "nan"}
# In the order in which they are taken out: texts, matchers, ranges, lists of labels, offsets.
NOISE = (
    r'"(?:\\.|[^"\\])*"',
    r"\{[^{}]*\}",
    r"\[[^\]]*\]",
    r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)",
    r"\boffset\s+-?\w+",
)
# Metrics that a GB10 does not have: an alert on them never fires.
ABSENT = re.compile(r"nvidia_smi_memory_|nvidia_smi_.*power_limit|nvidia_smi_fan|DCGM_FI_DEV_FB_|DCGM_|clocks_.*mem")
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("", "_sum", "_count")}


def names(query: str) -> set[str]:
    """Return the metrics that a query asks for."""
    text = query
    for pattern in NOISE:
        text = re.sub(pattern, " ", text)
    words = set(re.findall(r"(?<![\w.$])[a-zA-Z_:][\w:]*", text))
    return {name for name in words if name not in FUNCTIONS and name.lower() not in WORDS}


def metric_names(text: str) -> set[str]:
    """Return the metrics of an exposition, by its TYPE lines."""
    metrics = set()
    for line in text.splitlines():
        match = re.match(r"# TYPE (\S+) (\w+)", line)
        if match:
            metrics |= {match.group(1) + suffix for suffix in SUFFIXES.get(match.group(2), ("",))}
    return metrics
