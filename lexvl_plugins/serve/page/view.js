// Draws one column: the query's terms as chips, hits, their bars and maps. Texts enter the page as text nodes only.

const CHIPS = 12;
const PHONE = "(max-width: 820px)";
const BARS = 5;
const PALE = 0.78;

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "text") made.textContent = value;
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

// Orders texts by code points, as the engine does; < would order UTF-16 units, with U+10000 before U+E000.
export function compareTexts(first, second) {
  let place = 0;
  while (place < first.length && first[place] === second[place]) place++;
  return (first.codePointAt(place) ?? -1) - (second.codePointAt(place) ?? -1);
}

export function number(value) {
  return Number.isInteger(value) ? value.toLocaleString("en") : value.toPrecision(4);
}

// A score as percent of the greatest that a document could have, which queries of any size share; else as it is.
export function share(score, greatest) {
  return greatest ? `${Math.round((100 * score) / greatest)}%` : number(score);
}

export function inFull(score, greatest) {
  return greatest ? `score ${number(score)} of at most ${number(greatest)} (${share(score, greatest)})` : `score ${number(score)}`;
}

export function pictureUrl(index, id, side) {
  if (globalThis.lexvlSite) return globalThis.lexvlSite.picture(id);
  return "api/picture?" + new URLSearchParams({ index, doc_id: id, side });
}

// The part of the picture outside the map, and where the map is weak, turns pale; words have frames.
export function drawMap(frame, map) {
  frame.querySelectorAll("canvas, .mark").forEach((drawn) => drawn.remove());
  const image = frame.querySelector("img");
  if (!map || !image) return;
  const canvas = element("canvas", { width: 240, height: 240, "aria-hidden": "true" });
  const rows = map.grid.length, columns = map.grid[0].length;
  const small = element("canvas", { width: columns, height: rows });
  const pixels = small.getContext("2d").createImageData(columns, rows);
  map.grid.flat().forEach((share, place) => pixels.data.set([255, 255, 255, 255 * PALE * (1 - share)], 4 * place));
  small.getContext("2d").putImageData(pixels, 0, 0);
  const context = canvas.getContext("2d");
  const [left, top, right, bottom] = map.region.map((share) => share * 240);
  context.fillStyle = `rgba(255, 255, 255, ${PALE})`;
  context.fillRect(0, 0, 240, 240);
  context.clearRect(left, top, right - left, bottom - top);
  context.imageSmoothingQuality = "high";
  context.drawImage(small, left, top, right - left, bottom - top);
  frame.append(canvas);
  for (const [from, upper, to, lower] of map.boxes ?? []) {
    const mark = element("span", { class: "mark", "aria-hidden": "true" });
    Object.assign(mark.style, { left: `${100 * from}%`, top: `${100 * upper}%`, width: `${100 * (to - from)}%`, height: `${100 * (lower - upper)}%` });
    frame.append(mark);
  }
}

export function picture(index, id, side, alternative) {
  const image = element("img", { alt: alternative, src: pictureUrl(index, id, side), loading: "lazy", decoding: "async" });
  image.addEventListener("load", () => image.classList.toggle("tiny", image.naturalWidth < 174));
  image.addEventListener("error", () => image.replaceWith(element("span", { class: "note", text: "no picture" })));
  return element("span", { class: "frame" }, image);
}

export function bars(list, found, most, choose) {
  const width = (value) => `${Math.min(100, (100 * value) / Math.max(found.score, 1e-9))}%`;
  const shown = found.products.length > most ? found.products.slice(0, most - 1) : found.products;
  const items = shown.map((one) => {
    const bar = barOf(width(one.product));
    const title = `${one.term}: weight ${number(one.weight)} × impact ${number(one.impact)} = ${number(one.product)}`;
    const word = one.field ? one.term.slice(one.field.length + 1) : one.term;
    const item = element("li", { title }, bar, one.field ? element("span", { class: "field", text: one.field }) : "", element("span", { class: "term", text: word }),
      element("span", { class: "product", text: number(one.product) }));
    if (choose) item.append(element("button", { type: "button", "aria-label": title, onmouseenter: () => choose(one.term),
      onfocus: () => choose(one.term), onmouseleave: () => choose(null), onblur: () => choose(null) }));
    return item;
  });
  const left = found.products.slice(shown.length);
  if (left.length) items.push(summed(`${left.length} more terms`, left.reduce((sum, one) => sum + one.product, 0), width));
  if (found.rest) items.push(summed("BM25 and rounding", found.rest, width));
  list.replaceChildren(...items);
}

function barOf(width) {
  const bar = element("span", { class: "bar" });
  bar.style.width = width;
  return bar;
}

function summed(label, value, width) {
  return element("li", { class: "rest" }, barOf(width(value)), element("span", { class: "term", text: label }),
    element("span", { class: "product", text: number(value) }));
}

export class Column {
  // `events`: weight(term, value or null), map(hit, term), open(hit), more(), again(), ask(text)
  constructor(description, events) {
    this.description = description;
    this.events = events;
    this.hits = new Map();
    this.everyChip = false;
    this.ran = element("p", { class: "ran" });
    this.problem = element("p", { class: "problem" });
    this.summary = ""; // what is said aloud
    this.chips = element("ul", { class: "chips", "aria-label": `Terms of the query for ${description.name}` });
    this.related = element("p", { class: "related", hidden: true });
    this.list = element("ol", { class: "hits", "aria-label": `Hits of ${description.name}` });
    this.list.classList.toggle("texts", !description.pictures);
    this.example = element("p", { class: "related", hidden: true });
    this.more = element("button", { type: "button", class: "more", text: "more hits", hidden: true, onclick: () => events.more() });
    this.root = element("section", { "aria-label": description.name }, element("h2", { text: description.name }),
      this.ran, this.problem, this.chips, this.related, this.list, this.example, this.more);
    this.complain(description.problem);
    this.about = `${description.documents.toLocaleString("en")} documents, ${description.encoder}`;
    this.ran.textContent = this.about;
  }

  // Says what is wrong, with a button where the same may go well later.
  complain(reason, again = false) {
    const button = element("button", { type: "button", text: "try again", onclick: () => this.events.again() });
    this.problem.replaceChildren(reason, ...(again ? [" ", button] : []));
    this.summary = reason && `${this.description.name}: ${reason}`;
  }

  failed(reason, again) {
    this.complain(reason, again);
    this.example.hidden = true;
    this.ran.textContent = this.about;
    this.showChips([]);
    this.showHits([]);
    this.more.hidden = true;
  }

  // A query that finds something, where a column is empty.
  showExample(text) {
    this.example.hidden = !text;
    this.example.replaceChildren("for example: ", element("button", { type: "button", text, onclick: () => this.events.ask(text) }));
  }

  // Some pictures where there is no query; a click finds similar ones.
  showSample(ids) {
    this.list.replaceChildren(...ids.map((id) => element("li", { class: "sample" }, element("button", { type: "button", class: "picture",
      "aria-label": `Like ${id}`, onclick: () => this.events.similar(id) }, picture(this.description.name, id, "small", "")))));
  }

  show(answer, milliseconds, most) {
    this.complain(answer.warning || this.description.problem);
    const { encode_ms: encode, search_ms: search } = answer.timing;
    const ignored = answer.ignored.length ? `; not applied here: ${answer.ignored.join(", ")}` : "";
    const reading = { text: "words", terms: "terms", picture: "a picture", document: "a document", none: "" }[answer.read_as];
    this.ran.textContent = reading
      ? `${this.about}; read as ${reading}, encoded in ${encode.toFixed(1)} ms, searched in ${search.toFixed(1)} ms, here after ${milliseconds.toFixed(0)} ms${ignored}`
      : `${this.about}${ignored}`;
    this.showChips(answer.chips);
    this.showRelated(answer.related ?? [], answer.chips[0]?.given || 1);
    this.list.style.setProperty("--rows", Math.min(BARS, answer.chips.length));
    this.showHits(answer.hits, answer.greatest);
    this.more.hidden = answer.hits.length < most || most >= 100;
    if (answer.nearest) this.complain("nothing fits; nearest:");
    if (reading && !answer.hits.length && !answer.warning) this.complain("no document has a term of the query, or none matches the filters");
    const count = `${answer.hits.length} ${answer.hits.length === 1 ? "hit" : "hits"}`;
    this.summary = reading ? [`${this.description.name}: ${count}`, this.problem.textContent].filter(Boolean).join(", ") : "";
  }

  // On a phone, chips are folded into a button, so that the hits are in sight.
  showChips(chips) {
    const folded = matchMedia(PHONE).matches, most = folded ? 0 : CHIPS, changed = chips.filter((chip) => chip.weight !== chip.given).length;
    const key = JSON.stringify([chips.map((chip) => chip.term), this.everyChip, folded, folded && changed]);
    if (key !== this.chipKey) {
      this.chipKey = key;
      const shown = this.everyChip ? chips : chips.slice(0, most);
      const largest = Math.max(1, ...chips.map((chip) => chip.given), ...chips.map((chip) => chip.weight));
      const top = Math.max(10, 2 * largest);
      this.parts = new Map(shown.map((chip) => [chip.term, this.chip(chip.term, top)]));
      const left = chips.length - shown.length;
      const text = left === 0 ? "fewer terms" : left < chips.length ? `${left} more terms` : `terms and weights: ${left}${changed ? `, ${changed} changed` : ""}`;
      const all = chips.length > most
        ? [element("li", { class: "all" }, element("button", { type: "button", text, "aria-expanded": String(left === 0),
          onclick: () => { this.everyChip = !this.everyChip; this.showChips(this.shownChips); this.chips.querySelector(".all button")?.focus(); } }))] : [];
      this.chips.replaceChildren(...[...this.parts.values()].map((part) => part.root), ...all);
    }
    this.shownChips = chips;
    for (const chip of chips) this.parts.get(chip.term)?.set(chip);
  }

  chip(term, top) {
    const weigh = (value) => this.events.weight(term, value);
    const slider = element("input", { type: "range", min: 0, max: top, step: 1, "aria-label": `Weight of ${term}`,
      oninput: () => { out.textContent = slider.value; weigh(Number(slider.value)); },
      onkeydown: (event) => { if (event.key === "Delete" || event.key === "Backspace") { event.preventDefault(); weigh(0); } } });
    const out = element("span", { class: "weight", "aria-hidden": "true" }); // the slider says its value; <output> would say it twice
    const button = element("button", { type: "button", onclick: () => weigh(root.classList.contains("out") ? null : 0) });
    const root = element("li", { class: "chip" }, element("span", { class: "term", text: term }), slider, out, button);
    const set = ({ weight, given }) => {
      if (document.activeElement !== slider || Number(slider.value) !== weight) slider.value = weight;
      out.textContent = number(weight);
      root.classList.toggle("out", weight === 0);
      root.classList.toggle("changed", weight !== given && weight !== 0);
      button.textContent = weight === 0 ? "↺" : "×";
      button.setAttribute("aria-label", weight === 0 ? `Restore ${term}` : `Leave out ${term}`);
      slider.title = weight === given ? "" : `the encoder gave ${given}`;
    };
    return { root, set };
  }

  showRelated(terms, weight) {
    this.related.hidden = !terms.length;
    this.related.replaceChildren("also: ", ...terms.map((term) => element("button", { type: "button", text: term,
      "aria-label": `Add ${term}`, onclick: () => this.events.weight(term, weight) })));
  }

  showHits(hits, greatest = null) {
    const before = this.hits;
    this.hits = new Map(hits.map((hit) => [hit.doc_id, before.get(hit.doc_id) ?? this.card(hit)]));
    for (const hit of hits) {
      const card = this.hits.get(hit.doc_id);
      Object.assign(card, { hit, greatest });
      card.score.textContent = share(hit.score, greatest);
      card.score.title = inFull(hit.score, greatest);
      card.rank.textContent = hit.rank;
      if (card.frame) drawMap(card.frame, null);
    }
    const order = [...this.hits.values()].map((card) => card.root);
    if (order.some((root, place) => this.list.children[place] !== root) || order.length !== this.list.children.length) {
      const focused = document.activeElement;
      this.list.replaceChildren(...order);
      if (focused && focused !== document.activeElement && this.list.contains(focused)) focused.focus();
    }
  }

  card(hit) {
    const name = hit.title || hit.doc_id;
    const card = { hit, score: element("span", { class: "score" }), rank: element("span"), bars: element("ul", { class: "bars", "aria-label": `Terms of ${name}` }) };
    const map = (drawn) => this.events.map(card, drawn ? undefined : null);
    const open = { type: "button", onclick: () => this.events.open(card), onmouseenter: () => map(true), onfocus: () => map(true),
      onmouseleave: () => map(false), onblur: () => map(false), "aria-label": `Details of ${name}` };
    let content;
    if (hit.picture) {
      card.frame = picture(this.description.name, hit.doc_id, "small", "");
      content = element("button", { class: "picture", ...open }, card.frame);
    } else {
      const words = element("span", { class: "words" }, element("strong", { text: hit.title }),
        (hit.title ? " " : "") + (hit.text || (hit.title ? "" : hit.doc_id)));
      content = element("button", { class: "snippet", ...open, "aria-label": undefined }, words);
    }
    const id = element("span", { class: "id", title: hit.doc_id }, card.rank, ` ${hit.picture ? name : hit.doc_id}`);
    card.root = element("li", { class: "hit" }, content, element("div", { class: "name" }, id, card.score), card.bars);
    if (!this.description.terms) card.bars.remove();
    return card;
  }

  showProducts(found) {
    for (const one of found) {
      const card = this.hits.get(one.doc_id);
      if (card && Math.abs(card.hit.score - one.score) < 0.5) bars(card.bars, one, BARS);
    }
  }
}
