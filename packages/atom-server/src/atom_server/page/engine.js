// A view of the engine, from /metrics and, for administrators, /debug/requests. It asks only while somebody looks.

import { Plot } from "./plot.js";
import { ask } from "./server.js";

const SECONDS = 2;
const LENGTH = 150;
const find = (selector) => document.querySelector(selector);
const percent = (share) => `${(100 * share).toFixed(0)} %`;
const number = (value) => value.toFixed(value < 10 && value % 1 ? 1 : 0);
const time = (seconds) => (seconds < 1 ? `${(1000 * seconds).toFixed(0)} ms` : `${seconds.toFixed(1)} s`);

const plots = {
  speed: new Plot("Tokens/s", { names: [""], length: LENGTH, show: number }),
  requests: new Plot("Requests", { names: ["running", "waiting"], length: LENGTH, show: number }),
  cache: new Plot("KV cache", { names: [""], length: LENGTH, show: percent, least: 0.01 }),
  token: new Plot("Token", { names: ["p50", "p95"], length: LENGTH, show: time }),
  first: new Plot("First token", { names: ["p50", "p95"], length: LENGTH, show: time }),
};

let samples = [];
let wantsRequests = true;
let isAsking = false;

/** Starts to look whenever the view is shown. */
export function startEngine() {
  find("#plots").append(...Object.values(plots).map((plot) => plot.element));
  document.addEventListener("visibilitychange", look);
  document.addEventListener("atom-key", () => {
    wantsRequests = true;
    look();
  });
}

/** Asks the server again and again for as long as the view is seen. */
export async function look() {
  if (isAsking) return;
  isAsking = true;
  try {
    while (!find("#engine").hidden && document.visibilityState === "visible") {
      await update();
      await new Promise((resolve) => setTimeout(resolve, 1000 * SECONDS));
    }
  } catch (error) {
    // Whoever gives no key is not asked again until the view is opened anew.
    find("#machine").textContent = error.message;
  } finally {
    isAsking = false;
  }
}

async function update() {
  try {
    if (!samples.length) await describeMachine();
    take(new Sample(await (await ask("metrics")).text()));
    if (wantsRequests) showRequests(await (await ask("debug/requests")).json());
  } catch (error) {
    if (error.status === 401) throw error;
    if (error.status === 403) wantsRequests = false;
    find("#requests").hidden = true;
    find("#requests-note").textContent = error.status === 403 ? "They need the admin key." : error.message;
  }
}

async function describeMachine() {
  const { engine, engines } = await (await ask("server_info")).json();
  const several = engines.length > 1 ? `${engines.length} engines, ` : "";
  find("#machine").textContent = `${several}${engine.architecture} on ${engine.device} in ${engine.dtype}`;
}

function take(sample) {
  const last = samples.at(-1);
  samples = [...samples.slice(1 - LENGTH), sample];
  const [running, waiting] = [sample.sum("num_requests_running"), sample.sum("num_requests_waiting")];
  const used = sample.mean("kv_cache_usage_perc");
  const grown = (name) => sample.sum(name) - samples[0].sum(name);
  const lookedUp = grown("prefix_cache_queries_total");
  const hits = lookedUp > 0 ? percent(grown("prefix_cache_hits_total") / lookedUp) : "–";
  const now = { Running: running, Waiting: waiting, "KV cache": percent(used), "Prefix hits": hits };
  find("#now").replaceChildren(...Object.entries(now).map(([name, value]) => {
    const pair = document.createElement("div");
    pair.append(element("dt", name), element("dd", value));
    return pair;
  }));
  plots.requests.add(running, waiting);
  plots.cache.add(used);
  if (!last) return;
  plots.speed.add(sample.rate("generation_tokens_total", last));
  for (const [plot, name] of [["token", "inter_token_latency"], ["first", "time_to_first_token"]]) {
    plots[plot].add(...[0.5, 0.95].map((share) => sample.quantile(`${name}_seconds`, share, last)));
  }
}

function showRequests({ engine, requests, not_generating: others }) {
  find("#requests").hidden = !(requests.length + others.length);
  find("#requests-note").textContent = engine === "works" ? "" : `The engine ${engine}.`;
  if (!(requests.length + others.length)) find("#requests-note").textContent ||= "None.";
  const rows = [
    ...requests.map((one) => [
      one.age_s, Object.entries(one.phases).map(([phase, count]) => (count > 1 ? `${count} ${phase}` : phase)).join(", "),
      one.prompt_tokens, one.output_tokens, one.key, one.id,
    ]),
    ...others.map((one) => [one.age_s, `${one.phase} ${one.path}`, "", "", "", one.request_id]),
  ];
  find("#requests tbody").replaceChildren(...rows.map(([age, ...cells]) => {
    const row = document.createElement("tr");
    row.append(element("td", `${age.toFixed(1)} s`), ...cells.map((cell) => element("td", cell)));
    return row;
  }));
}

/** The numbers of /metrics at one time, whatever their prefix, of all engines. */
class Sample {
  constructor(text) {
    this.seconds = performance.now() / 1000;
    this.values = new Map();
    for (const line of text.split("\n")) {
      const found = /^[a-z]+:(\w+)(?:\{(.*)\})? (\S+)$/.exec(line);
      if (!found) continue;
      const values = this.values.get(found[1]) ?? [];
      const bound = /le="([^"]*)"/.exec(found[2])?.[1];
      this.values.set(found[1], [...values, { value: Number(found[3]), bound: bound?.replace("+Inf", "Infinity") }]);
    }
  }

  sum(name) {
    return (this.values.get(name) ?? []).reduce((sum, { value }) => sum + value, 0);
  }

  mean(name) {
    return this.sum(name) / (this.values.get(name)?.length || 1);
  }

  rate(name, last) {
    return Math.max(0, this.sum(name) - last.sum(name)) / (this.seconds - last.seconds);
  }

  /** The time that this share of what came since `last` did not exceed, by the buckets; null where nothing came. */
  quantile(name, share, last) {
    const [now, before] = [this.buckets(name), last.buckets(name)];
    const counts = [...now].map(([bound, count]) => [bound, count - (before.get(bound) ?? 0)]);
    const wanted = share * (counts.at(-1)?.[1] ?? 0);
    if (!(wanted > 0)) return null;
    const index = counts.findIndex(([, count]) => count >= wanted);
    const [lower, below] = index ? counts[index - 1] : [0, 0];
    const [upper, count] = counts[index];
    return upper === Infinity ? lower : lower + ((upper - lower) * (wanted - below)) / (count - below);
  }

  buckets(name) {
    const counts = new Map();
    for (const { value, bound } of this.values.get(`${name}_bucket`) ?? []) {
      counts.set(Number(bound), (counts.get(Number(bound)) ?? 0) + value);
    }
    return counts;
  }
}

function element(name, text) {
  return Object.assign(document.createElement(name), { textContent: text });
}
