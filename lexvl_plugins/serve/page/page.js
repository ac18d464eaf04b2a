// The state of the page, its requests, and the link that reproduces it. `view.js` draws.

import { Column, bars, compareTexts, drawMap, element, inFull, number, picture, pictureUrl } from "./view.js";

const STEP = 24, MOST = 96, RANK_CONSTANT = 60, HOVER_MS = 120, PAUSE_MS = 80, QUIET_MS = 700;
const byId = (id) => document.getElementById(id);
const state = { q: "", as: "auto", where: "", cut: "", filters: [], weights: {}, like: null, picture: null, hits: STEP, mix: null };
const columns = [];
let description = { indexes: [], examples: [] };

// A published page answers its own requests (`static.js`), and its link is behind a #, which a disk allows.
const site = globalThis.lexvlSite;

async function request(path, body, signal) {
  if (site) return site.request(path, body);
  const options = body === undefined ? { signal } : { method: "POST", signal, body: body instanceof Blob ? body : JSON.stringify(body),
    headers: { "content-type": body instanceof Blob ? "application/octet-stream" : "application/json" } };
  const response = await fetch(path, options).catch((error) => {
    if (signal?.aborted) throw error;
    throw Object.assign(failure(`the server does not answer${navigator.onLine ? "" : ": this machine is offline"}`, true), { lost: true });
  });
  const found = await response.json().catch((error) => { if (signal?.aborted) throw error; return null; }); // a proxy may answer no JSON
  if (!response.ok || found === null) throw failure(found?.error ?? `the server answers ${response.status} ${response.statusText}`, response.status >= 500);
  return found;
}

// An error; `again` where the same request may go well later.
function failure(reason, again) {
  return Object.assign(new Error(reason), { again });
}

// --- what a screen reader says: one region, when the columns have come to rest

let saying = null;

function say() {
  clearTimeout(saying);
  saying = setTimeout(() => {
    const said = [byId("message").firstChild?.textContent, ...columns.map(({ column }) => column.summary)];
    byId("said").textContent = said.filter(Boolean).join("; ");
  }, QUIET_MS);
}

function tell(text, again) {
  byId("message").replaceChildren(...(text ? [text] : []), ...(again ? [" ", element("button", { type: "button", text: "try again", onclick: again })] : []));
  say();
}

// --- the link

function readLink() {
  const given = new URLSearchParams(site ? location.hash.slice(1) : location.search);
  const parsed = (key, otherwise) => { try { return JSON.parse(given.get(key)) ?? otherwise; } catch { return otherwise; } };
  Object.assign(state, { q: given.get("q") ?? "", as: ["text", "terms"].includes(given.get("as")) ? given.get("as") : "auto",
    where: given.get("where") ?? "", cut: given.get("cut") ?? "", like: given.get("like"), picture: given.get("picture"),
    hits: Math.min(Math.max(Number(given.get("hits")) || STEP, 1), MOST), mix: given.has("mix") ? Number(given.get("mix")) || 0 : null });
  const weights = parsed("weights", {}), filters = parsed("filters", []);
  state.weights = weights && typeof weights === "object" && !Array.isArray(weights) ? weights : {};
  state.filters = Array.isArray(filters) ? filters.filter((one) => one && typeof one.field === "string") : [];
}

function writeLink() {
  const given = new URLSearchParams();
  if (state.q) given.set("q", state.q);
  if (state.as !== "auto") given.set("as", state.as);
  for (const key of ["where", "cut", "like", "picture"]) if (state[key]) given.set(key, state[key]);
  if (state.hits !== STEP) given.set("hits", state.hits);
  if (state.mix !== null) given.set("mix", state.mix);
  const weights = Object.fromEntries(Object.entries(state.weights).filter(([, terms]) => Object.keys(terms).length));
  if (Object.keys(weights).length) given.set("weights", JSON.stringify(weights));
  if (state.filters.length) given.set("filters", JSON.stringify(state.filters));
  if (site) history.replaceState(null, "", `#${given}`);
  else history.replaceState(null, "", given.size ? `?${given}` : location.pathname);
}

// --- searches: one request of a column at a time, then the newest state

function question(index) {
  return { index, text: state.picture || state.like ? "" : state.q, read_as: state.as, picture: state.picture, like: state.like,
    weights: state.weights[index] ?? {}, where: state.where, filters: state.filters, min_score: state.cut, hits: state.hits };
}

class Searcher {
  constructor(column) {
    this.column = column;
    this.busy = this.again = false;
    this.answer = null;
  }

  async run() {
    if (this.busy) { this.again = true; return; }
    this.busy = true;
    this.products?.abort();
    const asked = question(this.column.description.name), started = performance.now();
    try {
      this.answer = await request("api/search", asked);
      this.column.show(this.answer, performance.now() - started, state.hits);
      const sample = this.answer.read_as === "none" && !this.answer.hits.length ? description.pictures?.[asked.index] ?? [] : [];
      if (sample.length) this.column.showSample(sample);
      const isEmpty = !this.answer.hits.length && !sample.length;
      this.column.showExample(isEmpty ? description.examples.find((text) => text !== asked.text) : undefined);
      if (!this.again) this.explain(asked, this.answer);
    } catch (error) {
      this.answer = null;
      this.column.failed(error.message, error.again);
    }
    say();
    this.busy = false;
    if (this.again) { this.again = false; this.run(); } else blend();
  }

  async explain(asked, answer) {
    if (!this.column.description.terms || !answer.hits.length) return;
    this.products = new AbortController();
    const { signal } = this.products;
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS)); // none for each letter of a word that is typed
    if (signal.aborted) return;
    try {
      this.column.showProducts(await request("api/products", { question: asked, doc_ids: answer.hits.map((hit) => hit.doc_id) }, signal));
    } catch (error) {
      if (error.name === "AbortError") return;
      this.column.complain(error.message, error.again);
      say();
    }
  }
}

function search() {
  for (const one of columns) one.searcher.run(); // first, so that nothing delays the requests
  tell(""); // what went wrong before this search
  writeLink();
  byId("examples").hidden = Boolean(state.q || state.picture || state.like);
}

function newQuery(changes) {
  Object.assign(state, { weights: {}, like: null, picture: null, hits: STEP }, changes);
  search();
  if (byId("query").value !== state.q) byId("query").value = state.q;
  showSent();
}

// --- maps

let hovering = null;

async function showMap(searcher, card, frame, term) {
  clearTimeout(hovering);
  hovering = null;
  if (term === null || !frame || !searcher.column.description.maps) { if (frame) drawMap(frame, null); return; }
  await new Promise((resolve) => { hovering = setTimeout(resolve, HOVER_MS); });
  const mine = hovering;
  try {
    const asked = { question: question(searcher.column.description.name), doc_id: card.hit.doc_id, term };
    const map = await request("api/map", asked);
    if (hovering === mine) drawMap(frame, map);
  } catch (error) {
    tell(error.message);
  }
}

// --- details of a hit

function openDetails(searcher, card) {
  const { hit } = card, index = searcher.column.description;
  byId("details-title").textContent = `${hit.rank}  ${hit.title || hit.doc_id}, ${inFull(hit.score, card.greatest)}`;
  const frame = hit.picture ? picture(index.name, hit.doc_id, "large", hit.title || hit.doc_id) : element("p", { text: hit.text });
  const list = element("ul", { class: "bars" }), note = element("p", { class: "note" });
  const facts = element("dl");
  for (const [key, value] of [["id", hit.doc_id], ...Object.entries(hit.metadata)]) {
    facts.append(element("dt", { text: key }), element("dd", { text: value }));
  }
  const similar = element("button", { type: "button", text: "search for similar ones",
    onclick: () => { byId("details").close(); newQuery({ q: "", like: hit.doc_id }); } });
  const right = element("div", {}, facts, similar, note, list);
  byId("details-body").replaceChildren(element("div", { class: "detail" }, element("div", {}, frame, hit.picture && hit.text ? element("p", { text: hit.text }) : ""), right));
  byId("details").showModal();
  if (!index.terms) return;
  const choose = index.maps && hit.picture ? (term) => showMap(searcher, card, frame, term) : undefined;
  request("api/products", { question: question(index.name), doc_ids: [hit.doc_id] }).then(([found]) => {
    note.textContent = `query weight × impact; ${found.products.length} products sum to ${number(found.score)}` + (choose ? "; a term shows where it is" : "");
    bars(list, found, Infinity, choose ?? (() => {}));
  }, (error) => { note.textContent = error.message; });
}

// --- both lists in one, by the ranks of each

function blend() {
  const [first, second] = columns;
  const column = blended;
  if (!column) return;
  const share = (state.mix ?? 50) / 100, scores = new Map();
  for (const [one, weight] of [[first, 1 - share], [second, share]]) {
    const { answer } = one.searcher;
    for (const hit of answer && !answer.nearest ? answer.hits : []) {
      const found = scores.get(hit.doc_id) ?? { hit, score: 0 };
      found.score += weight / (RANK_CONSTANT + hit.rank);
      scores.set(hit.doc_id, found);
    }
  }
  const order = [...scores.values()].filter((one) => one.score > 0)
    .sort((a, b) => b.score - a.score || compareTexts(a.hit.doc_id, b.hit.doc_id)).slice(0, state.hits);
  column.showHits(order.map(({ hit, score }, place) => ({ ...hit, rank: place + 1, score })), 1 / (RANK_CONSTANT + 1));
}

let blended = null;

function addBlend() {
  if (columns.length !== 2) return;
  const [first, second] = columns.map((one) => one.column.description);
  const about = { ...first, name: "both", terms: false, maps: false, problem: "", documents: first.documents, encoder: "weighted reciprocal ranks" };
  blended = new Column(about, { weight() {}, more() {}, map() {}, open: (card) => openDetails({ column: { description: first } }, card) });
  blended.card = (hit) => Column.prototype.card.call(Object.assign(Object.create(blended), { description: { ...about, name: first.name } }), hit);
  byId("mix-first").textContent = first.name;
  byId("mix-second").textContent = second.name;
  byId("blend").hidden = false;
  const slider = byId("mix");
  slider.value = state.mix ?? 50;
  const toggle = () => { blended.root.hidden = state.mix === null; };
  slider.addEventListener("input", () => { state.mix = Number(slider.value); toggle(); writeLink(); blend(); });
  byId("columns").append(blended.root);
  toggle();
}

// --- the field and its suggestions

const field = byId("query"), options = byId("suggestions");
let suggesting = 0;

function word() {
  const end = field.selectionStart ?? field.value.length;
  const begin = field.value.slice(0, end).search(/[^\s()]*$/);
  const text = field.value.slice(begin, end);
  const sign = /^[+-]/.test(text) ? 1 : 0;
  return { begin: begin + sign, end, text: text.slice(sign) };
}

async function suggest() {
  const index = description.indexes.find((one) => one.terms);
  const { text } = word(), mine = ++suggesting;
  if (!index || !text || /[":^]/.test(text)) return closeOptions();
  try {
    const terms = await request("api/suggest?" + new URLSearchParams({ index: index.name, prefix: text.slice(0, 100) }));
    if (mine !== suggesting || document.activeElement !== field) return;
    const offered = terms.filter((term) => term !== text).slice(0, 8);
    if (!offered.length) return closeOptions();
    const chosen = options.querySelector("[aria-selected=true]")?.textContent; // may have been chosen before this answer came
    options.replaceChildren(...offered.map((term, place) => element("li", { id: `suggestion-${place}`, role: "option",
      "aria-selected": String(term === chosen), text: term, onmousedown: (event) => { event.preventDefault(); take(term); } })));
    options.hidden = false;
    field.setAttribute("aria-expanded", "true");
    if (!offered.includes(chosen)) field.removeAttribute("aria-activedescendant");
    else field.setAttribute("aria-activedescendant", `suggestion-${offered.indexOf(chosen)}`);
  } catch { closeOptions(); }
}

function closeOptions() {
  suggesting++;
  options.hidden = true;
  options.replaceChildren();
  field.setAttribute("aria-expanded", "false");
  field.removeAttribute("aria-activedescendant");
}

function choose(step) {
  const items = [...options.children], now = items.findIndex((one) => one.getAttribute("aria-selected") === "true");
  const next = (now + step + items.length + (now < 0 && step < 0 ? 1 : 0)) % items.length;
  items.forEach((one, place) => one.setAttribute("aria-selected", String(place === next)));
  field.setAttribute("aria-activedescendant", items[next].id);
}

function take(term) {
  const { begin, end } = word();
  const written = /[\s()"+^:-]/.test(term) ? `"${term.replace(/(["\\])/g, "\\$1")}"` : term;
  const before = field.value.slice(0, begin) + written + " ";
  const value = before + field.value.slice(end).trimStart();
  closeOptions();
  newQuery({ q: value });
  field.setSelectionRange(before.length, before.length);
}

field.addEventListener("input", () => { newQuery({ q: field.value }); suggest(); });
field.addEventListener("blur", closeOptions);
field.addEventListener("keydown", (event) => {
  const open = !options.hidden, chosen = options.querySelector("[aria-selected=true]");
  if (open && (event.key === "ArrowDown" || event.key === "ArrowUp")) { event.preventDefault(); choose(event.key === "ArrowDown" ? 1 : -1); }
  else if (event.key === "Escape") { if (open) event.preventDefault(); closeOptions(); } // also those that are still to come
  else if (open && chosen && (event.key === "Enter" || event.key === "Tab")) { event.preventDefault(); take(chosen.textContent); }
});
byId("form").addEventListener("submit", (event) => { event.preventDefault(); closeOptions(); search(); });
byId("read-as").addEventListener("change", (event) => { state.as = event.target.value; state.weights = {}; search(); });
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !document.activeElement?.matches("input:not([type=range])")) { event.preventDefault(); field.focus(); field.select(); }
});
byId("link").addEventListener("click", async () => {
  try { await navigator.clipboard.writeText(location.href); byId("link").textContent = "copied"; }
  catch { byId("link").textContent = "the address bar has it"; }
  setTimeout(() => { byId("link").textContent = "copy link"; }, 1500);
});

// --- pictures as queries

function showSent() {
  const id = state.picture, like = state.like;
  byId("sent").hidden = !id && !like;
  if (!id && !like) return;
  const index = description.indexes.find((one) => one.pictures);
  const source = id ? `api/pictures/${encodeURIComponent(id)}` : index ? pictureUrl(index.name, like, "small") : "";
  byId("sent-picture").hidden = !source;
  if (source) byId("sent-picture").src = source;
  byId("sent-name").textContent = id ? "your picture" : `like ${like}`;
}

async function send(file) {
  if (!file) return;
  tell("");
  try {
    const { picture: id } = await request("api/pictures", new Blob([file]));
    newQuery({ q: "", picture: id });
  } catch (error) {
    const reason = error.lost ? `the picture was not taken: it may be too large, or ${error.message}` : error.message;
    tell(reason, error.again ? () => send(file) : undefined);
  }
}

byId("picture").addEventListener("change", (event) => { send(event.target.files[0]); event.target.value = ""; });
byId("sent-remove").addEventListener("click", () => { newQuery({}); field.focus(); });
let dragged = 0;
const withFile = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
document.addEventListener("dragenter", (event) => { if (withFile(event)) { dragged++; byId("drop").hidden = false; } });
document.addEventListener("dragleave", (event) => { if (withFile(event) && --dragged <= 0) { dragged = 0; byId("drop").hidden = true; } });
document.addEventListener("dragover", (event) => { if (withFile(event)) event.preventDefault(); });
document.addEventListener("drop", (event) => {
  if (!withFile(event)) return;
  event.preventDefault();
  dragged = 0;
  byId("drop").hidden = true;
  send(event.dataTransfer.files[0]);
});

// --- filters

function metadataFields() {
  const found = new Map();
  for (const index of description.indexes) for (const one of index.fields) if (!found.has(one.name)) found.set(one.name, one);
  return found;
}

function showField() {
  const one = metadataFields().get(byId("filter-field").value);
  if (!one) return;
  const ranged = one.type !== "keyword";
  byId("filter-value-label").firstChild.textContent = ranged ? "from " : "is ";
  byId("filter-high-label").hidden = !ranged;
  byId("filter-values").replaceChildren(...one.values.map((value) => element("option", { value })));
}

function showFilters() {
  byId("filter-list").replaceChildren(...state.filters.map((one, place) => {
    const text = one.value !== undefined && one.value !== null ? `${one.field} is ${one.value}` : `${one.field} from ${one.low ?? "…"} to ${one.high ?? "…"}`;
    return element("li", {}, text, element("button", { type: "button", text: "×", "aria-label": `Remove the filter ${text}`,
      onclick: () => { state.filters.splice(place, 1); showFilters(); search(); } }));
  }));
  const count = state.filters.length + [state.where, state.cut].filter(Boolean).length;
  byId("filter-count").textContent = count ? ` (${count})` : "";
  if (count) byId("filters").open = true;
}

byId("where").addEventListener("input", (event) => { state.where = event.target.value; showFilters(); search(); });
byId("min-score").addEventListener("input", (event) => { state.cut = event.target.value.trim(); showFilters(); search(); });
byId("filter-field").addEventListener("change", showField);
byId("filter-add").addEventListener("click", () => {
  const name = byId("filter-field").value, ranged = metadataFields().get(name).type !== "keyword";
  const value = byId("filter-value").value, high = byId("filter-high").value;
  if (!value && !(ranged && high)) return;
  state.filters.push(ranged ? { field: name, low: value || null, high: high || null } : { field: name, value });
  byId("filter-value").value = byId("filter-high").value = "";
  showFilters();
  search();
});

// --- the beginning

async function begin() {
  readLink();
  tell("");
  columns.length = 0;
  byId("columns").replaceChildren();
  for (const served of site ? document.querySelectorAll(".served") : []) served.hidden = true;
  description = await request("api/indexes");
  document.title = `${description.indexes.map((index) => index.name).join(", ")} - LexVL search`;
  for (const index of description.indexes) {
    const events = {
      weight(term, value) {
        const weights = (state.weights[index.name] ??= {});
        if (value === null) delete weights[term]; else weights[term] = value;
        search();
      },
      map: (card, term) => showMap(searcher, card, card.frame, term),
      open: (card) => openDetails(searcher, card),
      similar: (id) => newQuery({ q: "", like: id }),
      ask: (text) => newQuery({ q: text }),
      again: search,
      more() { state.hits = Math.min(state.hits + STEP, MOST); search(); },
    };
    const column = new Column(index, events), searcher = new Searcher(column);
    columns.push({ column, searcher });
    byId("columns").append(column.root);
  }
  byId("picture-label").hidden = !description.indexes.some((one) => one.sends);
  byId("examples").replaceChildren(...description.examples.map((text) => element("button", { type: "button", text, onclick: () => newQuery({ q: text }) })));
  const fields = metadataFields();
  byId("metadata").hidden = !fields.size;
  byId("filter-field").replaceChildren(...[...fields.keys()].map((name) => element("option", { value: name, text: name })));
  showField();
  field.value = state.q;
  byId("where").value = state.where;
  byId("min-score").value = state.cut;
  byId("read-as").value = state.as;
  addBlend();
  if (site && state.like) await site.find(state.like);
  showFilters();
  showSent();
  if (!matchMedia("(max-width: 820px)").matches) field.focus();
  search();
}

function start() {
  begin().catch((error) => tell(error.message, error.again ? start : undefined));
}

addEventListener("online", () => (columns.length ? search() : start()));
start();
