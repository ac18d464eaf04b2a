// Query trees as text, as `queries/parser.py` reads them: +dog -cat (sea OR "##side")^3. A page without a server has
// terms alone: no fields, and no factors with a fraction, so that every score is a sum of integers.
//
// A tree is { weights: Map } of terms (a leaf), { all, optional }, { any }, { not }, or { of, factor }.

const QUOTED = String.raw`"(?:[^"\\]|\\[^])*"`;
// A word ends at white space and brackets; a ^ and a number at its end are its weight.
const WORD = String.raw`(?:(?!\^\d+(?:\.\d+)?(?=[\s)]|$))[^\s()"])+`;
const TOKEN = new RegExp(String.raw`(?<open>\()|(?<close>\))|\^(?<boost>\d+(?:\.\d+)?)(?=[\s)]|$)|(?<sign>[+\-])(?=\S)`
  + String.raw`|(?<operator>(?:AND|OR|NOT)(?=[\s()]|$))|(?<field>meta\.[^\s:()"]+|text|id):(?=${QUOTED}|${WORD})|(?<term>${QUOTED}|${WORD})`, "uy");
const OPERATORS = new Set(["sign", "boost", "operator", "field"]);
const MOST_WEIGHT = (1 << 24) - 1, MOST_NESTING = 50;

function malformed(text, start, reason) {
  const rest = start < text.length ? `'${text.slice(start, start + 20)}'` : "its end";
  return new Error(`expression '${text.length > 120 ? `${text.slice(0, 117)}...` : text}', at ${rest}: ${reason}`);
}

// The pieces of an expression, each with its kind, its text and its start; `ended` is the error of what is no piece.
function piecesOfExpression(text) {
  const pieces = [];
  for (let start = 0; start < text.length;) {
    if (/\s/u.test(text[start])) { start++; continue; }
    TOKEN.lastIndex = start;
    const match = TOKEN.exec(text);
    if (!match) return { pieces, ended: malformed(text, start, "expected a term, +, -, a bracket or a closed quote") };
    const [kind, value] = Object.entries(match.groups).find(([, found]) => found !== undefined);
    pieces.push({ kind, value, start });
    // What a field is compared with may be no piece; nothing after a field is read.
    if (kind === "field") break;
    start = TOKEN.lastIndex;
  }
  return { pieces, ended: null };
}

// Whether a text has an operator of expressions; one with a quote that is not closed, for example, is words.
export function isExpression(text) {
  const { pieces, ended } = piecesOfExpression(text);
  return !ended && pieces.some(({ kind }) => OPERATORS.has(kind));
}

export function parseExpression(text) {
  const { pieces, ended } = piecesOfExpression(text);
  let place = 0, nesting = 0;
  const kind = () => pieces[place]?.kind;
  const fail = (reason) => malformed(text, pieces[place]?.start ?? text.length, reason);
  const ahead = (word) => kind() === "operator" && pieces[place].value === word;
  const took = (word) => { const here = ahead(word); if (here) place++; return here; };
  const nested = (read) => {
    if (nesting === MOST_NESTING) throw fail(`brackets and NOTs in more than ${MOST_NESTING} others`);
    nesting++;
    const tree = read();
    nesting--;
    return tree;
  };

  function sideBySide() {
    const all = [], forbidden = [];
    let optional = [];
    while (place < pieces.length && kind() !== "close") {
      const sign = kind() === "sign" ? pieces[place++].value : "", negated = ahead("NOT"), tree = either();
      if (sign === "-") forbidden.push({ not: tree });
      else if (sign === "+") all.push(tree);
      else (negated && tree.not ? forbidden : optional).push(tree);
    }
    if (!all.length && !forbidden.length && !optional.length) throw fail("expected a term, a field or a bracket");
    if (!all.length && optional.length) { all.push(optional.length === 1 ? optional[0] : { any: optional }); optional = []; }
    const clauses = [...all, ...forbidden];
    return clauses.length === 1 && !optional.length ? clauses[0] : { all: clauses, optional };
  }

  function either() {
    const any = [both()];
    while (took("OR")) any.push(both());
    return any.length === 1 ? any[0] : { any };
  }

  function both() {
    const all = [negation()];
    while (took("AND")) all.push(negation());
    return all.length === 1 ? all[0] : { all, optional: [] };
  }

  function negation() { return took("NOT") ? { not: nested(negation) } : boosted(); }

  function boosted() {
    const of = primary();
    if (kind() !== "boost") return of;
    const { value } = pieces[place], factor = Number(value);
    if (!Number.isInteger(factor)) throw fail(`^${value}: this page has no server, and takes whole factors alone`);
    if (factor > MOST_WEIGHT) throw fail(`^${value}: expected at most ${MOST_WEIGHT}`);
    place++;
    return { of, factor };
  }

  function primary() {
    if (kind() === "field") throw fail("this page has no server, and searches terms alone, not fields");
    if (kind() === "term") {
      const { value } = pieces[place++];
      return { weights: new Map([[value.startsWith('"') ? value.slice(1, -1).replace(/\\([^])/gu, "$1") : value, 1]]) };
    }
    if (kind() !== "open") throw fail("expected a term, a field or a bracket");
    place++;
    const tree = nested(sideBySide);
    if (kind() !== "close") throw fail("a bracket is not closed");
    place++;
    return tree;
  }

  if (ended) throw ended;
  const tree = sideBySide();
  if (place < pieces.length) throw fail("no bracket is open here");
  return tree;
}

// The tree with another Map of weights in the place of each leaf's.
export function replaceLeaves(tree, change) {
  const below = (part) => replaceLeaves(part, change);
  if (tree.weights) return { weights: change(tree.weights) };
  if (tree.all) return { all: tree.all.map(below), optional: tree.optional.map(below) };
  if (tree.any) return { any: tree.any.map(below) };
  return tree.not ? { not: below(tree.not) } : { of: below(tree.of), factor: tree.factor };
}

// The weight of each term that scores, of all its places in the tree; parts that are not `matching` are left out.
export function sumWeights(tree, matching = () => true, factor = 1, sums = new Map()) {
  if (!matching(tree)) return sums;
  for (const [term, weight] of tree.weights ?? []) sums.set(term, (sums.get(term) ?? 0) + factor * weight);
  if (tree.of) sumWeights(tree.of, matching, factor * tree.factor, sums);
  for (const part of [...(tree.all ?? []), ...(tree.optional ?? []), ...(tree.any ?? [])]) sumWeights(part, matching, factor, sums);
  return sums;
}

// Whether a document matches that has the terms of which `has` is true.
export function matches(tree, has) {
  const fits = (part) => matches(part, has);
  if (tree.weights) return [...tree.weights.keys()].some(has);
  if (tree.all) return tree.all.every(fits);
  if (tree.any) return tree.any.some(fits);
  return tree.not ? !fits(tree.not) : fits(tree.of);
}

// What `count` documents score in a tree, Float64Array, and whether they match, Uint8Array; `listOf` has a term's postings.
export function scoreTree(tree, count, listOf) {
  const scores = new Float64Array(count), matching = new Uint8Array(count);
  const add = (part, required) => {
    const found = scoreTree(part, count, listOf);
    for (let one = 0; one < count; one++) {
      scores[one] += found.scores[one];
      if (required) matching[one] &= found.matching[one]; else matching[one] |= found.matching[one];
    }
  };
  if (tree.weights) {
    for (const [term, weight] of tree.weights) {
      const { documents, impacts } = listOf(term);
      for (let one = 0; one < documents.length; one++) { scores[documents[one]] += weight * impacts[one]; matching[documents[one]] = 1; }
    }
    return { scores, matching };
  }
  if (tree.not) {
    const { matching: excluded } = scoreTree(tree.not, count, listOf);
    return { scores, matching: excluded.map((one) => 1 - one) };
  }
  if (tree.of) {
    const found = scoreTree(tree.of, count, listOf);
    return { scores: found.scores.map((score) => tree.factor * score), matching: found.matching };
  }
  if (tree.any) tree.any.forEach((part) => add(part, false));
  else {
    matching.fill(1);
    tree.all.forEach((part) => add(part, true));
    const required = matching.slice();
    tree.optional.forEach((part) => add(part, false));
    matching.set(required);
  }
  return { scores: scores.map((score, one) => (matching[one] ? score : 0)), matching };
}
