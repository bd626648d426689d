"""Results of the GPU as tables, and where they are saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.gpu.aims import LATENT_DECODE, aim_of, beside_ours, found_for, verdict
from benchmarks.gpu.floors import EXPERTS
from benchmarks.gpu.hosts import hosts_table
from benchmarks.gpu.models import MODELS
from benchmarks.gpu.profiles import IDLE, OTHER, PARTS
from benchmarks.report import markdown_table, with_commits

Result = dict[str, Any]
SUBJECTS = ("decode", "prefill", "offline", "start", "mixtures", "latent")
# Tables of settings of ours, by the labels of what was measured with them.
VARIANTS: dict[str, Callable[[str], bool]] = {
    "invariance": lambda label: "batch_invariant" in label,
    "modes": lambda label: "cudagraph_mode" in label or "level" in label,
}
# The cases of the kernel with enough to read that bandwidth counts.
LATENT_CASES = tuple(f"attention alone, decode {size}" for size in ("32 x 1k", "128 x 1k", "8 x 8k"))


def gpu_tables(document: dict[str, Any], kernels: Iterable[Result] = ()) -> dict[str, str]:
    """By the name of their marks in the docs, every table that the results fill.

    For each of `SUBJECTS` that is what was wanted and what came of it (of `kernels` too), and where the time goes.
    """
    results = document["results"]
    tables = {"figures": gpu_table(document)}
    tables["hosts"] = hosts_table(results)
    tables |= {name: variants_table(results, belongs) for name, belongs in VARIANTS.items()}
    for subject in SUBJECTS:
        mine = [result for result in results if subject_of(result) == subject]
        parts = [aims_table(mine, kernels if subject == "latent" else ()), profile_table(mine)]
        tables[subject] = "\n\n".join(filter(None, parts))
    return {name: table for name, table in tables.items() if table}


def subject_of(result: Result) -> str:
    """Under which of `SUBJECTS` a figure is discussed."""
    about, config = result["about"], MODELS.get(result["model"].partition(" ")[0], {})
    if "kv_lora_rank" in config:
        return "latent"
    if any(name in config for name in EXPERTS):
        return "mixtures"
    kind = about["of"] if about.get("kind") == "profile" else about.get("kind", "")
    return next((subject for subject in ("start", "offline", "prefill") if kind.startswith(subject)), "decode")


def gpu_table(document: dict[str, Any]) -> str:
    """Every figure of a `gpu` result in markdown, with the facts of the run under it."""
    rows = [("model", "figure", "atom", "vLLM", "atom / vLLM", "floor", "of it")]
    results = [result for result in document["results"] if _is_figure(result["about"])]
    for result in results:
        cells = {name: _cell(engine, result["unit"]) for name, engine in result["engines"].items()}
        ratio = result.get("ours_over_peer")
        rows.append(
            (
                result["model"],
                result["figure"],
                cells.get("atom", ""),
                cells.get("vllm", ""),
                "" if ratio is None else f"{ratio:.2f}",
                number(result["floor"], result["unit"]) if "floor" in result else "",
                _share_of_floor(result),
            )
        )
    failures = [
        f"{item['engine']} failed on {item['model']}: {item['failure'].splitlines()[-1].strip()}"
        for item in document.get("failures", ())
    ]
    return "\n\n".join([markdown_table(with_commits(rows, results, document)), conditions(document), *failures])


def _is_figure(about: dict[str, Any]) -> bool:
    """Not a part of one, and as the engines come."""
    return about.get("kind") != "profile" and "with" not in about


def aims_table(results: Iterable[Result], kernels: Iterable[Result] = ()) -> str:
    """What was wanted of each figure, and what came of it; empty where nothing was measured of it."""
    rows: list[tuple[str, ...]] = [("model", "figure", "must", "aim", "found", "")]
    results = list(results)
    for result in results:
        if (aim := aim_of(result["model"], result["about"])) is None or (found := found_for(result, aim)) is None:
            continue
        unit = " x vLLM" if aim.over_peer else f" {result['unit']}"
        values = (f"{value:.2f}{unit}" for value in (aim.must, aim.aim, found))
        where = ", quick host" if "quick_host" in result else ""
        rows.append((result["model"], result["figure"] + where, *values, verdict(found, aim)))
    for result, aim, found, what in beside_ours(results):
        values = (f"{value:.2f} x {what}" for value in (aim.must, aim.aim, found))
        rows.append((result["model"], result["figure"], *values, verdict(found, aim)))
    for result in kernels:
        if result["operator"] == "latent_attention" and result["case"] in LATENT_CASES and "failure" not in result:
            bounds = (LATENT_DECODE.must, LATENT_DECODE.aim, result["copy_share"])
            shares = (f"{share:.1%} of copy rate" for share in bounds)
            what = f"latent {result['case']}"
            rows.append((result["model"], what, *shares, verdict(result["copy_share"], LATENT_DECODE)))
    return markdown_table(rows) if len(rows) > 1 else ""


def variants_table(results: list[Result], belongs: Callable[[str], bool]) -> str:
    """Figures as they come and with other settings of ours, for the settings that belong together.

    Beside a value stands how often it is the one as it comes, where both are of one commit.
    """
    labels = [label for label in dict.fromkeys(result["about"].get("with") for result in results) if label]
    labels = [label for label in labels if belongs(label)]
    by_name = {(result["model"], result["figure"]): result for result in results}
    rows: list[tuple[str, ...]] = [("model", "figure", "as it comes", *labels)]
    for result in results:
        others = [by_name.get((result["model"], f"{result['figure']}, {label}")) for label in labels]
        if not any(others):
            continue
        cells = ("" if other is None else _beside(other, result) for other in others)
        rows.append((result["model"], result["figure"], _beside(result), *cells))
    return markdown_table(rows) if len(rows) > 1 else ""


def _beside(result: Result, plain: Result | None = None) -> str:
    ours = result["engines"]["atom"]
    if "median" not in ours:
        return ours.get("skipped", "")
    cell = number(ours["median"], result["unit"])
    base = None if plain is None else plain["engines"]["atom"].get("median")
    if base and plain is not None and plain.get("commit") == result.get("commit"):
        cell += f" ({ours['median'] / base:.2f}x)"
    return cell


def profile_table(results: Iterable[Result]) -> str:
    """Where the time of steps and prefills goes: milliseconds, and their share."""
    rows: dict[tuple[str, str, str], dict[str, float]] = {}
    for result in results:
        if result["about"].get("kind") == "profile":
            for name, engine in result["engines"].items():
                key = (result["model"], result["about"]["of"], "vLLM" if name == "vllm" else name)
                rows.setdefault(key, {})[result["about"]["part"]] = engine["median"]
    parts = [part for part in (*PARTS, OTHER, IDLE) if any(part in times for times in rows.values())]
    lines: list[tuple[str, ...]] = [("model", "of", "engine", *parts)]
    for key, times in rows.items():
        whole = sum(times.values())
        cells = (f"{times[part]:.2f} ms, {times[part] / whole:.0%}" if part in times else "" for part in parts)
        lines.append((*key, *cells))
    return markdown_table(lines) if rows else ""


def conditions(document: dict[str, Any]) -> str:
    """One paragraph on where and with what the run was made."""
    machine = document["machine"]
    sentences = [
        f"{machine['device']}: copies {document['copy_tb_per_s']:.2f} TB/s and multiplies "
        f"{document['matmul_tflop_per_s']:.0f} TFLOP/s in the same run; {document['settings']['dtype']}, "
        "dummy weights; "
        f"torch {machine['versions']['torch']}; commit {machine['commit']}, {machine['date'][:10]}."
    ]
    engines = [engine for result in document["results"] for engine in result["engines"].items()]
    versions = sorted({engine["version"] for name, engine in engines if name == "vllm"})
    if versions:
        sentences.append(f"The peer is vLLM {', '.join(versions)}. Each turn is a process of its own.")
    sentences.append("In brackets the lowest and the highest value of all turns, where there are several.")
    return " ".join(sentences)


def _cell(engine: dict[str, Any], unit: str) -> str:
    if "median" not in engine:
        return engine.get("skipped", "")
    low, high = (number(value) for value in engine["range"])
    spread = "" if low == high else f" ({low} - {high})"
    return number(engine["median"], unit) + spread


def number(value: float, unit: str = "") -> str:
    """As tables have it: "0.94 ms", "20,390 tokens/s"."""
    digits = 0 if value >= 1000 else 2
    return f"{value:,.{digits}f} {unit}".rstrip()


def _share_of_floor(result: Result) -> str:
    ours = result["engines"].get("atom", {}).get("median")
    if ours is None or "floor" not in result:
        return ""
    share = ours / result["floor"] if result["about"]["kind"] == "offline" else result["floor"] / ours
    return f"{share:.0%}"
