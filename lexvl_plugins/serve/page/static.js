// The page without a server: answers of the API from the files that `lexvl publish` wrote beside it.

import { isExpression, matches, parseExpression, replaceLeaves, scoreTree, sumWeights } from "./expressions.js";
import { compareTexts } from "./view.js";

const coming = new Map(), documentNumbers = new Map(), lists = new Map(), grids = new Map();
const SUGGESTIONS = 10, OFFERED_TERMS = 6, LIKE_TERMS = 64, STEPS = 7;
const SCORE_LIMIT = 1 << 24; // an engine refuses queries whose scores could reach it

// Data files are scripts that call this function, because a page that was opened from a disk may not read files.
globalThis.lexvl = (name, content) => coming.get(name).resolve(content);

function part(name) {
  if (!coming.has(name)) {
    const awaited = Promise.withResolvers ? Promise.withResolvers() : deferred();
    coming.set(name, awaited);
    const script = document.createElement("script");
    script.src = `data/${name}.js`;
    script.onerror = () => { coming.delete(name); awaited.reject(Object.assign(new Error(`data/${name}.js cannot be read`), { again: true })); };
    document.head.append(script);
  }
  return coming.get(name).promise;
}

function deferred() {
  const made = {};
  made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }));
  return made;
}

// The bytes of a text of base64, inflated.
async function bytesOf(text) {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Reads numbers of 7 bits a byte, the lowest first.
function numbersOf(bytes) {
  let place = 0;
  return {
    next() {
      let value = 0, factor = 1, byte;
      do { byte = bytes[place++]; value += (byte & 127) * factor; factor *= 128; } while (byte & 128);
      return value;
    },
    get ended() { return place >= bytes.length; },
  };
}

// --- a text as BERT's WordPiece with lower case reads it

const DROPPED = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\0\ufffd]/u, KEPT_CONTROLS = /[\t\n\r]/, SPACE = /\s/u, MARKS = /\p{Mn}/gu;
const PUNCTUATION = /[!-/:-@[-`{-~]|\p{P}/u;
const IDEOGRAPHS = [[0x4e00, 0x9fff], [0x3400, 0x4dbf], [0x20000, 0x2a6df], [0x2a700, 0x2b73f], [0x2b740, 0x2b81f],
  [0x2b920, 0x2ceaf], [0xf900, 0xfaff], [0x2f800, 0x2fa1f]];

function normalised(text) {
  let clean = "";
  for (const letter of text) {
    const code = letter.codePointAt(0);
    if (KEPT_CONTROLS.test(letter) || SPACE.test(letter)) clean += DROPPED.test(letter) && !KEPT_CONTROLS.test(letter) ? "" : " ";
    else if (DROPPED.test(letter)) continue;
    else clean += IDEOGRAPHS.some(([from, to]) => from <= code && code <= to) ? ` ${letter} ` : letter;
  }
  // Letter by letter: a sigma at the end of a word has no form of its own here.
  return [...clean.normalize("NFD").replace(MARKS, "")].map((letter) => letter.toLowerCase()).join("");
}

function split(text) {
  const found = [];
  let word = "";
  const end = () => { if (word) found.push(word); word = ""; };
  for (const letter of text) {
    if (SPACE.test(letter)) end();
    else if (PUNCTUATION.test(letter)) { end(); found.push(letter); }
    else word += letter;
  }
  end();
  return found;
}

// The tokens of a word, the longest beginning first; one that is unknown for a word that cannot be put together.
function piecesOf(word, words) {
  const letters = [...word], pieces = [];
  if (letters.length > words.longest) return [-1];
  for (let begin = 0; begin < letters.length;) {
    let end = letters.length, token;
    for (; end > begin; end--) {
      token = words.ids.get((begin ? "##" : "") + letters.slice(begin, end).join(""));
      if (token !== undefined) break;
    }
    if (end === begin) return [-1];
    pieces.push(token);
    begin = end;
  }
  return pieces;
}

function tokensOf(text, words) {
  const tokens = [];
  for (const piece of text.split(words.special)) {
    if (words.specials.includes(piece)) tokens.push(words.ids.get(piece));
    else for (const word of split(normalised(piece))) tokens.push(...piecesOf(word, words));
  }
  return tokens.slice(0, words.most);
}

let read = null;

async function wordsOfSite() {
  if (read) return read;
  const words = await part("words");
  const tokens = new TextDecoder().decode(await bytesOf(words.tokens)).split("\n");
  const ids = new Map(tokens.map((token, id) => [token, id]));
  const numbers = numbersOf(await bytesOf(words.columns)), columns = tokens.map(() => numbers.next() - 1);
  const escaped = words.specials.map((token) => token.replace(/[[\](){}.*+?^$|\\]/g, "\\$&"));
  read = { ...words, ids, columns, special: new RegExp(`(${escaped.join("|")})`), columnOf: new Map(words.terms.map((term, column) => [term, column])) };
  return read;
}

// --- a question

// A question as a tree (`expressions.js`) over columns with the user's weights; the sums of its weights, now and as given.
async function readQuestion(question) {
  const words = await wordsOfSite(), text = question.text.trim(), changes = new Map();
  for (const [term, weight] of Object.entries(question.weights)) {
    if (!Number.isInteger(weight) || weight < 0 || weight >= SCORE_LIMIT) throw new Error(`the weight of ${term}: expected a number from 0 to 16777215`);
    changes.set(columnOf(term, words), weight);
  }
  const isTree = !question.like && text && (question.read_as === "terms" || (question.read_as === "auto" && isExpression(text)));
  let tree, given;
  if (isTree) {
    const asked = replaceLeaves(parseExpression(text), (weights) => new Map([...weights].map(([term, weight]) => [columnOf(term, words), weight])));
    // A term of weight 0 adds nothing, but must still match where it had to.
    tree = replaceLeaves(asked, (weights) => new Map([...weights].map(([column, weight]) => [column, changes.get(column) ?? weight])));
    given = sumWeights(asked);
  } else {
    const bag = question.like ? await heaviestOf(await find(question.like), words) : bagOf(text, words);
    tree = { weights: new Map([...new Map([...bag, ...changes])].filter(([, weight]) => weight)) };
    given = new Map([...[...changes.keys()].map((column) => [column, 0]), ...bag]);
  }
  const read_as = question.like ? "document" : isTree ? "terms" : text || given.size ? "text" : "none";
  return { words, tree, weights: sumWeights(tree), given, read_as };
}

function columnOf(term, words) {
  const column = words.columnOf.get(term);
  if (column === undefined) throw new Error(`term '${term}' is not in the vocabulary of the index`);
  return column;
}

function bagOf(text, words) {
  const own = new Set(tokensOf(text, words).map((token) => words.columns[token] ?? -1).filter((column) => column >= 0));
  return new Map([...own].map((column) => [column, words.weights[own.size]]));
}

// The heaviest terms of a document, as the query that finds documents like it.
async function heaviestOf(number, words) {
  const impacts = [];
  for (let column = 0; column < words.terms.length; column++) {
    const impact = impactIn(await listOf(column), number);
    if (impact) impacts.push([column, impact]);
  }
  return new Map(impacts.sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, LIKE_TERMS));
}

// The number of a document by its id; a link may name one of which no file is here yet.
async function find(id) {
  const { indexes: [{ documents }], part: size } = await part("site");
  for (let number = 0; number < documents && !documentNumbers.has(id); number += size) {
    const rows = await part(`documents-${number / size}`);
    rows.forEach(([other, , , suffix], place) => documentNumbers.set(other, { number: number + place, suffix }));
  }
  if (!documentNumbers.has(id)) throw new Error(`no document ${id} here`);
  return documentNumbers.get(id).number;
}

// The documents and impacts of a term.
async function listOf(column) {
  if (!lists.has(column)) {
    const { starts } = await part("site");
    let number = starts.length - 1;
    while (starts[number] > column) number--;
    const numbers = numbersOf(await bytesOf(await part(`postings-${number}`)));
    for (let at = starts[number]; !numbers.ended; at++) {
      const documents = new Int32Array(numbers.next()), impacts = new Int32Array(documents.length);
      let before = -1;
      for (let one = 0; one < documents.length; one++) documents[one] = before += numbers.next();
      for (let one = 0; one < documents.length; one++) impacts[one] = numbers.next();
      lists.set(at, { documents, impacts });
    }
  }
  return lists.get(column);
}

async function ranked(tree, documents, most) {
  for (const column of columnsOf(tree)) await listOf(column);
  const { scores, matching } = scoreTree(tree, documents, (column) => lists.get(column));
  // Of equal scores the lower number is first; a key holds both, exactly as long as score x documents is below 2^53.
  const keys = [];
  scores.forEach((score, number) => { if (matching[number]) keys.push(score * documents + documents - 1 - number); });
  return Float64Array.from(keys).sort().reverse().slice(0, most)
    .reduce((hits, key) => { hits.push({ number: documents - 1 - (key % documents), score: Math.floor(key / documents) }); return hits; }, []);
}

function columnsOf(tree) {
  const columns = new Set();
  replaceLeaves(tree, (weights) => { for (const column of weights.keys()) columns.add(column); return weights; });
  return columns;
}

// The greatest score that a document could have.
async function greatestScore(weights) {
  let greatest = 0;
  for (const [column, weight] of weights) greatest += weight * (await listOf(column)).impacts.reduce((most, impact) => Math.max(most, impact), 0);
  if (greatest >= SCORE_LIMIT) throw new Error(`the score of this query could reach ${greatest.toLocaleString("en")}, above 16,777,215 up to which scores are exact; lower its weights`);
  return greatest;
}

// The least score of a hit: a number, or a share of the greatest score.
function leastScore(text, greatest) {
  const [, number, share] = /^\s*([+-]?(?:\d+\.?\d*|\.\d+))(%?)\s*$/.exec(text) ?? [];
  if (!text.trim()) return -Infinity;
  if (number === undefined || (share && !(number >= 0 && number <= 100))) throw new Error(`least score ${text}: expected a score (300), or a share of the bound (20%)`);
  return share ? (number * greatest) / 100 : Number(number);
}

async function documentOf(number) {
  const site = await part("site");
  const [id, title, text, suffix] = (await part(`documents-${Math.floor(number / site.part)}`))[number % site.part];
  documentNumbers.set(id, { number, suffix });
  return { id, title, text, suffix };
}

async function answer(question) {
  const site = await part("site"), started = performance.now();
  if (question.picture) throw new Error("a page without a server searches with words alone");
  const { words, tree, weights, given, read_as } = await readQuestion(question);
  const encoded = performance.now(), { documents } = site.indexes[0], greatest = await greatestScore(weights);
  const hits = [], found = await ranked(tree, documents, question.hits);
  const least = leastScore(question.min_score ?? "", greatest), fitting = found.filter(({ score }) => score >= least);
  for (const { number, score } of fitting.length ? fitting : found) {
    const { id, title, text, suffix } = await documentOf(number);
    hits.push({ rank: hits.length + 1, doc_id: id, score, title, text, picture: Boolean(suffix), metadata: {} });
  }
  const chips = [...given].map(([column, value]) => ({ term: words.terms[column], weight: weights.get(column) ?? 0, given: value }))
    .sort((a, b) => b.given - a.given || compareTexts(a.term, b.term));
  const ended = performance.now(), warning = read_as === "text" && !given.size ? "no word of this query is a term of the model" : "";
  return { index: question.index, read_as, warning, chips, hits, documents, greatest, ignored: [], nearest: hits.length > 0 && !fitting.length,
    related: read_as === "terms" ? [] : await offered(weights, words), timing: { encode_ms: encoded - started, search_ms: ended - encoded, all_ms: ended - started } };
}

// Terms beside those of a query.
async function offered(weights, words) {
  const related = await part("related"), counts = new Map();
  for (const [column, weight] of weights) {
    if (weight) related[column].forEach((other, place) => counts.set(other, (counts.get(other) ?? 0) + 1 / (1 + place)));
  }
  return [...counts].filter(([column]) => !weights.has(column)).sort((a, b) => b[1] - a[1] || a[0] - b[0])
    .slice(0, OFFERED_TERMS).map(([column]) => words.terms[column]);
}

function impactIn(list, number) {
  let low = 0, high = list.documents.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list.documents[middle] < number) low = middle + 1; else high = middle;
  }
  return list.documents[low] === number ? list.impacts[low] : 0;
}

async function products({ question, doc_ids: ids }) {
  const { words, tree } = await readQuestion(question);
  for (const column of columnsOf(tree)) await listOf(column);
  return ids.map((id) => {
    const { number } = documentNumbers.get(id), found = [];
    const has = (column) => impactIn(lists.get(column), number) > 0;
    for (const [column, weight] of sumWeights(tree, (part) => matches(part, has))) {
      const impact = impactIn(lists.get(column), number);
      if (weight && impact) found.push({ term: words.terms[column], weight, impact, product: weight * impact, field: "" });
    }
    found.sort((a, b) => b.product - a.product || compareTexts(a.term, b.term));
    return { doc_id: id, score: found.reduce((sum, one) => sum + one.product, 0), products: found, rest: 0 };
  });
}

// The grids of a file's documents; each gets the place where its cells begin.
async function gridsOf(number) {
  if (!grids.has(number)) {
    const { of, cells } = await part(`grids-${number}`);
    let begin = 0;
    for (const stored of of) {
      if (!stored) continue;
      stored.begin = begin;
      begin += stored.columns.length * (2 + stored.grid[0] * stored.grid[1]);
    }
    grids.set(number, { of, cells: await bytesOf(cells) });
  }
  return grids.get(number);
}

// The sum of weight x activation in each cell, from 0 to 1, of the terms of the question that have a map.
async function heatMap({ question, doc_id: id, term }) {
  const { words, weights } = await readQuestion(question), { number } = documentNumbers.get(id), site = await part("site");
  const { of, cells } = await gridsOf(Math.floor(number / site.part)), stored = of[number % site.part];
  if (!stored) return null;
  const [rows, columns] = stored.grid, size = 2 + rows * columns;
  const sums = new Float64Array(rows * columns);
  let any = false;
  stored.columns.forEach((column, place) => {
    const weight = weights.get(column);
    if (!weight || (term && words.terms[column] !== term)) return;
    any = true;
    const [low, high, ...steps] = cells.subarray(stored.begin + size * place, stored.begin + size * (place + 1));
    steps.forEach((step, cell) => { sums[cell] += weight * (low + ((high - low) * step) / STEPS); });
  });
  if (!any) return null;
  const least = Math.min(...sums), span = Math.max(...sums) - least || 1;
  const grid = Array.from({ length: rows }, (_, row) => Array.from(sums.subarray(row * columns, (row + 1) * columns), (value) => (value - least) / span));
  return { grid, region: stored.region };
}

async function suggested(query) {
  const { terms } = await wordsOfSite(), prefix = new URLSearchParams(query).get("prefix");
  return terms.filter((term) => term.startsWith(prefix)).sort((a, b) => (b === prefix) - (a === prefix)).slice(0, SUGGESTIONS);
}

globalThis.lexvlSite = {
  find,
  async request(path, body) {
    const [name, query] = path.split("?");
    if (name === "api/indexes") {
      const site = await part("site");
      for (const [id, number, suffix] of site.samples) documentNumbers.set(id, { number, suffix });
      return { ...site, pictures: { [site.indexes[0].name]: site.samples.map(([id]) => id) } };
    }
    if (name === "api/suggest") return suggested(query);
    return { "api/search": answer, "api/products": products, "api/map": heatMap }[name](body);
  },
  picture(id) {
    const { number, suffix } = documentNumbers.get(id);
    return `pictures/${number}.${suffix}`;
  },
};
