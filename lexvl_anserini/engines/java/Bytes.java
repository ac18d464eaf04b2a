package lexvl;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/** Numbers as they come from and go to Python: little-endian arrays in one block of bytes, one call for all of them. */
final class Bytes {
    private Bytes() {}

    static int[] ints(byte[] bytes) {
        int[] numbers = new int[bytes.length / 4];
        ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN).asIntBuffer().get(numbers);
        return numbers;
    }

    /** The numbers from {@code from} to {@code to}. */
    static int[] ints(byte[] bytes, int from, int to) {
        int[] numbers = new int[to - from];
        ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN).asIntBuffer().get(from, numbers);
        return numbers;
    }

    static float[] floats(byte[] bytes) {
        float[] numbers = new float[bytes.length / 4];
        ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer().get(numbers);
        return numbers;
    }

    static byte[] of(long... numbers) {
        ByteBuffer bytes = ByteBuffer.allocate(8 * numbers.length).order(ByteOrder.LITTLE_ENDIAN);
        bytes.asLongBuffer().put(numbers);
        return bytes.array();
    }

    static byte[] of(int[] numbers) {
        ByteBuffer bytes = ByteBuffer.allocate(4 * numbers.length).order(ByteOrder.LITTLE_ENDIAN);
        bytes.asIntBuffer().put(numbers);
        return bytes.array();
    }
}
