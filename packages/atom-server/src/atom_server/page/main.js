// Puts the page together: the choice of the model, the chat, the view of the engine, the key.

import { offerPictures, startChat } from "./chat.js";
import { look, startEngine } from "./engine.js";
import { ask, askForKey } from "./server.js";

const [models, engine, showEngine] = ["#model", "#engine", "#show-engine"].map((name) => document.querySelector(name));

function setEngine(isShown) {
  engine.hidden = !isShown;
  showEngine.setAttribute("aria-expanded", String(isShown));
  if (isShown) look();
}

async function listModels() {
  try {
    const { data } = await (await ask("v1/models")).json();
    models.replaceChildren(...data.map(({ id }) => new Option(id)));
    offerPictures(data.some((model) => model.input_modalities?.includes("image")));
  } catch (error) {
    document.querySelector("#status").textContent = error.message;
  }
}

showEngine.addEventListener("click", () => {
  setEngine(engine.hidden);
  if (!engine.hidden) engine.scrollIntoView({ block: "nearest" });
});
document.querySelector("#give-key").addEventListener("click", () => {
  askForKey("A key for all that this page asks for; an admin key shows the open requests too.").catch(() => {});
});
document.addEventListener("atom-key", () => { if (!models.length) listModels(); });
startChat(() => models.value);
startEngine();
listModels();
setEngine(matchMedia("(min-width: 60rem)").matches);
