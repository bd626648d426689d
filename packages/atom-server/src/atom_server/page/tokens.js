// A model's text, token by token where probabilities were asked for. Text is only ever set as text, never as HTML.

const alternatives = document.querySelector("#alternatives");
const entries = new WeakMap();
const BOUNDS = [0.05, 0.25, 0.5, 0.9];

/** Text that grows at its end inside `element`; its tokens become elements as soon as their text is there. */
export class TokenText {
  constructor(element) {
    this.element = element;
    this.rest = document.createTextNode("");
    this.waiting = [];
    this.decoder = new TextDecoder();
    element.append(this.rest);
  }

  /** Appends `text`; `tokens` are the server's logprobs. Either may come before the other. */
  add(text, tokens) {
    this.rest.data += text;
    for (const token of tokens) {
      // A character may be spread over several tokens: the last of them shows it.
      const spelt = this.decoder.decode(new Uint8Array(token.bytes), { stream: true });
      if (spelt) this.waiting.push([spelt, token]);
    }
    while (this.waiting.length && this.rest.data) {
      const [spelt, token] = this.waiting[0];
      const rest = this.rest.data;
      // The space before the first word may be gone.
      const shown = rest.startsWith(spelt) ? spelt : spelt.trimStart();
      if (shown && rest.startsWith(shown)) this.append(shown, token);
      else if (spelt.startsWith(rest)) break;
      this.waiting.shift();
    }
  }

  append(text, token) {
    const span = document.createElement("span");
    const probability = Math.exp(token.logprob);
    span.className = `token p${BOUNDS.filter((bound) => probability >= bound).length}`;
    span.textContent = text;
    // One stop of the Tab key for each answer; arrows go on from there.
    span.tabIndex = this.element.querySelector(".token") ? -1 : 0;
    entries.set(span, token);
    this.element.insertBefore(span, this.rest);
    this.rest.data = this.rest.data.slice(text.length);
  }
}

/** Shows the alternatives of the token under the pointer or the focus, and moves between tokens by arrows. */
export function explainTokens(messages) {
  const onToken = (action) => ({ target }) => {
    if (target instanceof Element && target.matches(".token")) action(target);
  };
  messages.addEventListener("pointerover", onToken(show));
  messages.addEventListener("focusin", onToken(show));
  messages.addEventListener("pointerout", onToken(hide));
  messages.addEventListener("focusout", onToken(hide));
  messages.addEventListener("scroll", hide);
  messages.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: "previousElementSibling", ArrowRight: "nextElementSibling" }[event.key];
    const next = step && event.target.matches(".token") && event.target[step];
    if (!next) return;
    event.preventDefault();
    next.focus();
  });
}

function show(span) {
  const token = entries.get(span);
  const top = token.top_logprobs;
  const rows = top.some((other) => sameToken(other, token)) ? top : [...top, token];
  alternatives.replaceChildren(...rows.map((row) => {
    const line = document.createElement("div");
    const name = document.createElement("code");
    name.textContent = JSON.stringify(row.token);
    line.append(name, ` ${(100 * Math.exp(row.logprob)).toFixed(1)} %`);
    line.classList.toggle("chosen", sameToken(row, token));
    return line;
  }));
  alternatives.hidden = false;
  span.setAttribute("aria-describedby", alternatives.id);
  const [place, size] = [span.getBoundingClientRect(), alternatives.getBoundingClientRect()];
  const under = place.bottom + size.height + 8 < innerHeight;
  alternatives.style.left = `${Math.max(4, Math.min(place.left, innerWidth - size.width - 8))}px`;
  alternatives.style.top = `${under ? place.bottom + 4 : place.top - size.height - 4}px`;
}

function hide() {
  alternatives.hidden = true;
}

function sameToken(one, other) {
  return one.token === other.token && one.logprob === other.logprob;
}
