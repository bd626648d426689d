// What the page asks of its server. Every request carries the key, which lies in this tab's sessionStorage alone.

const KEY = "atom-key";
const dialog = document.querySelector("#key-dialog");
let asking = null;

/** An answer other than success; `status` is 0 where a stream failed under way. */
export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The response to a request that succeeds; asks the user for a key where the server wants one. */
export async function ask(path, options = {}) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const headers = key ? { ...options.headers, authorization: `Bearer ${key}` } : options.headers;
    const response = await fetch(path, { ...options, headers, cache: "no-store" });
    if (response.ok) return response;
    if (response.status !== 401) throw new Refusal(response.status, await reasonOf(response));
    // While this request was under way, another one may have got a key.
    if (sessionStorage.getItem(KEY) === key) {
      await askForKey(key ? "The server does not know this key." : "This server asks for a key.");
    }
  }
}

/** Shows the dialog once for all who wait for a key. It is a refusal if the user gives none. */
export function askForKey(why) {
  asking ??= new Promise((resolve, reject) => {
    document.querySelector("#key-why").textContent = why;
    const input = document.querySelector("#key");
    input.value = "";
    dialog.returnValue = "";
    dialog.addEventListener("close", () => {
      asking = null;
      if (dialog.returnValue !== "given") return reject(new Refusal(401, "The server asks for a key: none was given."));
      sessionStorage.setItem(KEY, input.value);
      input.value = "";
      document.dispatchEvent(new Event("atom-key"));
      resolve();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

/** The JSON of each server-sent event, up to [DONE]. */
export async function* events(response) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read();
    if (done) throw new Refusal(0, "The connection ended before the answer did.");
    const blocks = (rest + decoder.decode(value, { stream: true })).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      if (!block.startsWith("data: ")) continue; // a comment, by which proxies keep a connection open
      const data = block.slice("data: ".length);
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Refusal(0, event.error.message);
      yield event;
    }
  }
}

async function reasonOf(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return `The server answered ${response.status}.`;
  }
}
