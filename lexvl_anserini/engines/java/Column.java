package lexvl;

import java.util.Arrays;

/** Numbers of one width, little-endian as a file has them, as many as come. */
final class Column {
    /** The longest array that every Java can make. */
    private static final int MOST = Integer.MAX_VALUE - 8;

    private final int width;
    private byte[] bytes = new byte[1 << 10];
    private int size;

    /** @param width bytes of a number */
    Column(int width) {
        this.width = width;
    }

    /** How many numbers there are. */
    int count() {
        return size / width;
    }

    void add(long number) {
        reserve(width);
        for (int i = 0; i < width; i++) {
            bytes[size++] = (byte) (number >>> 8 * i);
        }
    }

    /** Appends bytes as they are. */
    void add(byte[] from, int start, int length) {
        reserve(length);
        System.arraycopy(from, start, bytes, size, length);
        size += length;
    }

    byte[] bytes() {
        return Arrays.copyOf(bytes, size);
    }

    void clear() {
        size = 0;
    }

    private void reserve(int length) {
        if (size + length > bytes.length) {
            bytes = Arrays.copyOf(bytes, Math.max(Math.addExact(size, length), (int) Math.min(2L * bytes.length, MOST)));
        }
    }
}
