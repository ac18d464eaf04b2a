package lexvl;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/**
 * Reads {"id","contents","vector","metadata"} objects, one a line, from UTF-8 bytes. Strict where a value is used;
 * an exception has a short message here; the Python reader then reads the shard again and names the line.
 */
final class JsonRows {
    private final byte[] bytes;
    private final TermTable terms;
    private final boolean wantsContents;
    private final boolean wantsMetadata;
    private int at;
    // The last string read lies at text[from, to): in `bytes` itself, or unescaped in `unescaped`.
    private byte[] text;
    private int from;
    private int to;
    private byte[] unescaped = new byte[64];

    JsonRows(byte[] bytes, TermTable terms, boolean wantsContents, boolean wantsMetadata) {
        this.bytes = bytes;
        this.terms = terms;
        this.wantsContents = wantsContents;
        this.wantsMetadata = wantsMetadata;
    }

    /** Fills {@code row} with the next object; false at the end. */
    boolean next(ImpactRow row) {
        if (at >= bytes.length) {
            return false;
        }
        row.start();
        boolean vector = false;
        expect('{');
        if (peek() != '}') {
            do {
                string();
                String key = ImpactRow.text(text, from, to);
                expect(':');
                if (key.equals("id")) {
                    string();
                    row.id = ImpactRow.text(text, from, to);
                } else if (key.equals("vector")) {
                    if (vector) {
                        throw wrong("a second vector");
                    }
                    vector = true;
                    vector(row);
                } else if (key.equals("contents") && wantsContents && peek() == '"') {
                    string();
                    row.contents = ImpactRow.text(text, from, to);
                } else if (key.equals("metadata") && wantsMetadata && peek() == '{') {
                    metadata(row);
                } else {
                    skip();
                }
            } while (more('}'));
        }
        expect('}');
        while (at < bytes.length && bytes[at] != '\n') {
            if (!isSpace(bytes[at++])) {
                throw wrong("something after the object");
            }
        }
        at++;
        if (!vector) {
            throw wrong("no vector");
        }
        row.checkId();
        return true;
    }

    private void vector(ImpactRow row) {
        expect('{');
        if (peek() != '}') {
            do {
                string();
                int dimension = terms.dimension(text, from, to);
                expect(':');
                row.add(dimension, integer());
            } while (more('}'));
        }
        expect('}');
    }

    /** The members of an object: texts, integers, other numbers and booleans; null is no member. */
    void metadata(ImpactRow row) {
        expect('{');
        if (peek() != '}') {
            do {
                string();
                String key = ImpactRow.text(text, from, to);
                expect(':');
                Object value = scalar();
                if (value != null) {
                    row.keys.add(key);
                    row.values.add(value);
                }
            } while (more('}'));
        }
        expect('}');
    }

    private Object scalar() {
        byte first = peek();
        if (first == '"') {
            string();
            return ImpactRow.text(text, from, to);
        }
        int start = at;
        while (at < bytes.length && ",}] \n\r\t".indexOf(bytes[at]) < 0) {
            at++;
        }
        String word = new String(bytes, start, at - start, StandardCharsets.US_ASCII);
        if (word.equals("null")) {
            return null;
        }
        if (word.equals("true") || word.equals("false")) {
            return word;
        }
        try {
            if (word.matches("-?\\d+")) {
                return Long.valueOf(word);
            }
            return Double.valueOf(word);
        } catch (NumberFormatException error) {
            throw wrong("metadata value " + word);
        }
    }

    private long integer() {
        peek();
        int start = at;
        long value = 0;
        while (at < bytes.length && bytes[at] >= '0' && bytes[at] <= '9' && at - start < 11) {
            value = value * 10 + (bytes[at++] - '0');
        }
        byte after = at < bytes.length ? bytes[at] : 0;
        if (at == start || after != ',' && after != '}' && !isSpace(after)) {
            throw wrong("an impact is no integer");
        }
        return value;
    }

    /** Passes over a value that is not wanted. */
    private void skip() {
        byte first = peek();
        if (first == '"') {
            string();
        } else if (first == '{' || first == '[') {
            byte close = (byte) (first == '{' ? '}' : ']');
            at++;
            if (peek() != close) {
                do {
                    if (first == '{') {
                        string();
                        expect(':');
                    }
                    skip();
                } while (more((char) close));
            }
            expect((char) close);
        } else {
            scalar();
        }
    }

    private void string() {
        expect('"');
        int start = at;
        while (at < bytes.length) {
            byte b = bytes[at];
            if (b == '"') {
                text = bytes;
                from = start;
                to = at++;
                return;
            }
            if (b == '\\') {
                unescape(start);
                return;
            }
            if (b >= 0 && b < 0x20) {
                throw wrong("a control character in a string");
            }
            at++;
        }
        throw wrong("a string without an end");
    }

    private void unescape(int start) {
        int length = at - start;
        reserve(length);
        System.arraycopy(bytes, start, unescaped, 0, length);
        while (at < bytes.length) {
            byte b = bytes[at++];
            reserve(length + 4);
            if (b == '"') {
                text = unescaped;
                from = 0;
                to = length;
                return;
            }
            if (b >= 0 && b < 0x20) {
                throw wrong("a control character in a string");
            }
            if (b != '\\') {
                unescaped[length++] = b;
                continue;
            }
            byte kind = at < bytes.length ? bytes[at++] : 0;
            int plain = "\"\\/bfnrt".indexOf(kind);
            if (kind != 0 && plain >= 0) {
                unescaped[length++] = (byte) "\"\\/\b\f\n\r\t".charAt(plain);
            } else if (kind == 'u') {
                byte[] utf8 = new String(Character.toChars(codePoint())).getBytes(StandardCharsets.UTF_8);
                System.arraycopy(utf8, 0, unescaped, length, utf8.length);
                length += utf8.length;
            } else {
                throw wrong("an unknown escape");
            }
        }
        throw wrong("a string without an end");
    }

    private int codePoint() {
        int high = hex();
        if (!Character.isSurrogate((char) high)) {
            return high;
        }
        if (Character.isHighSurrogate((char) high) && at + 1 < bytes.length && bytes[at] == '\\' && bytes[at + 1] == 'u') {
            at += 2;
            int low = hex();
            if (Character.isLowSurrogate((char) low)) {
                return Character.toCodePoint((char) high, (char) low);
            }
        }
        throw wrong("half a surrogate pair");
    }

    private int hex() {
        int value = 0;
        for (int i = 0; i < 4; i++, at++) {
            int digit = at < bytes.length ? Character.digit(bytes[at], 16) : -1;
            if (digit < 0) {
                throw wrong("a broken \\u escape");
            }
            value = value << 4 | digit;
        }
        return value;
    }

    private void reserve(int length) {
        if (length > unescaped.length) {
            unescaped = Arrays.copyOf(unescaped, Math.max(length, 2 * unescaped.length));
        }
    }

    /** After a member: true at a comma (taken), false at the end of the object or array (not taken). */
    private boolean more(char close) {
        byte b = peek();
        if (b == ',') {
            at++;
            return true;
        }
        if (b != close) {
            throw wrong("'" + (char) b + "' instead of ',' or '" + close + "'");
        }
        return false;
    }

    private void expect(char c) {
        if (peek() != c) {
            throw wrong("'" + (char) bytes[at] + "' instead of '" + c + "'");
        }
        at++;
    }

    /** The next byte that is no white space; a line's end is the end of what can be read. */
    private byte peek() {
        while (at < bytes.length && isSpace(bytes[at]) && bytes[at] != '\n') {
            at++;
        }
        if (at >= bytes.length) {
            throw new IllegalArgumentException("not valid JSON: the line ends too early");
        }
        return bytes[at];
    }

    private static boolean isSpace(byte b) {
        return b == ' ' || b == '\t' || b == '\r' || b == '\n';
    }

    private IllegalArgumentException wrong(String what) {
        return new IllegalArgumentException("not a row of impacts: " + what);
    }
}
