"""The table of each benchmark's result, in markdown."""

from __future__ import annotations

from typing import Any

from benchmarks.report import conditions, cpu_with_instructions, markdown_table

# Ways to take drafts: greedy ones, by any rule that draws from the target's distribution, and drawn ones by three
# rules.
ACCEPTANCE_RULES = ("greedy drafts", "inverse, shared number", "race, shared numbers", "rejection sampling")


def offline_table(document: dict[str, Any]) -> str:
    """The table of an `offline` result in markdown, with the facts of the run under it."""
    rows = [("step", "engine", "median", "quartiles", "tokens/s", "of roofline", "ATOM is")]
    for result in document["results"]:
        for name, engine in result["engines"].items():
            low, high = engine["quartiles_ms"]
            rows.append(
                (
                    result["scenario"],
                    name,
                    f"{engine['median_ms']:.1f} ms",
                    f"{low:.1f} - {high:.1f}",
                    f"{engine['tokens_per_s']:.0f}",
                    f"{engine['roofline_share']:.0%}",
                    _ratio(result["times_faster_than"].get(name)),
                )
            )
    return markdown_table(rows) + "\n\n" + conditions(document)


def blocks_table(document: dict[str, Any]) -> str:
    """The table of a `blocks` result in markdown, with the median of all ratios and the facts of the run under it."""
    others = [*dict.fromkeys(name for result in document["results"] for name in result["times_faster_than"])]
    rows = [("model", "step", "atom", *(cell for name in others for cell in (name, "ATOM is")))]
    for result in document["results"]:
        cells = [result["block"], result["scenario"], f"{result['engines']['atom']['median_ms']:.1f} ms"]
        for name in others:
            other = result["engines"].get(name)
            cells += [f"{other['median_ms']:.1f} ms", _ratio(result["times_faster_than"][name])] if other else ["", ""]
        rows.append(tuple(cells))
    summary = f"Median of the ratios: {document['median_ratio']:.2f}, lowest {document['lowest_ratio']:.2f}."
    return markdown_table(rows) + "\n\n" + summary + " " + conditions(document)


def overhead_table(document: dict[str, Any]) -> str:
    """The table of an `overhead` result in markdown, with the facts of the run under it."""
    has_processes = any("process" in result for result in document["results"])
    heads = ("in a process", "added") if has_processes else ()
    rows = [("batch", "sampling", "median of a step", "quartiles", *heads)]
    for result in document["results"]:
        low, high = result["quartiles_ms"]
        row = [
            str(result["batch_size"]),
            result["sampling"],
            f"{result['median_ms']:.2f} ms",
            f"{low:.2f} - {high:.2f}",
        ]
        if has_processes:
            row += [f"{result['process']['median_ms']:.2f} ms", f"{result['process']['added_ms']:.2f} ms"]
        rows.append(tuple(row))
    return markdown_table(rows) + "\n\n" + conditions(document)


def http_table(document: dict[str, Any]) -> str:
    """The table of an `http` result in markdown, with the facts of the run under it."""
    rows = [("streams", "endpoint", "inline", "over HTTP", "a token more by", "overhead")]
    for result in document["results"]:
        inline, http = (f"{result['sides'][side]['median_ms']:.2f} ms" for side in ("inline", "http"))
        overhead = result["overhead"]
        share = f"{overhead['median']:.1%} ({overhead['lowest_turn']:.1%} - {overhead['highest_turn']:.1%})"
        added = f"{result['added_us_per_token']:.0f} us"
        rows.append((str(result["batch_size"]), result["endpoint"], inline, http, added, share))
    return markdown_table(rows) + "\n\n" + conditions(document)


def watched_table(document: dict[str, Any]) -> str:
    """The table of a `watched` result in markdown, with the facts of the run under it."""
    rows = [("streams", "unwatched", "watched", "a step more", "processor time more", "calls by themselves")]
    for result in document["results"]:
        unwatched, watched = (f"{result['sides'][side]['median_ms']:.2f} ms" for side in ("unwatched", "watched"))
        added, cpu = result["added"], result["added_cpu_ms"]
        share = f"{added['median']:.1%} ({added['lowest_turn']:.1%} - {added['highest_turn']:.1%})"
        more = f"{cpu['server']:.2f} ms in the server, {cpu['engine']:.2f} ms in the engine"
        apart = f"{sum(result['apart_us'].values()):.0f} us, {result['share_apart']:.2%}"
        rows.append((str(result["batch_size"]), unwatched, watched, share, more, apart))
    kinds = f"Watched: {', '.join(document['settings']['watch'])}. Both sides count; calls by themselves count too."
    return markdown_table(rows) + "\n\n" + kinds + " " + conditions(document)


def vllm_table(document: dict[str, Any]) -> str:
    """The table of a `vllm` result in markdown, with the facts of the run under it."""
    rows = [("step", "vLLM with", "median", "quartiles", "beside stock vLLM")]
    for result in document["results"]:
        for name, engine in result["engines"].items():
            low, high = engine["quartiles_ms"]
            ratio = _ratio(result["times_faster_than_vllm"].get(name))
            called = "nothing of ours" if name == "vllm" else name
            rows.append((result["scenario"], called, f"{engine['median_ms']:.1f} ms", f"{low:.1f} - {high:.1f}", ratio))
    compiled = (
        "Nobody compiles (`--enforce-eager`)." if document["settings"]["enforce_eager"] else "Stock vLLM compiles."
    )
    return markdown_table(rows) + "\n\n" + conditions(document) + " " + compiled


def masks_table(masks: dict[str, Any], steps: dict[str, Any] | None) -> str:
    """The table of `masks` and `mask-steps` results in markdown, with the facts of the runs under it."""
    added = {result["grammar"]: result for result in (steps or {}).get("results", ()) if result["num_steps"]}
    rows = [("grammar", "library", "compiled", "masks of the batch", "added to a step")]
    for result in masks["results"]:
        if not result.get("chosen"):
            continue
        step = added.get(result["grammar"])
        rows.append(
            (
                f"`{result['grammar']}`" if "{" in result["grammar"] else result["grammar"],
                result["library"],
                f"{result['compiled_ms']:.1f} ms",
                f"{result['median_ms']:.2f} ms",
                "" if step is None else f"{step['added_ms']:.2f} ms of {step['free_ms']:.1f}",
            )
        )
    [used] = [result["median_ms"] for result in masks["results"] if "library" not in result]
    machine, settings = masks["machine"], masks["settings"]
    commits = (
        f"commits {machine['commit']} and {steps['machine']['commit']}" if steps else f"commit {machine['commit']}"
    )
    facts = (
        f"Medians at batch {settings['batch_size']}; using masks on the logits takes {used:.2f} ms of what is added. "
        f"{cpu_with_instructions(machine)}, {machine['num_cores']} cores; {settings['model']}; "
        f"{commits}, {machine['date'][:10]}."
    )
    shown = rows if steps else [row[:-1] for row in rows]
    return markdown_table(shown) + "\n\n" + facts


def replicas_table(document: dict[str, Any]) -> str:
    """The table of a `replicas` result in markdown, with the facts of the run under it."""
    engines = document["settings"]["engines"]
    rows = [("streams", f"{engines} servers apart", f"{engines} engines behind one", "more by")]
    for result in document["results"]:
        apart, together = (f"{result['sides'][side]['median_ms']:.0f} ms" for side in ("apart", "together"))
        more = result["overhead"]
        share = f"{more['median']:.1%} ({more['lowest_turn']:.1%} - {more['highest_turn']:.1%})"
        rows.append((str(result["streams"]), apart, together, share))
    return markdown_table(rows) + "\n\n" + conditions(document)


def apart_table(document: dict[str, Any]) -> str:
    """The table of an `apart` result in markdown, with the facts of the run under it."""
    rows = [("streams", "side", "first token, median", "tokens/s", "longest gap in a stream", "text")]
    for result in document["results"]:
        text = "the same" if result["same_text"] else "DIFFERS"
        for name, side in result["sides"].items():
            first, gap = (f"{side[key]:.0f} ms" for key in ("ttft_ms", "longest_gap_ms"))
            rows.append((str(result["streams"]), name, first, f"{side['tokens_per_s']:.1f}", gap, text))
    link = "link: {gbit:g} Gbit/s, {delay_ms:g} ms".format(**document["settings"])
    deaths = [("killed", "streams", "answered", "text", "all ended after")]
    for death in document.get("deaths", ()):
        text = "the same" if death["same_text"] else "DIFFERS"
        streams, answered = (str(death[key]) for key in ("streams", "answered"))
        deaths.append((death["killed"], streams, answered, text, f"{death['ended_after_s']:.1f} s"))
    return f"{markdown_table(rows)}\n\n{markdown_table(deaths)}\n\n{link}; {conditions(document)}"


def offload_table(document: dict[str, Any]) -> str:
    """The table of an `offload` result in markdown, with the facts of the run under it."""
    rows = [("blocks are", "first token, median", "of computing them again (most)", "found", "tokens")]
    for result in document["results"]:
        share = result["of_computed_again"]
        rows.append(
            (
                result["side"],
                f"{result['median_ms']:.0f} ms",
                f"{share['median']:.3f}x ({share['highest']:.3f}x)",
                f"{min(result['cached_tokens'])} and more",
                "the same" if result["same_tokens"] else "DIFFER",
            )
        )
    return markdown_table(rows) + "\n\n" + conditions(document)


def served_table(document: dict[str, Any]) -> str:
    """The table of a `served` result in markdown, with the facts of the run under it."""
    rows = [
        (
            "prompts",
            "at a time",
            "tokens in, out",
            "output tokens/s",
            "first token, median (p99)",
            "per token, median (p99)",
        )
    ]
    for result in document["results"]:
        rows.append(
            (
                str(result["prompts"]),
                str(result["at_a_time"]),
                f"{result['tokens_in']}, {result['tokens_out']}",
                f"{result['output_throughput']:,.0f}",
                f"{result['median_ttft_ms']:.0f} ms ({result['p99_ttft_ms']:.0f})",
                f"{result['median_tpot_ms']:.2f} ms ({result['p99_tpot_ms']:.2f})",
            )
        )
    machine, settings = document["machine"], document["settings"]
    model = f"dummy weights of {settings['model']}'s layers" if settings["dummy"] else settings["model"]
    place = machine.get("device") or cpu_with_instructions(machine)
    facts = f"{place}; {model}; torch {machine['versions']['torch']}; "
    return markdown_table(rows) + f"\n\n{facts}commit {machine['commit']}, {machine['date'][:10]}."


def clients_table(document: dict[str, Any]) -> str:
    """The table of a `clients` result in markdown, with the facts of the run under it."""
    rows = [("requests at once", "metric", "atom bench serve", "vllm bench serve", "ratio (turns)")]
    for result in document["results"]:
        ratio, found = result["ratio"], result["clients"]
        turns = f"{ratio['of_medians']:.3f} ({ratio['lowest_turn']:.3f} - {ratio['highest_turn']:.3f})"
        at_once = str(result["at_a_time"])
        rows.append((at_once, result["metric"], f"{found['atom']:.2f}", f"{found['vllm']:.2f}", turns))
    return markdown_table(rows) + "\n\n" + _place(document)


def pace_table(document: dict[str, Any]) -> str:
    """The table of a `pace` result in markdown, with the facts of the run under it."""
    heads = (
        "streams",
        "events/s",
        "a token",
        "found: median (p99)",
        "found: events/s",
        "of a core",
        "server late (p99)",
    )
    rows: list[tuple[str, ...]] = [heads]
    for result in document["results"]:
        asked, found, late = result["asked"], result["found"], result["server_late_ms"]
        rows.append(
            (
                str(result["streams"]),
                f"{asked['events_per_s']:.0f}",
                f"{asked['tpot_ms']:.1f} ms",
                f"{found['median_tpot_ms']:.2f} ({found['p99_tpot_ms']:.2f}) ms",
                f"{found['events_per_s']:.0f}",
                f"{found['share_of_a_core']:.0%}",
                f"{late['median']:.2f} ({late['p99']:.2f}) ms",
            )
        )
    return markdown_table(rows) + "\n\n" + _place(document)


def _place(document: dict[str, Any]) -> str:
    """Where and of which commit a result is."""
    machine = document["machine"]
    name = machine.get("device") or cpu_with_instructions(machine)
    return f"{name}, {machine['num_cores']} cores; commit {machine['commit']}, {machine['date'][:10]}."


def busy_table(document: dict[str, Any]) -> str:
    """The table of a `busy` result in markdown, with the facts of the run under it."""
    names = list(document["results"][0]["sides"])
    first, second, third = names
    rows = [("busy programs", *names, "two beside one")]
    for result in document["results"]:
        cells = [f"{result['sides'][name]['median_ms']:.1f} ms" for name in names]
        share = result["sides"][second]["median_ms"] / result["sides"][first]["median_ms"]
        rows.append((str(result["programs"]), *cells, f"{share:.2f}x the time"))
    quiet = document["results"][0]["sides"]
    kept = quiet[third]["median_ms"] / quiet[second]["median_ms"]
    summary = f"On the quiet machine two threads have {kept:.2f} times the speed of two that always spin."
    return markdown_table(rows) + "\n\n" + summary + " " + conditions(document)


def speculation_table(document: dict[str, Any]) -> str:
    """The table of a `speculation` result in markdown, with the facts of the run under it."""
    rows = [("text", "batch", "tokens a second without", "with", "ratio (range)", "guesses accepted")]
    rows += [speculation_row(result) for result in document["results"]]
    differing = sum(result["num_outputs_that_differ"] for result in document["results"])
    compared = sum(result["num_outputs"] for result in document["results"])
    facts = f"{compared - differing} of {compared} outputs were equal. "
    settings = document["settings"]
    # Results from before other methods were measured do not name theirs.
    facts += f"Up to {settings['num_speculative_tokens']} guesses by {settings.get('method', 'ngram')}; "
    facts += f"{settings['rounds']} rounds. "
    return markdown_table(rows) + "\n\n" + facts + conditions(document)


def speculation_row(result: dict[str, Any]) -> tuple[str, ...]:
    """The cells of one text at one batch size."""
    speeds, (low, high) = result["tokens_per_s"], result["ratio"]["range"]
    return (
        f"{result['text']}, temperature {result['temperature']:g}, {result['max_tokens']} tokens",
        str(result["batch_size"]),
        f"{speeds['without']:.1f}",
        f"{speeds['with']:.1f}",
        f"{result['ratio']['median']:.2f} ({low:.2f} - {high:.2f})",
        f"{result['num_accepted_tokens']} of {result['num_draft_tokens']}",
    )


def acceptance_table(document: dict[str, Any]) -> str:
    """The table of an `acceptance` result in markdown, with the facts of the run under it."""
    rows = [("text", "drafts", "temperature", *ACCEPTANCE_RULES)] + [
        acceptance_row(result) for result in document["results"]
    ]
    machine, settings = document["machine"], document["settings"]
    facts = f"{settings['num_positions']} places of what {settings['model']} writes at temperature 1; "
    return markdown_table(rows) + f"\n\n{facts}commit {machine['commit']}, {machine['date'][:10]}."


def acceptance_row(result: dict[str, Any]) -> tuple[str, ...]:
    """The cells of one draft model at one temperature."""
    shares = (f"{result[rule]:.3f}" for rule in ACCEPTANCE_RULES)
    return (result["text"], result["draft"], f"{result['temperature']:g}", *shares)


def _ratio(ratio: dict[str, float] | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio['median']:.2f}x as fast ({ratio['lowest_turn']:.2f} - {ratio['highest_turn']:.2f})"
