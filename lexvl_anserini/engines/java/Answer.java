package lexvl;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;

/** The hits of one query as a block of bytes for Python; used again for the next. One thread's. */
final class Answer {
    private float[] scores = new float[1024];
    private byte[] ids = new byte[16384];
    private int size;
    private int length;

    void start() {
        size = 0;
        length = 0;
    }

    void add(float score, byte[] id) {
        if (size == scores.length) {
            scores = Arrays.copyOf(scores, 2 * size);
        }
        if (length + id.length + 1 > ids.length) {
            ids = Arrays.copyOf(ids, Math.max(length + id.length + 1, 2 * ids.length));
        }
        scores[size++] = score;
        for (byte b : id) {
            if (b == '\n') {
                throw new IllegalArgumentException("a document id with a line feed, which no run can hold");
            }
            ids[length++] = b;
        }
        ids[length++] = '\n';
    }

    /** int32 number of hits, int32 number of bytes of all ids, float32 scores, ids with a line feed after each. */
    byte[] bytes() {
        ByteBuffer bytes = ByteBuffer.allocate(8 + 4 * size + length).order(ByteOrder.LITTLE_ENDIAN);
        bytes.putInt(size);
        bytes.putInt(length);
        for (int i = 0; i < size; i++) {
            bytes.putFloat(scores[i]);
        }
        bytes.put(ids, 0, length);
        return bytes.array();
    }
}
