// The conversation: what the user asks, and answers as they come.

import { ask, events } from "./server.js";
import { explainTokens, TokenText } from "./tokens.js";

const find = (selector) => document.querySelector(selector);
const [form, prompt, messages, settings] = [find("#ask"), find("#prompt"), find("#messages"), find("#settings")];
const pictures = find("#pictures");
const NUM_ALTERNATIVES = 5;

let turns = [];
let attached = [];
let running = null;

/** Makes the chat answer to keys and buttons; `model()` is the name to ask for. */
export function startChat(model) {
  explainTokens(messages);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = prompt.value.trim();
    if (text && !running) answer(model(), text);
  });
  pictures.addEventListener("change", async () => {
    try {
      attached = await Promise.all([...pictures.files].map(urlOf));
    } catch (error) {
      say(error.message);
    }
  });
  prompt.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    form.requestSubmit();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !find("dialog[open]")) stop();
  });
  find("#stop").addEventListener("click", () => {
    stop();
    prompt.focus();
  });
  find("#new-chat").addEventListener("click", () => {
    stop();
    turns = [];
    messages.replaceChildren();
    say("");
    prompt.focus();
  });
  // A browser cannot point at a field that is folded away.
  settings.addEventListener("invalid", () => { settings.open = true; }, true);
}

/** Lets pictures be attached where the model sees. */
export function offerPictures(isSeeing) {
  find("#attach").hidden = !isSeeing;
}

function urlOf(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`${file.name} cannot be read.`));
    reader.readAsDataURL(file);
  });
}

function stop() {
  running?.abort();
}

async function answer(model, text) {
  const abort = (running = new AbortController());
  const urls = attached;
  const parts = urls.map((url) => ({ type: "image_url", image_url: { url } }));
  const asked = { role: "user", content: urls.length ? [...parts, { type: "text", text }] : text };
  const ofUser = appendMessage("user", "You");
  ofUser.append(...urls.map((src) => Object.assign(new Image(), { src, alt: "Picture" })), paragraph("text", text));
  const shown = new Answer(appendMessage("answer", model));
  prompt.value = "";
  setBusy(true);
  say("The model answers.");
  const conversation = turns;
  const before = [...conversation, asked];
  try {
    const body = JSON.stringify(requestOf(model, before));
    const headers = { "content-type": "application/json" };
    const response = await ask("v1/chat/completions", { method: "POST", headers, body, signal: abort.signal });
    for await (const chunk of events(response)) shown.take(chunk);
    say("The answer is complete.");
  } catch (error) {
    shown.fail(abort.signal.aborted ? "stopped" : error.message);
    say(abort.signal.aborted ? "Stopped." : error.message);
  }
  shown.end();
  // A question without any answer can be asked again; a conversation that was left behind takes no turns.
  if (shown.content) {
    conversation.push(asked, { role: "assistant", content: shown.content });
    pictures.value = "";
    attached = [];
  } else if (turns === conversation && !prompt.value) prompt.value = text;
  if (running === abort) {
    running = null;
    setBusy(false);
  }
}

function requestOf(model, conversation) {
  const fields = new FormData(form);
  const system = fields.get("system").trim();
  const body = {
    model,
    messages: system ? [{ role: "system", content: system }, ...conversation] : conversation,
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
  };
  for (const name of ["temperature", "top_p", "top_k", "max_tokens", "seed"]) {
    if (fields.get(name) !== "") body[name] = Number(fields.get(name));
  }
  return fields.has("logprobs") ? { ...body, logprobs: true, top_logprobs: NUM_ALTERNATIVES } : body;
}

/** One answer on the page: its reasoning folded, its text, and how quick it was. */
class Answer {
  constructor(element) {
    this.element = element;
    this.sent = performance.now();
    this.first = this.last = 0;
    this.numTokens = 0;
    this.content = "";
    this.ending = "";
    this.folded = document.createElement("details");
    this.folded.hidden = true;
    this.folded.append(Object.assign(document.createElement("summary"), { textContent: "Reasoning" }));
    const [reasoning, text] = [paragraph("text"), paragraph("text")];
    this.folded.append(reasoning);
    this.numbers = paragraph("numbers");
    element.append(this.folded, text, this.numbers);
    element.setAttribute("aria-busy", "true");
    [this.reasoning, this.text] = [new TokenText(reasoning), new TokenText(text)];
  }

  take({ choices, usage }) {
    const numTokens = usage?.completion_tokens ?? this.numTokens;
    if (numTokens > this.numTokens) {
      this.last = performance.now();
      this.first ||= this.last;
      this.numTokens = numTokens;
    }
    const isAtEnd = messages.scrollHeight - messages.scrollTop - messages.clientHeight < 40;
    for (const { delta, logprobs, finish_reason: reason } of choices) {
      const tokens = logprobs?.content ?? [];
      if (delta.reasoning_content) {
        this.folded.hidden = false;
        this.reasoning.add(delta.reasoning_content, tokens);
      } else {
        this.content += delta.content ?? "";
        this.text.add(delta.content ?? "", tokens);
      }
      if (reason === "length") this.ending = "no more tokens were allowed";
    }
    this.showNumbers();
    if (isAtEnd) messages.scrollTop = messages.scrollHeight;
  }

  fail(reason) {
    this.ending = reason;
    this.element.classList.toggle("failed", reason !== "stopped");
  }

  end() {
    this.showNumbers();
    this.element.setAttribute("aria-busy", "false");
    messages.scrollTop = messages.scrollHeight;
  }

  showNumbers() {
    const seconds = (this.last - this.first) / 1000;
    const parts = this.numTokens ? [`${this.numTokens} tokens`] : [];
    if (seconds > 0) parts.push(`${((this.numTokens - 1) / seconds).toFixed(1)} tokens/s`);
    if (this.first) parts.push(`first token after ${((this.first - this.sent) / 1000).toFixed(2)} s`);
    this.numbers.textContent = [...parts, this.ending].filter(Boolean).join(" · ");
  }
}

function appendMessage(kind, author) {
  find("#hint")?.remove();
  const article = document.createElement("article");
  article.className = kind;
  article.append(Object.assign(document.createElement("h2"), { textContent: author }));
  messages.append(article);
  messages.scrollTop = messages.scrollHeight;
  return article;
}

function paragraph(kind, text = "") {
  return Object.assign(document.createElement("div"), { className: kind, textContent: text });
}

function setBusy(isBusy) {
  find("#send").hidden = isBusy;
  find("#stop").hidden = !isBusy;
}

function say(text) {
  find("#status").textContent = text;
}
