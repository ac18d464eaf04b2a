package lexvl;

/** Some postings, in the order of terms and documents. */
final class Chunk {
    static final int CAPACITY = 1 << 16;

    final int[] docs = new int[CAPACITY];
    final int[] impacts = new int[CAPACITY];
    int size;
}
