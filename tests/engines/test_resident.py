"""Resident postings: the file, and lists that equal an exact search by numpy, for every form of slots."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from lexvl_anserini.engines import jvm
from lexvl_anserini.engines.index_folder import RESIDENT
from lexvl_anserini.engines.jvm import Exclusive, get_our_class
from lexvl_anserini.engines.resident.kernels import EXCLUDED, TERM, Space, find_reached
from lexvl_anserini.engines.resident.layout import BLOCK, COLUMN, GAPS, NUMBERS, PlainPostings, open_sections
from lexvl_anserini.engines.resident.packing import Lists, finish_resident, make_slot_writer, put_lists
from lexvl_anserini.engines.resident.searching import STEP, ResidentPostings, split_steps
from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.records import ImpactQuery, TermWeights, Vocabulary
from lexvl_anserini.queries.clauses import QueryBatch


def lists_of(rows, some=3):
    """Posting lists as Java returns them, some terms at a time."""
    names = sorted(rows, key=str.encode)
    for start in range(0, len(names), some):
        part = names[start : start + some]
        postings = [sorted(rows[name].items()) for name in part]
        yield Lists(
            np.cumsum([len(row) for row in postings], dtype=np.int64),
            np.array([document for row in postings for document, _ in row], "<i4"),
            np.array([impact for row in postings for _, impact in row], "<i4"),
            np.array([len(name.encode()) for name in part], "<i4"),
            np.frombuffer(b"".join(name.encode() for name in part), "<u1"),
        )


def resident_of(folder, rows, ids, documents, width=1):
    """Resident postings of a collection: term -> document number -> impact; of the kernels and of numpy."""
    jvm.start()
    path = folder / RESIDENT
    by_id = {}
    for number, doc_id in ids.items():
        by_id.setdefault(doc_id, {})[number] = 1
    coder = Exclusive(get_our_class("IdCoder")(documents))
    for part in lists_of(by_id):
        put_lists(coder, part)
    with make_slot_writer(path, documents, (1 << 8 * width) - 1) as slots:
        for part in lists_of(rows):
            put_lists(slots, part)
        finish_resident(path, slots, coder, documents)
    with path.open("rb") as file:
        resident = ResidentPostings(open_sections(file, path))
        resident.plain = PlainPostings(open_sections(file, path))
    return resident


def searched(resident, vectors, hits, threads=1):
    queries = [ImpactQuery(f"q{number}", vector) for number, vector in enumerate(vectors)]
    found = resident.lists(queries, hits, threads)
    assert getattr(resident, "plain", resident).lists(queries, hits, 1) == found, "numpy and the kernels agree"
    assert all(hit.query_id == query.query_id for query, hits in zip(queries, found, strict=True) for hit in hits)
    return [[(hit.doc_id, hit.rank, hit.score) for hit in one] for one in found]


def expected(rows, ids, vector, hits):
    """The definition: every dot product, by score descending, then id ascending."""
    scores = {}
    for term, weight in vector.items():
        for document, impact in rows.get(term, {}).items():
            scores[document] = scores.get(document, 0) + weight * impact
    order = sorted(scores, key=lambda document: (-scores[document], ids[document].encode()))[:hits]
    return [(ids[document], rank, float(scores[document])) for rank, document in enumerate(order, start=1)]


def test_a_collection_by_hand(tmp_path):
    rows = {"dog": {0: 3, 2: 1}, "sea": {2: 5}, "été😀": {1: 255}}
    resident = resident_of(tmp_path, rows, {0: "b", 1: "c", 2: "a"}, 3)
    assert searched(resident, [{"dog": 5, "sea": 2}], 10) == [[("a", 1, 15.0), ("b", 2, 15.0)]]
    assert searched(resident, [{"dog": 5, "sea": 2}], 1) == [[("a", 1, 15.0)]]
    assert searched(resident, [{}, {"cat": 9}, {"été😀": 2, "cat": 1}], 5) == [[], [], [("c", 1, 510.0)]]
    assert resident.find_max_impacts(["sea", "cat", "été😀"]) == [5, 0, 255]
    batch = QueryBatch([ImpactQuery("q", {}), ImpactQuery("r", {"cat": 9}), ImpactQuery("s", {"dog": 5, "sea": 2})])
    for form in (resident, resident.plain):
        assert form.bounds(batch).tolist() == [0, 0, 5 * 3 + 2 * 5]


def test_impacts_of_a_document(tmp_path):
    """Over two blocks, and ids in several groups; an id that is the first of all, the last, or none."""
    documents = BLOCK + 100
    rows = {"all": {n: n % 250 + 1 for n in range(documents)}, "few": {7: 3, BLOCK + 9: 4}, "gaps": {5: 1, 2900: 2}}
    rows["some"] = dict.fromkeys(range(3, documents, 70), 9)
    ids = {number: f"{number * 7 % documents:05}" for number in range(documents)}
    plain = resident_of(tmp_path, rows, ids, documents).plain
    terms = ["few", "none", "gaps", "some", "all"]
    for number in (0, 3, 7, 2900, BLOCK - 1, BLOCK, BLOCK + 9, documents - 1):
        held = {term: rows[term][number] for term in terms if number in rows.get(term, {})}
        assert plain.document(ids[number]) == number and list(plain.impacts(number, terms).items()) == list(
            held.items()
        )
    assert [plain.document(doc_id) for doc_id in ("", "000000", "7", "é")] == [None] * 4


def test_a_list_outlives_the_postings_and_the_file(tmp_path):
    resident = resident_of(tmp_path, {"dog": {0: 3, 2: 1}}, {0: "b", 1: "c", 2: "a"}, 3)
    [hits] = resident.lists([ImpactQuery("q", {"dog": 1})], 9, 1)
    del resident
    (tmp_path / RESIDENT).write_bytes(b"")
    assert hits.scores.flags.owndata and [(hit.doc_id, hit.score) for hit in hits] == [("b", 3.0), ("a", 1.0)]


def test_threads_share_all_queries_and_end_together():
    assert list(split_steps(3, 2)) == [(0, 1), (1, 2), (2, 3)] and list(split_steps(0, 2)) == []
    for queries, threads in ((1, 1), (100, 1), (131, 2), (256, 7)):
        steps = list(split_steps(queries, threads))
        assert [n for first, last in steps for n in range(first, last)] == list(range(queries))
        assert max(last - first for first, last in steps) <= STEP
        assert threads == 1 or steps[-1] == (queries - 1, queries)


def test_no_term_and_no_document_with_a_term(tmp_path):
    resident = resident_of(tmp_path, {}, {0: "a"}, 1)
    assert searched(resident, [{"dog": 1}], 3) == [[]]
    assert resident.find_max_impacts(["dog"]) == [0]
    resident.warm()


def kinds(resident):
    """The kinds of all slots."""
    columns = resident.postings.slots["column"]
    return np.where(columns >= 0, COLUMN, -columns).tolist()


def test_the_three_kinds_of_slots(tmp_path):
    """1/8 of the documents: a column; 1/100: gaps of one byte; 1/1000: numbers of two."""
    steps = {"a": 100, "b": 8, "c": 1000, "d": 1}
    rows = {name: dict.fromkeys(range(step - 1, 16_000, step), 7) for name, step in steps.items()}
    ids = {number: f"d{number}" for number in range(16_000)}
    resident = resident_of(tmp_path, rows, ids, 16_000)
    assert kinds(resident) == [GAPS, COLUMN, NUMBERS, COLUMN]
    # 160 gaps and impacts, up to 5 x 64; 16,000 impacts; 16 numbers of two bytes and impacts, up to 64.
    assert resident.postings.slots["place"].tolist() == [0, 320, 16_320, 16_320 + 64]
    assert len(resident.postings.octets) == 16_384 + 16_000 and 16_320 % 64 == 0
    # Columns are read from the mapped file, not from a copy, at lines of the cache.
    assert not resident.postings.impacts.flags.writeable and resident.postings.impacts.ctypes.data % 64 == 0
    for term in rows:
        assert searched(resident, [{term: 3}], 20_000)[0] == expected(rows, ids, {term: 3}, 20_000)


def test_gaps_beyond_a_byte_have_entries_without_impact(tmp_path):
    """Few long gaps among many short ones: entries of impact 0 lie between, and never become hits."""
    numbers = [*range(0, 2000, 10), 3000, 3255, 3511, 9000]
    rows = {"a": {number: 1 + place for place, number in enumerate(numbers)}}
    ids = {number: f"{number:04}" for number in range(10_000)}
    resident = resident_of(tmp_path, rows, ids, 10_000)
    assert kinds(resident) == [GAPS]
    # Between 1990 and 3000 lie 3 entries, between 3255 and 3511 one, between 3511 and 9000 21.
    assert resident.postings.slots["count"].tolist() == [204 + 3 + 1 + 21 - 1]
    assert searched(resident, [{"a": 2}], 10_000)[0] == expected(rows, ids, {"a": 2}, 10_000)


TERMS = Vocabulary(["z", "é", "c", "b", "a", "日本"])
COLLECTIONS = st.dictionaries(
    st.sampled_from(["a", "b", "c", "é", "日本"]),
    st.dictionaries(st.integers(0, 40), st.integers(1, 3), max_size=41),
    max_size=5,
)


@settings(max_examples=150)
@given(
    rows=COLLECTIONS,
    queries=st.lists(
        st.dictionaries(st.sampled_from(["a", "b", "c", "é", "日本", "z"]), st.integers(1, 9)), max_size=9
    ),
    hits=st.integers(1, 60),
    order=st.permutations(range(41)),
    threads=st.sampled_from([1, 3]),
)
def test_small_collections_equal_the_definition(tmp_path, rows, queries, hits, order, threads):
    """Ties are frequent, and ids share prefixes across groups."""
    rows = {term: row for term, row in rows.items() if row}
    ids = {number: f"d{'x' * (place % 3)}{place}" for number, place in enumerate(order)}
    resident = resident_of(tmp_path, rows, ids, 41)
    lists = [expected(rows, ids, query, hits) for query in queries]
    assert searched(resident, queries, hits, threads) == lists
    # The same as an encoder's.
    columns = [([TERMS.dimension[term] for term in query], [*query.values()]) for query in queries]
    encoded = [TermWeights(TERMS, np.array(d, np.int32), np.array(w, np.int64)) for d, w in columns]
    assert searched(resident, encoded, hits, threads) == lists


def large(seed, documents, terms, largest):
    """Impacts [documents, terms]; term t is in about 1 / (t + 1) of the documents, the last in one."""
    rng = np.random.default_rng(seed)
    columns = []
    for term in range(terms):
        held = (
            np.flatnonzero(rng.random(documents) < 1 / (term * term + 1))
            if term < terms - 1
            else np.array([documents // 2])
        )
        impacts = rng.integers(1, largest, len(held), endpoint=True)
        columns.append(sparse.csc_matrix((impacts, (held, np.zeros(len(held), int))), shape=(documents, 1)))
    return sparse.hstack(columns, format="csc")


@pytest.mark.parametrize(("seed", "largest"), [(0, 255), (1, 1), (2, 3), (3, 65_535)])
def test_several_blocks_equal_exact_search(tmp_path, seed, largest):
    """Random collections of more than two blocks, sparse and dense terms, all-equal impacts, k from 1 to beyond all."""
    documents, terms = 2 * BLOCK + 777, 24
    matrix = large(seed, documents, terms, largest)
    ids = [f"d{number}" for number in np.random.default_rng(seed).permutation(documents).tolist()]
    place = np.argsort(np.argsort(np.array([doc_id.encode() for doc_id in ids])))
    rows = {
        f"t{term:02}": dict(
            zip(
                matrix.indices[matrix.indptr[term] : matrix.indptr[term + 1]].tolist(),
                matrix.data[matrix.indptr[term] : matrix.indptr[term + 1]].tolist(),
                strict=True,
            )
        )
        for term in range(terms)
    }
    resident = resident_of(tmp_path, rows, dict(enumerate(ids)), documents, 1 if largest < 256 else 2)
    rng = np.random.default_rng(seed + 10)
    vectors = []
    for _ in range(12):
        chosen = rng.permutation(terms)[: rng.integers(1, terms, endpoint=True)].tolist()
        vectors.append(
            {f"t{term:02}": int(weight) for term, weight in zip(chosen, rng.integers(1, 9, terms), strict=False)}
        )
    for hits in (1, 10, 1000, documents + 5):
        found = searched(resident, vectors[: 2 if hits > 1000 else None], hits, threads=2)
        for vector, one in zip(vectors, found, strict=False):
            weights = np.zeros(terms, np.int64)
            for term, weight in vector.items():
                weights[int(term[1:])] = weight
            scores = matrix @ weights
            order = np.lexsort((place, -scores))[:hits]
            assert one == [(ids[d], n, float(scores[d])) for n, d in enumerate(order[scores[order] > 0], start=1)]


@pytest.mark.parametrize(
    ("hits", "seen", "bar"),
    [
        (1, 0, (6, 7)),  # one sum, 7, reaches 6 and 7
        (2, 0, (4, 5)),
        (3, 0, (2, 3)),  # 3 occurs twice: at 3, 4 sums are there, and none is left out
        (4, 0, (2, 3)),
        (5, 0, (1, 1)),  # fewer sums than hits
        (2, 6, (1, 1)),  # two passages may be one document
    ],
)
def test_a_bar_before_any_hit_is_known(hits, seen, bar):
    sums = np.array([3, 0, 7, 5, EXCLUDED, 3, 9], np.int32)
    space = Space(sums, np.zeros(0, np.int64), np.zeros(0, TERM), np.full(seen, -1, np.int32))
    # The last sum is of no document.
    least = int(find_reached(space, 6, hits))
    assert bar[0] <= least <= bar[1]
    assert least == 1 or (sums[:6] >= least).sum() >= hits


@pytest.mark.parametrize("hits", [1, 9, 255, 256, 257, 700, 3000])
def test_lists_longer_and_shorter_than_a_chunk(tmp_path, hits):
    """Keys are written a chunk at a time; ties at every cut, and scores that rise to the end."""
    rows = {
        "all": {number: 1 + number // 7 % 255 for number in range(2999)},
        "few": dict.fromkeys(range(0, 2999, 3), 1),
    }
    ids = {number: f"{number * 7919 % 2999:04}" for number in range(2999)}
    resident = resident_of(tmp_path, rows, ids, 2999)
    for vector in ({"all": 2, "few": 1}, {"few": 5}):
        assert searched(resident, [vector], hits)[0] == expected(rows, ids, vector, hits)


def test_skipping_changes_nothing(tmp_path):
    """A few documents have nearly all of the score: blocks are skipped, and columns looked up for few documents."""
    documents = 3 * BLOCK
    rng = np.random.default_rng(5)
    rows = {f"t{term}": dict.fromkeys(np.flatnonzero(rng.random(documents) < 0.2).tolist(), 1) for term in range(8)}
    rows["rare"] = dict.fromkeys(rng.permutation(2 * BLOCK)[:40].tolist(), 255)
    ids = {number: f"{number:06}" for number in range(documents)}
    resident = resident_of(tmp_path, rows, ids, documents)
    for weight in (1, 3, 200):
        vector = {**dict.fromkeys(rows, weight), "rare": 9}
        for hits in (1, 10, 39):
            assert searched(resident, [vector], hits)[0] == expected(rows, ids, vector, hits)


@pytest.mark.parametrize("share", [0.001, 0.3, 0.995])
def test_excluded_documents_are_no_hits_whatever_their_impacts_are(tmp_path, share):
    """Deleted documents of impacts up to 2^24, whose products go beyond 2^31, in columns, numbers and gaps."""
    documents = BLOCK + 5000
    rng = np.random.default_rng(11)
    excluded = rng.random(documents) < share
    rows, left = {}, {}
    for number, step in enumerate((1, 1, 1, 1, 1, 1, 2, 5, 40, 300)):
        impacts = np.where(excluded, rng.integers(1, 1 << 24, documents), rng.integers(1, 6, documents)).tolist()
        rows[f"t{number}"] = {n: impacts[n] for n in range(0, documents, step)}
        left[f"t{number}"] = {n: impact for n, impact in rows[f"t{number}"].items() if not excluded[n]}
    ids = {number: f"{number * 7919 % documents:06}" for number in range(documents)}
    resident = resident_of(tmp_path, rows, ids, documents, width=4)
    vectors = [{"t0": 1}, dict.fromkeys(rows, 70), {f"t{n}": 9 * n * n + 1 for n in range(10)}, {"t9": 255}]
    queries, allowed = [ImpactQuery("q", vector) for vector in vectors], (~excluded).astype(np.uint8)
    for hits in (1, 30, 1000):
        kernels, plain = (of.lists(queries, hits, 1, allowed) for of in (resident, resident.plain))
        for vector, one in zip(vectors, kernels, strict=True):
            assert [(hit.doc_id, hit.rank, hit.score) for hit in one] == expected(left, ids, vector, hits)
        assert plain == kernels


def test_bounds_of_many_terms_of_a_deleted_document_stay_in_64_bits(tmp_path):
    """Weights and impacts of 2^24 - 1 are beyond 2^63 in sum, for more than 32,768 terms that no other document has."""
    most, terms = 2**24 - 1, [f"t{n}" for n in range(33_000)]
    rows = {**{term: {0: most} for term in terms}, "sea": {1: 3, 2: 4, 3: 5}}
    resident = resident_of(tmp_path, rows, {n: f"d{n}" for n in range(4)}, 4, 4)
    query, allowed = ImpactQuery("q", dict.fromkeys(terms, most) | {"sea": 2}), np.array([0, 1, 1, 1], np.uint8)
    for form, best in product((resident, resident.plain), (0, 1, 2)):
        [found] = form.lists([query], 2, 1, allowed, best)
        assert [(hit.doc_id, hit.score) for hit in found] == [("d3", 10.0), ("d2", 8.0)]


def test_a_file_with_any_content_leads_nowhere_else(tmp_path):
    """A file whose checksum is right can say anything: it is refused, or answers, and reads nothing outside of it."""
    rng = np.random.default_rng(3)
    steps = (1, 5, 9, 40, 300, 900, 2999)
    rows = {f"t{step}": {n: int(rng.integers(1, 255)) for n in range(0, 3000, step)} for step in steps}
    resident_of(tmp_path, rows, {number: f"d{number * 7}" for number in range(3000)}, 3000)
    path = tmp_path / RESIDENT
    sound, refused = path.read_bytes(), 0
    for _ in range(400):
        broken = bytearray(sound)
        for place in rng.integers(0, len(sound) - 24, rng.integers(1, 9)).tolist():
            broken[place] = int(rng.integers(256))
        path.write_bytes(broken)
        try:
            with path.open("rb") as file:
                forms = [form(open_sections(file, path)) for form in (PlainPostings, ResidentPostings)]
            for form in forms:
                form.lists([ImpactQuery("q", dict.fromkeys(rows, 200)), ImpactQuery("r", {"t5": 1})], 4000, 1)
        except (ArtefactError, UnicodeDecodeError):
            refused += 1
    assert 0 < refused < 400
