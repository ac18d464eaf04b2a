package lexvl;

import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** One document on its way into the index, whatever its shard's format: id, dimensions and impacts, text, metadata. */
final class ImpactRow {
    /** Scores are floats, which represent every integer up to 2^24; Python's SCORE_LIMIT. */
    private static final int MAX_IMPACT = (1 << 24) - 1;

    String id;
    int size;
    int[] dimensions = new int[256];
    int[] impacts = new int[256];
    String contents = "";
    final List<String> keys = new ArrayList<>();
    final List<Object> values = new ArrayList<>();

    // The document that last named a dimension: one that names it twice is found without sorting.
    private final int[] namedBy;
    private int documents;

    ImpactRow(TermTable terms) {
        namedBy = new int[terms.size()];
    }

    void start() {
        documents++;
        id = null;
        size = 0;
        contents = "";
        keys.clear();
        values.clear();
    }

    void add(int dimension, long impact) {
        if (impact < 1 || impact > MAX_IMPACT) {
            throw new IllegalArgumentException("impact " + impact + ", expected an integer from 1 to " + MAX_IMPACT);
        }
        if (dimension < 0 || dimension >= namedBy.length) {
            throw new IllegalArgumentException("a term is not in the vocabulary of " + namedBy.length + " terms");
        }
        if (namedBy[dimension] == documents) {
            throw new IllegalArgumentException("document '" + id + "' names a term twice");
        }
        namedBy[dimension] = documents;
        if (size == dimensions.length) {
            dimensions = Arrays.copyOf(dimensions, 2 * size);
            impacts = Arrays.copyOf(impacts, 2 * size);
        }
        dimensions[size] = dimension;
        impacts[size++] = (int) impact;
    }

    /** Chars of all that is text in it. */
    long length() {
        long length = id.length() + contents.length();
        for (Object value : values) {
            length += value instanceof String word ? word.length() : 0;
        }
        return length;
    }

    void checkId() {
        if (id == null || id.isEmpty() || id.codePoints().anyMatch(ImpactRow::isSpace)) {
            throw new IllegalArgumentException("document id '" + id + "', expected a text without white space");
        }
    }

    /** As Python's str.split sees it. */
    private static boolean isSpace(int c) {
        return Character.isWhitespace(c) || Character.isSpaceChar(c) || c == 0x85;
    }

    /** Strict UTF-8. */
    static String text(byte[] bytes, int from, int to) {
        try {
            CharBuffer chars = StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes, from, to - from));
            return chars.toString();
        } catch (CharacterCodingException error) {
            throw new IllegalArgumentException("not UTF-8", error);
        }
    }
}
