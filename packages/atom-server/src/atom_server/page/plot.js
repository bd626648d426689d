// Small plots of the last minutes, as SVG.

const [WIDTH, HEIGHT] = [300, 60];
// A plot that has just begun is as wide as if it had so many values.
const FEWEST = 30;

/** A plot with a line for each of `names`, over the last `length` values; `show` makes a number readable. */
export class Plot {
  constructor(title, { names, length, show, least = 0 }) {
    Object.assign(this, { title, names, length, show, least });
    this.values = names.map(() => []);
    this.element = document.createElement("figure");
    this.caption = document.createElement("figcaption");
    this.svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    this.lines = names.map((_, index) => drawn("path", { class: `line${index}` }));
    this.svg.append(...this.lines);
    this.element.append(this.caption, this.svg);
    this.caption.textContent = `${title}:`;
  }

  /** Appends a value to each line; null where there is none, and the line goes straight on to the next. */
  add(...values) {
    this.values.forEach((line, index) => {
      line.push(values[index]);
      if (line.length > this.length) line.shift();
    });
    const most = Math.max(this.least, ...this.values.flat().map((value) => value ?? 0)) || 1;
    this.values.forEach((line, index) => this.lines[index].setAttribute("d", this.path(line, most)));
    const now = values.map((value, index) => `${this.names[index]} ${value === null ? "–" : this.show(value)}`.trim());
    const top = document.createElement("span");
    top.textContent = `up to ${this.show(most)}`;
    this.caption.replaceChildren(`${this.title}: `, ...now.map((text, index) => {
      return Object.assign(document.createElement("b"), { className: `line${index}`, textContent: text });
    }), top);
    this.svg.setAttribute("aria-label", `${this.title} in the last minutes: ${now.join(", ")} now, ${top.textContent}`);
  }

  path(line, most) {
    const step = WIDTH / (Math.max(line.length, FEWEST) - 1);
    const start = WIDTH - (line.length - 1) * step;
    const point = (value, index) => {
      return `${(start + index * step).toFixed(1)} ${(HEIGHT - 2 - (value / most) * (HEIGHT - 4)).toFixed(1)}`;
    };
    const points = line.map((value, index) => (value === null ? "" : point(value, index))).filter(Boolean);
    // A single value is a dot.
    return points.length ? `M${points.join("L")}h0.1` : "";
  }
}

function drawn(name, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}
